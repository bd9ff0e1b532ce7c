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

case ${1:-} in
    -h | --help)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
        exit 0 ;;
esac
np=4
if [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
    np=$1
    shift
fi
if [ "${1:-}" = -- ]; then shift; fi

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
before=$(readlink results/latest)
words=(torchrun "${where[@]}" "--nproc-per-node=$np" -m hpcbench run "$@")
echo "${words[*]}"
"${words[@]}"
code=$?
if [ "$(readlink results/latest)" != "$before" ]; then
    echo "results: $PWD/results/$(readlink results/latest) (also results/latest)"
fi
exit "$code"
