"""What hpcbench.measure saves is a results file, to which each run of a program adds a launch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcbench
from hpcbench.answers.compare import compare_sides, scope_of
from hpcbench.answers.verdict import AMBER, RED, verdict_of
from hpcbench.api import saved
from hpcbench.errors import FileError
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import new_results, open_results
from hpcbench.trace.schema import SAMPLE_COLUMNS, Noise
from hpcbench.views.columns import clock_text
from hpcbench.views.metric_tables import any_results
from hpcbench.views.table import WithInterval
from launcher import ROOT
from results_factory import all_ok, sweep

PROGRAM = """
import sys, hpcbench
def step(): return sum(range(300))
for text in sys.argv[2:]:
    found = hpcbench.measure(step, save=sys.argv[1], **eval(text))
    print(found.median)
"""


def program(path: Path, *options: str) -> list[float]:
    """Run a program that measures with these options; return the medians in s."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path), *options], cwd=ROOT, text=True,
                          capture_output=True, timeout=60, check=True)
    return [float(line) for line in done.stdout.split()]


def read(path: Path) -> Results:
    with open_results(path) as file:
        for item in file.results.cases:
            assert file.samples(item.case.case_id) is not None
        return file.results


def step() -> None:
    sum(range(300))  # longer than two ticks of any clock, below which a median is a finding


FAST = "{'iterations': 20, 'warmup': 1}"
CHECKED = "{'iterations': 8, 'check': lambda: False, 'name': 'other'}"


def test_a_file_has_what_was_measured(tmp_path: Path) -> None:
    first, _ = program(tmp_path / "new/own.h5", FAST, CHECKED)
    results = read(tmp_path / "new/own.h5")
    own, other = results.cases
    assert own.statistics is not None and own.statistics.median_s == pytest.approx(first)
    assert (own.case.workload.name, own.case.iterations, own.n_wrong) == ("step", 20, None)
    assert (other.status, other.statistics) == ("wrong", None) and other.n_wrong
    assert results.run.name == "own" and results.run.environment["cpu"]
    assert not any("  " in item.case.label for item in results.cases)
    assert not results.lacking_kinds


def test_what_a_call_states_and_its_rate_are_columns(tmp_path: Path) -> None:
    found = hpcbench.measure(step, save=tmp_path, iterations=12, bytes=4096, flops=2e3)
    hpcbench.measure(step, save=tmp_path, iterations=12, name="other")
    own, other = (one.metrics for one in hpcbench.load(tmp_path).cases)
    assert (own["call_bytes"], own["call_flops"]) == (4096, 2000)
    assert own["call_bytes_per_s"] == found.bandwidth == 4096 / found.median
    assert own["call_flops_per_s"] == pytest.approx(found.tflops * 1e12)
    assert not [name for name in other if name.startswith("call_")]


