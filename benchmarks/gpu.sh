#!/usr/bin/env bash
# bash benchmarks/gpu.sh [MINUTES] [--no-setup] [-o FOLDER] [--again STEP] [--steps FILE]
#
# What there is to show on the first machine with a GPU: sets hpcbench up in .venv (once), then runs
# the steps of benchmarks/gpu/steps.yaml in order of value, for at most MINUTES (60): tests/gpu,
# NCCL's collectives, primitives, training steps, faults. Each failure costs its own step. The folder
# results/gpu-HOSTNAME has the results, and verdicts.md and verdicts.json with a verdict per goal.
# Run it again to go on where it stopped.
#
# Exit code: 0 every goal that this machine can show is met; 1 some are missed or failed; 2 bad usage,
# a set-up that failed, or a folder in use; 3 the time was over, or it was interrupted; 5 no GPU.
#
# --no-setup        take the Python of .venv, else python3 on PATH, as they are: no network
# HPCBENCH_PYTHON   with --no-setup this Python; else as for jobs/local.sh, as is HPCBENCH_VENV
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"

help_if_asked "${BASH_SOURCE[0]}" "$@"
arguments=() setup=yes needs_gpu=yes
for argument in "$@"; do
    case $argument in
        --no-setup) setup= ;;
        --steps | --steps=*) needs_gpu=; arguments+=("$argument") ;;  # the file says what it needs
        *) arguments+=("$argument") ;;
    esac
done
if [ -n "$needs_gpu" ] && ! sees_gpu; then
    echo "benchmarks/gpu.sh: no GPU: there is no /dev/nvidia* and no nvidia-smi; nothing was run" >&2
    exit 5
fi
if [ -n "$setup" ]; then
    set_up mpich test
    python=$hpcbench_venv/bin/python
else
    python=${HPCBENCH_PYTHON:-}
    [ -n "$python" ] || { python=python3; [ -x "$hpcbench_venv/bin/python" ] && python=$hpcbench_venv/bin/python; }
fi
export PYTHONPATH=$hpcbench_root/benchmarks:$hpcbench_root${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m gpu ${arguments[@]+"${arguments[@]}"}
