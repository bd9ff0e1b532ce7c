"""Every argument and option that takes a path, with paths that are none: one line, code 2."""

from __future__ import annotations

import os
import shlex
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import typer

from bad_input_process import complaint, hpcbench
from hpcbench.cli import COMMANDS
from hpcbench.reduce.reduce import reduce_folder
from launcher import ROOT
from synthetic import make_plan, write_synthetic_run

JOBS = ("validate", "run", "suite", "profile", "soak", "hunt")
"""Commands that meet in MPI, which only words refused before they start can be tried on here."""
LINES = f"""
plan @sweep.json
plan -c @sweep.json
show @run
report @run -o @new.html
report @run -f pdf -o @new.pdf
report @run -f md -o @new.md
report -s @runs -o @new.html
plot @run -o @new --only nothing
compare @run @run --plot @new.png
check @run --limits @limits.yaml
check @run --baseline @run
check --learn @run @run -o @limits2.yaml
advise @run
advise @run --to nccl -o @new.csv
advise @run --traffic @traffic.json --prove @prove.json
reduce @empty
history @runs -o @new.html --index @new.parquet
anonymize @run -o @copy --mapping @names
record -o @rec -- true
export @run --to csv -o @new.csv
import {ROOT}/tests/data/foreign/all_reduce_8.txt -o @new.h5
import @traffic.json -o @new.json
lint @traffic.json
from-command "mpirun -np 2 osu_bcast" -o @new.yaml
gen-config --from @sweep.json -o @new.yaml
gen-config here --ranks 2 -o @new.yaml
gen-data @new.bin --tokens 10 --vocab 7
validate -o @new
validate @sweep.json
validate -c @sweep.json
run @sweep.json -o @new
run -c @sweep.json
run --resume @run
suite @sweep.json -o @new --summary @summary.json
suite -c @sweep.json
suite --resume @run
profile @sweep.json -o @new
profile -c @sweep.json
soak @sweep.json --for 1h -o @new
soak -c @sweep.json --for 1h --resume @run
hunt --expected @sweep.json --minimum @kept --reference @kept -o @new
""".strip().splitlines()
"""Lines with a @ before each word that is a path."""
NO_WORDS = ("", "a\0b")
KEPT = ("run", "sweep.json", "kept", "folder")
BAD = (*NO_WORDS, ".", "folder", "kept/x", "x" * 300, "kept")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, a sweep, a file and a folder, which all commands are to keep."""
    home = tmp_path_factory.mktemp("home")
    write_synthetic_run(home / "run", make_plan(n_cases=2))
    reduce_folder(home / "run")
    (home / "sweep.json").write_text('{"name": "a", "benchmarks": [{"kind": "collective", '
                                     '"collective": "all_reduce", "size": [8]}]}')
    (home / "kept").write_text("kept")
    (home / "folder").mkdir()
    (home / "folder" / "kept").write_text("kept")
    return home


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes()
            for path in sorted(home.rglob("*")) if path.is_file()}


def with_bad_words() -> Iterator[tuple[str, list[str]]]:
    """Yield each line with each of its paths replaced by each bad one, and what stands there."""
    for line in LINES:
        words = shlex.split(line)
        for path in words:
            if path.startswith("@"):
                for bad in NO_WORDS if words[0] in JOBS else BAD:
                    yield bad, [bad if word is path else word.removeprefix("@") for word in words]


def test_the_lines_have_every_path() -> None:
    """Of the commands as they are declared."""
    for name, command in COMMANDS.items():
        lines = [shlex.split(line)[1:] for line in LINES if line.split()[0] == name]
        before = {before if before.startswith("-") else "" for words in lines
                  for before, word in zip(["", *words], words, strict=False)
                  if word.startswith("@")}
        for key, hint in typing.get_type_hints(command, include_extras=True).items():
            declared, *about = typing.get_args(hint) or (hint,)
            if "Path" in str(declared) and about:
                is_option = isinstance(about[0], typer.models.OptionInfo)
                flags = {f"--{key}", about[0].default, *(about[0].param_decls or ())}
                assert before & (flags if is_option else {""}), (name, key)


def test_a_path_that_is_none_costs_a_line_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    before, wrong = contents(home), []
    for bad, words in with_bad_words():
        with mock.patch.object(os, "execvpe", side_effect=SystemExit(0)):
            done = hpcbench(*words)
        after = contents(home)
        why = complaint(done.returncode, done.stderr, done.stdout)
        if bad in NO_WORDS and (done.returncode, done.stderr.count("\n")) != (2, 1):
            why = "not refused in a line"
        if any(after.get(name) != text for name, text in before.items()):
            why = "wrote over a file"
        if done.returncode == 2 and after != before:
            why = "left files"
        if why:
            wrong.append((why, words, done.stderr))
        for path in home.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not wrong, "\n".join(map(str, wrong))