def test_the_noise_before_each_launch_is_in_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file keeps the worst of all launches; one launch without makes it unknown."""
    quiet = Noise(0.2, 0, 0.0, 0, 50.0, 2000.0)
    states = []
    for share in (0.0, 0.8, 0.3):
        monkeypatch.setattr(saved, "look_for_detours", lambda seconds, share=share: replace(
            quiet, stolen_share=share))
        monkeypatch.setattr(saved.psutil, "Process", lambda share=share: SimpleNamespace(
            create_time=lambda: share))
        hpcbench.measure(step, save=tmp_path, iterations=12, check=lambda: True)
        results = read(tmp_path)
        states.append([(one.code, one.share) for one in results.findings])
    assert states == [[], [("HB144", 0.8)], [("HB144", 0.8)]]
    assert verdict_of(results).state == RED
    earlier = replace(results, findings=(), plan=replace(results.plan, config={"processes": {}}))
    assert verdict_of(earlier).state == AMBER
    with new_results(tmp_path / "earlier.h5") as writer, open_results(
            tmp_path / "results.h5") as file:
        for item in results.cases:
            writer.add_samples(item.case, file.samples(item.case.case_id))
        writer.finish(replace(earlier, plan=replace(results.plan, config={
            "processes": results.plan.config["processes"]})))
    monkeypatch.setattr(saved, "look_for_detours", lambda seconds: quiet)
    hpcbench.measure(step, save=tmp_path / "earlier.h5", iterations=12, check=lambda: True)
    config = read(tmp_path / "earlier.h5").plan.config
    assert config["measure"] == {"noise_check_s": 0}
    assert [*config["noise"].values()] == [[None, None, []]]


def test_each_run_of_the_program_is_a_launch(tmp_path: Path) -> None:
    medians = [program(tmp_path, FAST, FAST)[1] for _ in range(2)]
    results = read(tmp_path)
    (item,) = results.cases
    assert results.plan.launches == 2 and item.timing is not None
    assert item.timing.launch_medians_s == pytest.approx(medians)
    assert "repeats" not in item.timing.quality
    again = program(tmp_path / "again", FAST) and program(tmp_path / "again", FAST)
    assert again  # each process of a program is a job of its own
    (case,) = compare_sides([str(tmp_path), str(tmp_path / "again")], 0.03).comparisons[0].cases
    assert (case.launches, case.jobs, scope_of([case])) == ((2, 2), (2, 2), "")
    assert "--launches" not in case.repeated_by
    program(tmp_path, CHECKED)
    wrong: list[CaseResult] = [one for one in read(tmp_path).cases if one.status == "wrong"]
    before = [one.n_wrong for one in wrong]
    program(tmp_path, "{'iterations': 9}")
    after = read(tmp_path)
    assert [one.n_wrong for one in after.cases if one.status == "wrong"] == before
    assert len(after.cases) == 3  # another count is another case


def refused(tmp_path: Path, save: Any, **options: Any) -> str:
    calls: list[int] = []

    def counted() -> None:
        calls.append(1)

    with pytest.raises((TypeError, ValueError, FileError)) as caught:
        hpcbench.measure(counted, save=save, **options)
    assert not calls and "\n" not in str(caught.value)
    return str(caught.value)


def test_other_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.h5"
    with new_results(path) as writer:
        writer.finish(all_ok(sweep()))
    before = path.read_bytes()
    assert "hpcbench run" in refused(tmp_path, tmp_path)
    assert path.read_bytes() == before
    (tmp_path / "damaged.h5").write_bytes(before[:-100])
    assert "damaged.h5" in refused(tmp_path, tmp_path / "damaged.h5")
    assert "path" in refused(tmp_path, 3)
    assert "name" in refused(tmp_path, tmp_path / "x.h5", name="<lambda>")
    hpcbench.measure(step, iterations=6, save=tmp_path / "own.h5")
    monkeypatch.setattr(saved.platform, "python_version", lambda: "3.99")
    assert "3.99" in refused(tmp_path, tmp_path / "own.h5")


def test_a_measurement_that_is_repeated_here_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        found = hpcbench.measure(step, iterations=10, save=tmp_path, bytes=3e6)
    (item,) = read(tmp_path).cases
    (table,) = any_results("t", [item])
    cells = dict(zip([one.name for one in table.columns], table.rows[0].cells, strict=True))
    rate = cells["bytes"]
    assert (rate.value if isinstance(rate, WithInterval) else rate) == pytest.approx(
        found.bandwidth)
    assert cells["flops"] is None
    assert item.statistics is not None and item.statistics.median_s == found.median
    assert item.timing is not None and len(item.timing.launch_medians_s) == 1


def test_processes_that_measure_in_turn_have_one_launch_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two got a second launch."""
    medians = []
    for process in (1, 2, 1):
        monkeypatch.setattr(saved.os, "getpid", lambda of=process: of)
        monkeypatch.setattr(saved.psutil, "Process", lambda: SimpleNamespace(create_time=float))
        medians.append(hpcbench.measure(step, iterations=8, save=tmp_path).median)
    results = read(tmp_path)
    (item,) = results.cases
    assert item.timing is not None and results.jobs_of(item) == 2
    assert item.timing.launch_medians_s == pytest.approx(medians[1:])


