"""From a real results.h5 to every file and figure, and the listing of what there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcbench import run
from hpcbench.__main__ import main
from hpcbench.config import axes as names
from hpcbench.errors import FileError
from hpcbench.kinds.training.plan.spec import strategies
from hpcbench.operations.models import MODELS
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import new_results, open_results
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import by_rule, print_listing
from hpcbench.report.plots import plot_file
from hpcbench.report.results_lines import closing_lines
from hpcbench.report.summary import Work, write_reports
from hpcbench.texts import Verbosity
from hpcbench.views.table import MODES, USUAL_FOLDS
from results_factory import (
    MemorySamples,
    make_case,
    make_results,
    mixed_results,
    not_ok,
    ok,
    sweep,
)


def stored(folder: Path, results: Results) -> Path:
    path, samples = folder / "results.h5", MemorySamples(results)
    with new_results(path) as writer:
        for item in results.cases:
            found = samples.samples(item.case.case_id)
            if found is not None:
                writer.add_samples(item.case, found)
        writer.finish(results)
    return path


def test_every_report_of_a_run(tmp_path: Path) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    written = [str(path.relative_to(tmp_path)) for path in write_reports(results, tmp_path, ())]
    assert written == ["summary.json", "summary.csv", "plots/all_reduce.png",
                       "plots/all_gather.png", "plots/rank_iteration.png", "report.html"]
    assert all((tmp_path / name).is_file() for name in written)


def test_a_report_beside_the_plots_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where its process dies, or cannot be: it is written again, with a note."""
    @contextmanager
    def dying(_: object) -> Iterator[Callable[[], str | None]]:
        with run._in_fork(lambda: os._exit(3)) as finish:
            yield finish

    @contextmanager
    def lacking(work: Work) -> Iterator[Callable[[], str | None]]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", Mock(side_effect=BlockingIOError("no process is left")))
            with run._in_fork(work) as finish:
                yield finish

    pages = []
    for beside in (None, run._in_fork, dying, lacking):
        stored(tmp_path, mixed_results())
        write_reports(mixed_results(), tmp_path, (), Verbosity.QUIET, "name", beside)
        pages.append((tmp_path / "report.html").read_bytes())
        (tmp_path / "report.html").unlink()
    assert len({*pages}) == 1
    dead, lacked = capsys.readouterr().err.splitlines()
    assert "exit code 3" in dead and "no process is left" in lacked


def test_no_plots_if_not_asked_for_or_nothing_is_ok(tmp_path: Path) -> None:
    results = make_results((not_ok(make_case(), "failed", "killed"),))
    stored(tmp_path, results)
    assert len(write_reports(results, tmp_path, ())) == 3
    plotted = mixed_results()
    without = replace(plotted, plan=replace(plotted.plan, config={
        **plotted.plan.config, "output": {"plots": False, "report": False}}))
    stored(tmp_path, without)
    assert len(write_reports(without, tmp_path, ())) == 2
    assert not (tmp_path / "plots").exists()


def test_advice_is_offered_only_where_something_was_measured(tmp_path: Path) -> None:
    failed = make_results((not_ok(make_case(), "failed", "killed"),))
    assert "hpcbench advise" in str([*closing_lines(mixed_results(), tmp_path)])
    assert "hpcbench advise" not in str([*closing_lines(failed, tmp_path)])


def test_what_is_drawn_is_announced_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    write_reports(results, tmp_path, (), Verbosity.NORMAL)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"drawing 3 plots in {tmp_path / 'plots'}",
                    f"writing {tmp_path / 'report.html'}"]


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["hpcbench", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = mixed_results()
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        stored(tmp_path / name, replace(results, run=replace(results.run, run_id=name)))
    target = tmp_path / "report.md"
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(target)) == 0
    assert target.read_text("utf-8").startswith("# ")
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(target)) == 2
    assert "--force" in capsys.readouterr().err
    page = tmp_path / "after" / "report.html"
    assert [command(monkeypatch, "report", str(tmp_path / "after")) for _ in range(2)] == [0, 0]
    for edited in (page.read_bytes().replace(b"Findings", b"My view"), b"mine"):
        page.write_bytes(edited)
        assert command(monkeypatch, "report", str(page.parent)) == 2
        assert page.read_bytes() == edited
    both = tmp_path / "both.html"
    assert command(monkeypatch, "report", "--source", str(tmp_path), "-o", str(both)) == 0
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(both)) == 2
    text = both.read_text("utf-8")
    assert text.index("Differences") < text.index('id="run-1-verdict"') < text.index(
        'id="run-2-verdict"')


def test_reports_are_the_same_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    print_results(results, tmp_path)
    first = capsys.readouterr().out
    with open_results(tmp_path) as file:
        print_results(file.results, tmp_path)
    assert capsys.readouterr().out == first


def test_plot_file_takes_file_or_folder_and_an_output_folder(tmp_path: Path) -> None:
    cases = sweep(("all_reduce",), ("gloo",))
    path = stored(tmp_path, make_results(tuple(ok(case) for case in cases)))
    assert [found.parent for found in plot_file(path, None, "png")] == [tmp_path / "plots"] * 2
    assert plot_file(tmp_path, None, "png") == plot_file(path, None, "png")
    elsewhere = plot_file(path, tmp_path / "a" / "b", "svg")
    assert [found.name for found in elsewhere] == ["all_reduce.svg", "rank_iteration.svg"]


def test_nothing_to_plot_is_reported(tmp_path: Path) -> None:
    path = stored(tmp_path, make_results((not_ok(make_case(), "skipped", "no nccl"),)))
    with pytest.raises(FileError, match="no case is ok.*hpcbench show"):
        plot_file(path, None, "png")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["results.h5"]


def test_listing_without_a_probe_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(MODES) == names.MODES == tuple(USUAL_FOLDS)
    print_listing(None, probe=False)
    text = capsys.readouterr().out
    for word in ("all_to_all", "bf16 (2 B)", "avg", "gloo", "nccl", "ucc/tl/ucp", "barrier_start",
                 "pipelined", "first rank's start", "shuffled", "not probed"):
        assert word in text
    for name in [*MODELS, *(spec.name for spec in strategies())]:
        assert f"\n  {name} " in text
    assert "1,313,626,112" in text


def test_types_that_are_skipped_for_one_reason_are_all_named() -> None:
    cases = {case.workload.dtype: case for case in sweep(
        ("all_reduce",), ("mpi",), (8,), dtypes=("fp16", "bf16", "fp32"))}
    lacks = [(f"mpi: MPICH 4.0.2 has no datatype for {dtype}, so it cannot", cases[dtype])
             for dtype in ("fp16", "bf16", "fp16")]
    needs = [(f"needs {number} bytes", cases["fp32"]) for number in (8, 16)]
    assert {reason: len(each) for reason, each in by_rule([*lacks, *needs]).items()} == {
        "mpi: MPICH 4.0.2 has no datatype for fp16 and bf16, so it cannot": 3,
        "needs 8 bytes (and 1 more reason like it)": 2}
