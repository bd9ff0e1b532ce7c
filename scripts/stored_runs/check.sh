#!/usr/bin/env bash
# check.sh BEFORE_TREE TREE FOLDER [quick] [--text]: does TREE make of the runs of make_runs.sh what
# BEFORE_TREE makes of them? 0: all values are the same, 1: they are not. 8 minutes on 2 idle cores, `quick` 2.
# --text: texts for people count, too. Both trees have to stand still meanwhile: of a checkout that is
# edited, take `git archive HEAD`.
#
# What it does not see: how things are measured (run, launch, workers, validate, profile), help texts, and
# some rare branches: of 18 faults of tests/mutations.yaml in reduce/ and analysis/ it noticed 12.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$here/../../.venv/bin:$PATH
before=$(realpath "${1:?give the tree before}") || exit 2
after=$(realpath "${2:?give the tree to check}") || exit 2
cd "${3:?give the folder of the runs}" || exit 2
shift 3
given=(runs/killed runs/resumed/latest runs/pair1/latest runs/pair2/latest)
if [ "${1:-}" = quick ]; then
    shift
else
    given+=(runs/clocks/latest runs/faults/latest runs/openmpi/latest runs/every/latest
        runs/suite/latest sweeps/every.yaml sweeps/openmpi.yaml)
fi
exec "$here/../same_values" "$@" "$before" "$after" "${given[@]}"
