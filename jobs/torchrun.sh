#!/usr/bin/env bash
# bash jobs/torchrun.sh [NP] [ARGUMENTS OF run]
#
# Sets hpcbench up in .venv of this checkout (once), runs
#     torchrun --nproc-per-node=NP -m hpcbench run ARGUMENTS
# in the current folder, and says where the results are. NP is 4 unless the first argument is a
# number. There is no MPI: the workers are torchrun's processes, not isolated, and backend mpi is
# skipped. The exit code is torchrun's, 0 all is well, else 1; or 2 for a set-up that failed, and for
# HPCBENCH_NODES or HPCBENCH_MEET that are wrong.
#
#     bash jobs/torchrun.sh                         # ./config.json, else the packaged sweep, 4 ranks
#     bash jobs/torchrun.sh 2 my.yaml --iters 100   # 2 ranks
#
# On several nodes, started on each of them, in a folder that all of them see:
#     HPCBENCH_NODES=2 HPCBENCH_MEET=node1:29400 bash jobs/torchrun.sh 8 my.yaml
#     HPCBENCH_NODES=2 HPCBENCH_MEET=node1:29400 srun -N 2 --ntasks-per-node=1 bash jobs/torchrun.sh 8
#
# HPCBENCH_NODES    on how many nodes this is started; default 1
# HPCBENCH_MEET     a host of them, and a free port there, where they meet
# HPCBENCH_PYTHON, HPCBENCH_VENV, PIP_*   as for jobs/local.sh
set -u
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

help_if_asked "${BASH_SOURCE[0]}" "$@"
take_arguments "$@"

nodes=${HPCBENCH_NODES:-1} meet=${HPCBENCH_MEET:-}
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "HPCBENCH_NODES=$nodes: give a whole number above 0"
if [ "$nodes" -gt 1 ]; then
    [[ $meet =~ ^.+:[0-9]+$ ]] ||
        fail "HPCBENCH_NODES=$nodes needs HPCBENCH_MEET=HOST:PORT, the same on all nodes (now '$meet')"
    where=("--nnodes=$nodes" --rdzv-backend=c10d "--rdzv-endpoint=$meet")
else
    where=(--standalone) # meets at a port of its own: several may run on one machine
fi

set_up mpich
PATH=$hpcbench_venv/bin:$PATH
run_and_tell torchrun "${where[@]}" "--nproc-per-node=$np" -m hpcbench run \
    ${arguments[@]+"${arguments[@]}"}