def test_a_wrong_launch_that_was_replaced_is_gone(tmp_path: Path) -> None:
    right, wrong = (f"{{'iterations': 8, 'check': lambda: {value}, 'name': 'own'}}"
                    for value in (True, False))
    program(tmp_path, right)
    program(tmp_path, wrong, right)
    program(tmp_path, right)
    (item,) = read(tmp_path).cases
    assert (item.status, item.n_wrong) == ("ok", 0)
    assert item.timing is not None and len(item.timing.launch_medians_s) == 3
    program(tmp_path, wrong)
    program(tmp_path, right)
    (item,) = read(tmp_path).cases
    assert item.status == "wrong" and item.statistics is None


def test_programs_that_measure_at_the_same_time_all_have_a_launch(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), FAST]
    started = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0]
    (item,) = read(tmp_path).cases
    assert item.timing is not None and len(item.timing.launch_medians_s) == 3


def test_wrong_elements_are_counted_by_elements_and_keep_their_text(tmp_path: Path) -> None:
    """Also after another case and a right launch: the file is written anew each time."""
    found = hpcbench.measure(step, check=lambda: 3, iterations=10, name="bad", save=tmp_path)
    bad = [read(tmp_path).cases[0]]
    hpcbench.measure(step, iterations=6, name="other", save=tmp_path)
    bad.append(read(tmp_path).cases[0])
    total = 3 * len(found.wrong)
    for item in bad:
        assert (item.status, item.n_wrong, item.blamed_rank) == ("wrong", total, 0) and total > 3
        assert f"({total} in" in item.reason and item.detail["0"]["wrong"] in item.reason


def test_launches_with_one_wrong_rank_of_two_are_read_as_written(tmp_path: Path) -> None:
    rows = np.array([[10, 20, *[0] * (len(SAMPLE_COLUMNS) - 2)]] * 3)
    case = saved.identified(replace(
        saved_case(tmp_path), case_id="", world_size=2, iterations=3, min_iterations=3, warmup=0))
    record = saved.program_record(case, rows, "planned")
    wrong = saved.with_checks({0: record, 1: record}, [(0, ""), (6, "the check found 6")])
    path, kept = tmp_path / "two.h5", []
    for other in (case, saved.identified(replace(case, case_id="", iterations=4))):
        saved.append(path, other, wrong, [])
        kept.append(read(path))
    for results in kept:
        item = results.cases[0]
        assert (item.n_wrong, item.blamed_rank, set(item.detail)) == (6, 1, {"1"})
        assert item.reason.startswith("rank 1: ")
        assert [one.code for one in results.findings if case.case_id in one.message] == ["HB126"]


def test_only_the_compared_cases_are_causes_of_a_change(tmp_path: Path) -> None:
    """A case on three ranks beside it made a file one of three ranks."""
    rows = np.array([[at, at + 10, *[0] * (len(SAMPLE_COLUMNS) - 2)] for at in (10, 50, 90)])
    sides = {"sa": (2,), "sb": (2, 3)}
    for name, sizes in sides.items():
        for size in sizes:
            case = saved.identified(replace(
                saved_case(tmp_path), case_id="", world_size=size, iterations=3, min_iterations=3,
                warmup=0))
            record = saved.program_record(case, rows, "fixed")
            saved.append(tmp_path / f"{name}.h5", case, dict.fromkeys(
                range(size), replace(record, n_wrong=0)), [])
    found = compare_sides([str(tmp_path / f"{name}.h5") for name in sides], 0.03)
    assert len(found.comparisons[0].cases) == 1
    assert "ranks" not in [one.key for one in found.differences]
    results = read(tmp_path / "sb.h5")
    assert clock_text(results, results.cases) == "clock: one for all ranks"


def saved_case(folder: Path) -> Case:
    hpcbench.measure(step, check=lambda: True, iterations=6, save=folder / "own.h5")
    return read(folder / "own.h5").cases[0].case
