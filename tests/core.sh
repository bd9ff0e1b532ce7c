#!/usr/bin/env bash
# bash tests/core.sh [ARGUMENTS OF pytest]
#
# Shows that the core does without the parts behind its walls: in a copy without the folders below it
# runs the unit tests that need none of these, not even as data: tests/core.txt.
# It takes a minute on 2 quiet cores. The pytest is that of .venv, or of $HPCBENCH_VENV.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${HPCBENCH_VENV:-.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -c |
    tar -x -C "$copy"
cd "$copy"
rm -r hpcbench/{analysis,validation,api,interop,compat,fleet,prediction} \
    hpcbench/kinds/{primitive,training,memory,replay,hardware,function}
export PATH=$venv/bin:$PATH PYTHONPATH=$copy OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python -m pytest -q -n 2 --dist loadfile -p no:cacheprovider -p no:hpcbench @tests/core.txt "$@"
