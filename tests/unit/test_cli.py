"""The flags that stand for keys of the sweep file, as ``hpcbench plan`` takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from golden import RESULTS
from hpcbench.cli import COMMANDS, app
from hpcbench.errors import ConfigError, UsageError
from hpcbench.plan.order import LAUNCH_S

SWEEP = {"benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": [8, 64],
                         "mode": "barrier_start", "iterations": 7}]}

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "runs" / "collective"


def planned(folder: Path, *flags: str) -> str:
    path = folder / "sweep.json"
    path.write_text(json.dumps(SWEEP))
    done = CliRunner().invoke(app, ["plan", str(path), *flags], catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_a_plan_states_how_it_measures(tmp_path: Path) -> None:
    text = planned(tmp_path)
    assert "2 cases x 3 passes for 4 ranks" in text
    assert "modes: barrier_start (2)\n" in text and "warm-up" not in text
    assert "iterations: 7 a pass in 2 cases\n" in text


def test_shorthands_hold_for_every_case(tmp_path: Path) -> None:
    text = planned(tmp_path, "--iters", "auto", "--mode", "pipelined", "--passes", "2",
                   "--launches", "5", "--set", "measure.order=planned")
    assert "2 cases x 5 launches x 2 passes" in text
    assert "modes: pipelined (2)\n" in text
    assert ("automatic (until the median is known within 1 %, at most 30 s in all) mode pipelined"
            in " ".join(text.split()))
    assert "auto pipelined x20" in text
    assert "20 calls an iteration, 100 calls of warm-up a pass" in text
    assert "order: as planned" in text
    assert "iterations: 9 a pass" in planned(tmp_path, "--iters", "9")


def test_the_estimate_is_of_all_passes_and_launches(tmp_path: Path) -> None:
    once, often = (planned(tmp_path, "--iters", "300", "--passes", passes, "--launches", launches)
                   for passes, launches in (("1", "1"), ("3", "4")))
    seconds = [float(text.split("estimate ")[1].split(" ")[0]) for text in (once, often)]
    units = [text.split("estimate ")[1].split(";")[0].split(" ")[1] for text in (once, often)]
    assert units == ["s", "s"]
    assert seconds[1] - 4 * LAUNCH_S == pytest.approx(12 * (seconds[0] - LAUNCH_S), rel=0.05)


@pytest.mark.parametrize(("flag", "value", "what"), [
    ("--iters", "many", 'measure.iterations: "many" is not a number of iterations'),
    ("--iters", "0", "measure.iterations: 0 is not a number"),
    ("--mode", "isolate", 'did you mean "isolated"'),
    ("--launches", "0", "measure.launches: must be at least 1"),
])
def test_a_wrong_value_is_refused_by_the_key_it_stands_for(
    tmp_path: Path, flag: str, value: str, what: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, flag, value)
    assert what in str(caught.value)
    assert str(caught.value).startswith("command line: ")


@pytest.mark.parametrize("arguments", [["--help"], ["show", str(GOLDEN)]], ids=" ".join)
def test_nor_is_one_to_whom_errors_go_the_same_way(arguments: list[str]) -> None:
    assert unread(arguments, errors=True) == (0, None)


def unread(arguments: list[str], *, errors: bool) -> tuple[int, bytes | None]:
    """Return the code and the errors of a command that prints into a pipe which nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([sys.executable, "-m", "hpcbench", *arguments], stdout=pipe,
                              stderr=pipe if errors else subprocess.PIPE, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["list", "--no-probe"], ["schema"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "hpcbench", *arguments], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize(("command", "of_several"), [
    ("show", "compare"), ("plot", "compare"), ("run", "suite")])
def test_a_word_too_many_names_the_command_that_takes_several(
    command: str, of_several: str,
) -> None:
    error = CliRunner().invoke(app, [command, "a", "b", "c"]).exception
    assert isinstance(error, UsageError)
    assert f"hpcbench {of_several} " in str(error) and "\n" not in str(error)


def commands_with_output() -> dict[str, typer.core.TyperCommand]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return {name: command for name in group.list_commands(None)  # type: ignore[arg-type]
            if isinstance(command := group.commands[name], typer.core.TyperCommand)
            and any({"-o", "--output"} & set(one.opts) for one in command.params)}


PRINTING = {"export", "gen-config", "from-command", "advise"}


@pytest.mark.parametrize("name", commands_with_output())
def test_a_dash_is_standard_output_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {"export": [str(RESULTS["collective"]), "--to", "csv"],
                 "gen-config": ["--hardware", "cpu"], "from-command": ["mpirun -np 2 osu_bcast"],
                 "advise": [str(RESULTS["collective"]), "--tuner", "nccl"]}
    done = CliRunner().invoke(app, [name, *arguments.get(name, ["x.json"]), "--output" if any(
        "--output" in one.opts for one in commands_with_output()[name].params) else "-o", "-"])
    assert [*tmp_path.iterdir()] == []
    if name in PRINTING:
        plain = CliRunner().invoke(app, [name, *arguments[name]])
        assert (done.exit_code, done.stdout) == (plain.exit_code, plain.stdout)
    else:
        assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize("words", [
    *([name, "--no-such"] for name in COMMANDS), ["no-such"], ["--no-such"], ["show"], ["compare"],
    ["export", "x"], ["plan", "a", "b"], ["plan", "--passes"], ["plan", "--passes", "many"]],
    ids=" ".join)
def test_words_that_no_command_takes_are_one_line(words: list[str]) -> None:
    """As other errors are, with no box around it."""
    with pytest.raises(UsageError) as caught:
        app(words, prog_name="hpcbench")
    command = f"{words[0]}: " if words[0] in COMMANDS else ""
    line = str(caught.value)
    assert line.startswith(command) and "\n" not in line
    assert line.endswith(f"; see hpcbench {words[0] + ' ' if command else ''}--help")
    assert ("; such as " in line) == (words in (["show"], ["compare"], ["export", "x"]))
