"""A suite without its job: what is refused before it begins, and what suite.json says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.load import load_config
from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.launch.run_folder import create_suite_folder, sweeps_folder
from hpcbench.plan.case import STATUSES
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.history import is_fresh
from hpcbench.reduce.suite_file import (
    ERROR,
    FINDINGS,
    INCOMPLETE,
    MEMBER_STATUSES,
    MISSED,
    NOT_HERE,
    NOT_STARTED,
    OK,
    RUNNING,
    Member,
    Suite,
    ended,
    not_counted,
    read_suite,
    refuse_suite,
    status_of,
    suite_document,
    suite_exit_code,
    write_suite,
)
from hpcbench.report.console import print_error, print_outcome, print_suite
from hpcbench.suite import SuiteRequest, begin_suite, check_output, plan_members
from hpcbench.texts import Verbosity
from hpcbench.trace.container import SUITE_FILE
from launcher import ROOT

SWEEP = {"name": "test", "benchmarks": [
    {"kind": "collective", "collective": "all_reduce", "size": [8, 64]}]}


def written(folder: Path, name: str, **keys: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(SWEEP | keys))
    return path


def member(status: str = NOT_STARTED, **keys: Any) -> Member:
    return replace(Member("a.json", "a", "01-a", 2, status, counts=not_counted(2)), **keys)


def suite(*members: Member) -> Suite:
    return Suite("id", "0.1.0", 2, "2026-01-01T00:00:00+0000", members)


def summary(*statuses: str, scope: str = "note") -> dict[str, Any]:
    return {"totals": {"planned": len(statuses), **{one: statuses.count(one) for one in STATUSES}},
            "findings": [{"code": "HB1", "scope": scope, "message": "m"}],
            "cases": [{"status": one, "reason": f"why {one}"} for one in statuses]}


def test_all_problems_of_all_members_are_listed_together_each_with_its_file(tmp_path: Path) -> None:
    good, bad = written(tmp_path, "a.json"), written(tmp_path, "b.json", colour="blue", names=1)
    gone = tmp_path / "gone.yaml"
    with pytest.raises(UsageError) as caught:
        plan_members([good, bad, gone], [("measure.warmup", -1)], 2)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5 and all(line.startswith(str(tmp_path)) for line in lines)
    assert sum(line.startswith(f"{bad}: ") for line in lines) == 3
    assert lines[0].startswith(f"{good}: command line: measure.warmup") and "gone" in lines[-1]


def test_what_is_refused_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = written(tmp_path, "a.json"), written(tmp_path, "b.json", colour="blue")
    other = written(tmp_path, "c.json", output={"folder": "x"})
    with pytest.raises(UsageError, match="colour"):
        begin_suite(SuiteRequest((good, bad), ()), 2)
    with pytest.raises(UsageError, match="a suite has one folder.*give one for all with -o"):
        begin_suite(SuiteRequest((good, other), ()), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


@pytest.mark.parametrize(("words", "told"), [
    ([], "give the sweep files"), (["a.json", "--force"], "--force is for"),
    (["a.json", "--resume", "x"], "leave sweep files and their flags away"),
    (["--resume", "x", "--iters", "3"], "leave sweep files and their flags away"),
])
def test_flags_that_contradict_each_other(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["suite", *words])
    assert isinstance(done.exception, UsageError) and told in str(done.exception)


def test_a_summary_is_not_written_over(tmp_path: Path) -> None:
    there = tmp_path / "results.json"
    check_output(None, force=False)
    check_output(there, force=False)
    there.touch()
    check_output(there, force=True)
    for path, told in ((there, "give --force"), (tmp_path, "is a folder"),
                       (tmp_path / "no" / "results.json", "its folder does not exist")):
        with pytest.raises(FileError, match=told):
            check_output(path, force=False)


def test_members_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    """The first begins from what the suite has kept, which is the same plan."""
    files = (written(tmp_path, "a.json"), written(tmp_path, "b.json"))
    begun = begin_suite(SuiteRequest(files, [("output.folder", str(tmp_path / "out"))],
                                tmp_path / "results.json"), 2)
    folder = Path(begun["folder"])
    assert (tmp_path / "out" / "latest").resolve() == folder
    kept = read_suite(folder)
    assert [one.folder for one in kept.members] == ["01-test", "02-test"]
    assert [one.status for one in kept.members] == [NOT_STARTED] * 2
    assert [one.counts for one in kept.members] == [not_counted(2)] * 2
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(
        json.dumps(suite_document(kept)))
    assert begun["todo"] == [(0, str(sweeps_folder(folder) / "01-test.json")),
                             (1, str(sweeps_folder(folder) / "02-test.json"))]


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_sweep_that_a_suite_keeps_is_the_same_plan(path: Path, tmp_path: Path) -> None:
    plan = make_plan(load_config(path, [("measure.warmup", 2)]), 2)
    folder = create_suite_folder(tmp_path, {"a": plan.config}).path
    assert make_plan(load_config(sweeps_folder(folder) / "a.json"), 2).plan_hash == plan.plan_hash


def test_which_members_of_a_suite_are_run_when_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "01-a").mkdir()
    (tmp_path / "01-a" / "plan.json").touch()
    stopped = not_counted(2) | {"failed": 1, "not_run": 1}
    done = not_counted(2) | {"failed": 2, "not_run": 0}
    write_suite(suite(member(RUNNING, counts=None), member(FINDINGS, counts=done),
                      member(FINDINGS, counts=stopped), member(folder="04-d")),
                tmp_path / SUITE_FILE)
    begun = begin_suite(SuiteRequest((), (), resume=tmp_path), 2)
    assert begun["todo"] == [(0, ""), (2, ""), (3, str(tmp_path / "sweeps" / "04-d.json"))]
    with pytest.raises(UsageError, match="of 2 ranks, this job has 4"):
        begin_suite(SuiteRequest((), (), resume=tmp_path), 4)
    with pytest.raises(UsageError, match=r"has no suite\.json"):
        begin_suite(SuiteRequest((), (), resume=tmp_path / "01-a"), 2)


def test_a_suite_that_goes_on_writes_over_its_own_summary_only(tmp_path: Path) -> None:
    """The same --output as before needs no --force, which would accept changed software, too."""
    write_suite(suite(member()), tmp_path / SUITE_FILE, tmp_path / "own.json")
    write_suite(replace(suite(member()), run_id="other"), tmp_path / "other.json")
    (tmp_path / "text.json").write_text("text")
    assert begin_suite(SuiteRequest((), (), tmp_path / "own.json", tmp_path), 2)["todo"]
    for name in ("other.json", "text.json"):
        with pytest.raises(FileError, match="is there already"):
            begin_suite(SuiteRequest((), (), tmp_path / name, tmp_path), 2)


def test_commands_for_a_run_name_the_members_of_a_suite(tmp_path: Path) -> None:
    write_suite(suite(member(), member(folder="02-b")), tmp_path / SUITE_FILE)
    (tmp_path / "02-b").mkdir()
    with pytest.raises(FileError, match="give that of one member: .*02-b$"):
        refuse_suite(tmp_path)
    with pytest.raises(FileError, match="hpcbench suite --resume"):
        is_fresh(tmp_path)
    refuse_suite(tmp_path / "02-b")


def test_a_quiet_suite_is_its_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = suite(member(OK), member(NOT_HERE, reasons=("no GPU",)))
    print_suite(found, tmp_path)
    usual = capsys.readouterr().out
    print_suite(found, tmp_path, Verbosity.QUIET)
    quiet = capsys.readouterr().out
    assert "no GPU" in usual and "suite.json" in usual
    assert "no GPU" not in quiet and "suite.json" not in quiet
    assert set(quiet.splitlines()) <= set(usual.splitlines()) and NOT_HERE in quiet


def test_a_suite_that_was_stopped_states_how_to_go_on_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    """Without a folder --resume means results/latest, which is another's after -o."""
    print_suite(replace(suite(member()), stopped_by="SIGINT"), tmp_path)
    assert f"hpcbench suite --resume {tmp_path}" in capsys.readouterr().out


