#!/usr/bin/env bash
# apache-otava 0.8.0, `analyze` of a CSV: of 30 runs with a step of 5 % in columns a and b, one value
# of a is missing.
#   - "nan": the step of a is not found, nothing is said, and b is right;
#   - an empty cell: no column is analysed, "Could not convert value in column a: could not convert
#     string to float: ''";
#   - the exit code is 0 both times, and so is that of a file that is not there.
# A pipeline that goes by exit codes sees neither; a series with a gap has to be left out, or the
# run.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check install -q apache-otava==0.8.0
cd "$folder"
fail() { echo "changed: $1"; exit 1; }
cat > otava.yaml <<'YAML'
tests:
  nightly:
    type: csv
    file: runs.csv
    time_column: time
    attributes: [commit]
    metrics:
      a: {column: a, direction: -1}
      b: {column: b, direction: -1}
YAML
# runs VALUE: the sixth value of a is VALUE
runs() {
    venv/bin/python - "$1" > runs.csv <<'PYTHON'
import random
import sys

chance = random.Random(1)
print("time,commit,a,b")
for day in range(30):
    a, b = ((1.05 if day >= 20 else 1) * chance.gauss(1, 0.004) for _ in "ab")
    print(f"2026.01.{day + 1:02} 3:00:00 +0000,c{day},{sys.argv[1] if day == 5 else a},{b}")
PYTHON
}
# otava: its output and code, by lines "METRIC INDEX"
otava() {
    venv/bin/otava analyze nightly --config-file otava.yaml --since 2026-01-01 --output json \
        > said.json 2> said.txt || fail "the exit code is $?"
    venv/bin/python - <<'PYTHON'
import json

text = open("said.json").read()
found = json.loads(text)["nightly"] if text.strip() else []
print(*sorted(f"{change['metric']}@{change['index']}" for row in found for change in row["changes"]))
PYTHON
}

runs 1.0
[ "$(otava)" = "a@20 b@20" ] || fail "the steps of whole columns"
runs nan
[ "$(otava)" = "b@20" ] || fail "a column with nan"
! grep -i nan said.txt || fail "nan is named"
runs ""
[ "$(otava)" = "" ] || fail "columns beside one with an empty cell are analysed"
grep "Could not convert value in column a" said.txt || fail "the empty cell is not named"
rm runs.csv
[ "$(otava)" = "" ] || fail "no file"
echo "as described"
