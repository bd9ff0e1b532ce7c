"""Flags for keys of the sweep file, as ``hpcbench plan`` and ``profile`` take them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from golden import RESULTS
from hpcbench.cli import COMMANDS, app
from hpcbench.commands.jobs import seconds_of
from hpcbench.config.axes import TARGETS
from hpcbench.config.load import PACKAGED, check_config
from hpcbench.errors import ConfigError, LaunchError, UsageError
from hpcbench.launch.session import default_ranks, exec_mpirun, find_mpirun, ranks_of_launch
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import LAUNCH_S
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_profile
from launcher import ROOT

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
    assert "auto pipelined x20" in " ".join(text.split())
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


TRAINING = {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 32,
            "seq_length": 8, "vocab": 64, "batch_size": 2, "strategies": {"data": {}}}
REDUCTION = {"kind": "collective", "collective": "all_reduce", "size": 64}
PRODUCTS = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 32, "k": 32,
            "implementations": ["compute_only", "comm_only", "torch"]}


def config(*blocks: dict[str, Any], target: str | None = None) -> Any:
    return check_config({"benchmarks": [*blocks], "profiling": {"target": target}}, "test")


@pytest.mark.parametrize(("text", "seconds"), [
    ("30s", 30), ("2m", 120), ("500ms", 0.5), ("7", 7), (" 1.5 min ", 90), (".5s", 0.5),
    ("1H", 3600)])
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [
    "0", "0ms", "abc", "", "-3s", "3d", "1e9", "nan", "inf", "25h", "s", "3 4", "9" * 400])
def test_no_duration_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UsageError, match="write 30s, 2m or 500ms") as caught:
        seconds_of(text)
    assert len(str(caught.value)) < 200


def test_the_packaged_sweep_and_that_of_the_page_have_cases_for_every_target() -> None:
    page = (ROOT / "docs" / "profile.md").read_text("utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    kinds = {}
    for sweep in (json.loads(PACKAGED.read_text("utf-8")), json.loads(example)):
        for target in TARGETS:
            plan = make_plan(check_config({**sweep, "profiling": {"target": target}}, "test"), 2)
            kinds[target] = kinds.get(target, set()) | {case.kind for case in plan.cases}
    assert all("training" in found for found in kinds.values())
    assert "has no training" not in page


@pytest.mark.parametrize(("target", "labels"), [
    ("sync_stalls", ["communication=off", "transformer-tiny data gloo"]),
    ("compute", ["communication=off", "compute_only"]),
    ("communication", ["communication=only", "all_reduce", "comm_only"])])
def test_a_target_keeps_the_cases_that_show_it(target: str, labels: list[str]) -> None:
    trainings = {**TRAINING, "communication": ["on", "off", "only"]}
    plan = make_plan(config(trainings, REDUCTION, PRODUCTS, target=target), 2)
    for label in labels:
        assert any(label in case.label for case in plan.cases)
    assert len(plan.cases) == len(labels)
    assert len(make_plan(config(trainings, REDUCTION, PRODUCTS), 2).cases) == 7


def test_a_sweep_without_such_cases_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(config(REDUCTION, PRODUCTS, target="sync_stalls"), 2)
    assert str(caught.value) == (
        "test: profiling.target: no case of the sweep shows sync_stalls; its cases show "
        "compute (1 of 4), communication (2 of 4): take --target communication, or add a block "
        "that does (docs/profile.md has one for each)")


def test_a_case_of_one_rank_shows_no_stalls() -> None:
    both = {**TRAINING, "world_size": [1, 2]}
    assert [case.world_size for case in make_plan(
        config(both, target="sync_stalls"), 2).cases] == [2]
    with pytest.raises(ConfigError, match="have one rank, which never waits"):
        make_plan(config(TRAINING, target="sync_stalls"), 1)


def test_a_launch_that_there_is_decides_the_ranks() -> None:
    mpich = {"PMI_SIZE": "3", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}
    assert ranks_of_launch(mpich, None) == ranks_of_launch(mpich, 3) == 3
    assert ranks_of_launch({}, None) is ranks_of_launch({}, 5) is None
    with pytest.raises(LaunchError, match="--gpus 4: MPICH's mpirun has already started 3 ranks"):
        ranks_of_launch(mpich, 4)
    with pytest.raises(LaunchError, match="--gpus 0: write a number of ranks from 1"):
        ranks_of_launch({}, 0)


def test_the_mpirun_beside_python_comes_before_that_on_path(tmp_path: Path) -> None:
    beside, elsewhere = tmp_path / "venv", tmp_path / "bin"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / "mpirun").touch(0o755)
    python, path = str(beside / "python"), {"PATH": str(elsewhere)}
    assert find_mpirun(python, path) == beside / "mpirun"
    for name in ("mpirun", "mpiexec.hydra"):  # Intel MPI's: only the program passes signals on
        (beside / name).write_text("#!/bin/sh\n")
        (beside / name).chmod(0o755)
    assert find_mpirun(python, path) == beside / "mpiexec.hydra"
    assert find_mpirun(python, {"SLURM_JOBID": "7"}) == beside / "mpirun"
    (beside / "mpirun").unlink()
    assert find_mpirun(python, path) == elsewhere / "mpirun"
    with pytest.raises(LaunchError, match="no mpirun: neither beside"):
        find_mpirun(python, {"PATH": str(beside)})


def test_the_program_becomes_mpirun_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text(
        '#!/bin/sh\necho "$$ $@ $OMPI_MCA_rmaps_base_oversubscribe"\nexit 7\n')
    (tmp_path / "mpirun").chmod(0o755)
    python = str(tmp_path / "python")
    lines = ("import os", "from hpcbench.launch.session import exec_mpirun",
             f"exec_mpirun(3, ['profile', '-g', '3'], os.environ, {python!r})")
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE,
                          text=True, env={**os.environ}) as started:
        said, _ = started.communicate(timeout=60)
    assert started.returncode == 7
    assert said == f"{started.pid} -np 3 {python} -m hpcbench profile -g 3 1\n"


def test_an_mpirun_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("no program")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(LaunchError, match="mpirun: cannot be started: Exec format error"):
        exec_mpirun(2, [], {"PATH": str(tmp_path)}, str(tmp_path / "python"))


def test_there_is_a_number_of_ranks_without_any_gpu() -> None:
    assert default_ranks() >= 1


def stored(name: str) -> Results:
    with open_results(RESULTS[name]) as file:
        return file.results


def test_a_profile_of_any_kind_is_at_most_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("collective", "primitive", "training", "mixed"):
        print_profile(stored(name), Path("nowhere"))
        text = capsys.readouterr().out
        assert "ready" in text or "imbalance" in text
        assert len(text.splitlines()) < 70 or name == "mixed"  # some of its cases failed


@pytest.mark.parametrize(("content", "said"), [
    ('{"schema_version": 1, "lines": ["the overhead of tracing was 3 %"]}', "overhead of tracing"),
    ('{"lines": 5}', "profile.json cannot be read (TypeError"), ("{", "(JSONDecodeError")])
def test_a_profile_prints_what_recorded_traces_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str,
) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "profile.json").write_text(content)
    print_profile(stored("training"), tmp_path)
    assert said in " ".join(capsys.readouterr().out.split())