def test_what_a_member_ended_with_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("disk full\n  All is there.")
    assert capsys.readouterr() == ("", "hpcbench: disk full\n  All is there.\n")
    print_outcome(member(ERROR, folder="02-b"))
    assert capsys.readouterr().err.startswith("hpcbench: 02-b: error: it ended with a message")


def test_a_verbose_suite_names_the_files_of_the_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    files = (written(tmp_path, "a.json"), written(tmp_path, "b.json"))
    plan_members(files, [("measure.warmup", 2)], 2, Verbosity.VERBOSE)
    told = capsys.readouterr()
    assert all(f"sweep file: {file} " in told.err for file in files) and told.out == ""
    assert "override: measure.warmup = 2" in told.err


@pytest.mark.parametrize("text", [
    "", "[]", "{}", "null", '{"schema": "hpcbench.suite"}',
    '{"schema": "hpcbench.suite", "schema_version": 1}',
    '{"schema": "hpcbench.suite", "schema_version": 2}'])
def test_a_file_that_is_no_suite(tmp_path: Path, text: str) -> None:
    (tmp_path / SUITE_FILE).write_text(text)
    with pytest.raises(FileError, match=SUITE_FILE):
        read_suite(tmp_path)


@given(st.lists(st.sampled_from(sorted(MEMBER_STATUSES)), min_size=1, max_size=4))
def test_a_suite_is_read_as_it_was_written(statuses: list[str]) -> None:
    from tempfile import TemporaryDirectory

    written_suite = suite(*(member(one, reasons=("é",), summary={"a": [1]}) for one in statuses))
    with TemporaryDirectory() as folder:
        write_suite(written_suite, Path(folder) / SUITE_FILE)
        assert read_suite(Path(folder)) == written_suite
    assert (suite_exit_code(written_suite.members) == ExitCode.OK) == (
        OK in statuses and {*statuses} <= {OK, NOT_HERE})


@pytest.mark.parametrize(("code", "found", "status"), [
    (0, summary("ok", "skipped"), OK), (3, summary("ok", "not_run"), INCOMPLETE),
    (1, summary("ok", "wrong"), FINDINGS), (1, summary("skipped", "skipped"), NOT_HERE),
    (1, summary("skipped", "not_run"), INCOMPLETE), (1, summary("ok", scope="case"), FINDINGS),
    (1, summary("ok"), MISSED),
    (1, summary("ok", "skipped"), MISSED), (1, summary("skipped", scope="rank"), FINDINGS),
    (1, summary("skipped", "failed"), FINDINGS)])
def test_the_status_of_a_member(code: int, found: dict[str, Any], status: str) -> None:
    assert status_of(code, found) == status


def test_what_became_of_a_member(tmp_path: Path) -> None:
    failed = ended(member(counts=None), tmp_path, 2, "disk full", 1.0)
    assert (failed.status, failed.reasons, failed.exit_code) == (ERROR, ("disk full",), 2)
    assert failed.counts is None  # cases may have run
    assert ended(member(counts=None), tmp_path / "none", 2, "no eth7", 1.0).counts == not_counted(2)
    (tmp_path / "summary.json").write_text(json.dumps(summary("skipped", "skipped")))
    again = ended(failed, tmp_path, 1, "", 2.0)
    assert (again.status, again.reasons) == (NOT_HERE, ("why skipped",))
    assert again.duration_s == 3.0 and again.counts == not_counted(2) | {
        "skipped": 2, "not_run": 0}


@pytest.mark.parametrize(("statuses", "code"), [
    ((OK, NOT_HERE), 0), ((NOT_HERE, NOT_HERE), 1), ((OK, FINDINGS, INCOMPLETE), 1),
    ((OK, INCOMPLETE), 3), ((OK, NOT_STARTED), 3), ((NOT_HERE, NOT_STARTED), 3),
    ((FINDINGS, ERROR), 2), ((OK, MISSED), 1), ((OK, RUNNING), 3)])
def test_the_exit_code_of_a_suite(statuses: tuple[str, ...], code: int) -> None:
    assert suite_exit_code([member(one, exit_code=None) for one in statuses]) == code
