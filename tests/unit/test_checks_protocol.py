"""Every check of the measurement protocol, provoked: clocks, starts, stops, order, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import ExitCode
from hpcbench.plan.case import Plan
from hpcbench.plan.order import shuffled
from hpcbench.reduce.checks import declared_peak
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import Finding, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.clock import ClockCheck, ClockModel
from hpcbench.trace.schema import (
    HAS_NO_CHECK,
    SAMPLE_COLUMNS,
    Flag,
    Header,
    Record,
    Samples,
    no_samples,
)
from synthetic import (
    BASE_NS,
    CASE_NS,
    Notes,
    make_case,
    make_plan,
    plan_of,
    seen_by,
    sync_note,
    with_rows,
    write_synthetic_run,
)

START, END, ENQUEUE, DEVICE, FLAGS = range(len(SAMPLE_COLUMNS))
PLAN = make_plan(n_cases=2, world_size=3, iterations=20, mode="isolated")
BAD = PLAN.cases[1].case_id


BATCHES = [make_case(index, world_size=3, iterations=20, mode="pipelined", batch=5)
           for index in range(2)]
OF_BATCHES = plan_of([BATCHES[0], replace(BATCHES[1], case_id=BAD)], 3)
"""Samples of several calls; single ones stand at both ends."""
AUTO = {"world_size": 3, "min_iterations": 5, "iterations": 20}
UNTIL_KNOWN = plan_of([make_case(0, **AUTO), replace(make_case(1, **AUTO), case_id=BAD)], 3)
Edit = Callable[[int, Record, Samples], dict[str, Any] | None]


def of_groups(**groups: int) -> Plan:
    """Four ranks in two groups."""
    case = make_case(1, world_size=4, iterations=20, mode="isolated")
    work = replace(case.workload, groups=2, **groups)
    return plan_of([make_case(0, world_size=4, iterations=20),
                    replace(case, workload=work, case_id=BAD)], 4)


def reduced(folder: Path, edit: Edit, plan: Plan = PLAN, **options: Any) -> Results:
    """Reduce a run; ``edit`` works on samples of the second case and returns changed fields."""
    def change(rank: int, record: Record) -> Iterable[Record]:
        samples = record.samples.rows()
        fields = edit(rank, record, samples) if record.case_id == BAD else None
        return (replace(with_rows(record, samples), **fields or {}),)

    write_synthetic_run(folder / "run", plan, change=change, **options)
    return reduce_folder(folder / "run")


def only(results: Results, code: str) -> list[Finding]:
    return [item for item in results.findings if item.code == code]


def assert_rejected(results: Results, code: str, *parts: str) -> None:
    """The first case is untouched, the second failed with this code and has no numbers."""
    (finding,) = only(results, code)
    assert finding.scope == "case" and BAD in finding.message
    assert all(part in finding.message for part in parts), finding.message
    good, bad = results.cases
    assert good.status == "ok" and good.statistics is not None
    assert (bad.status, bad.statistics, bad.timing) == ("failed", None, None)
    assert bad.reason.startswith(code)
    assert exit_code(results) is ExitCode.FINDINGS


def assert_noted(results: Results, code: str, *parts: str) -> None:
    """Nothing was left out, and one finding tells."""
    (finding,) = only(results, code)
    assert finding.scope == "note"
    assert all(part in finding.message for part in parts), finding.message
    assert [item.status for item in results.cases] == ["ok"] * len(results.cases)
    assert exit_code(results) is ExitCode.OK


def test_hb116_rows_of_cases_that_stop_by_themselves(tmp_path: Path) -> None:
    auto = {"min_iterations": 5, "iterations": 20}
    plan = plan_of([make_case(0, world_size=3, **auto), make_case(1, world_size=3, **auto)], 3)

    write_synthetic_run(tmp_path / "run", plan, change=lambda rank, record: [
        with_rows(record, record.samples.rows()[:9])])
    results = reduce_folder(tmp_path / "run")
    assert [item.statistics and item.statistics.n for item in results.cases] == [7, 7]
    assert {item.code for item in results.findings} == {"HB134"}  # too few for p5
    write_synthetic_run(tmp_path / "two", plan, change=lambda rank, record: [
        with_rows(record, record.samples.rows()[:9 + (rank == 1)])])
    assert all("9 on rank 0, 2, 10 on rank 1, planned at most 22" in item.reason
               for item in reduce_folder(tmp_path / "two").cases)


def flagged(row: int, flags: Flag) -> Edit:
    def edit(rank: int, record: Record, samples: Samples) -> None:
        assert len(samples) == 24
        samples[row, FLAGS] = flags if rank == 1 else samples[row, FLAGS]
    return edit


def lasting(column: int, extra_ns: int) -> Edit:
    """A part of rank 1's samples, of which one lasts so much longer than the whole of it."""
    def edit(rank: int, record: Record, samples: Samples) -> None:
        if rank == 1:
            samples[:, column] = 5000
            samples[9, column] = samples[9, END] - samples[9, START] + extra_ns
    return edit


def later(*ranks: int) -> Edit:
    """Ranks that are later than the others all the time."""
    def edit(rank: int, record: Record, samples: Samples) -> None:
        samples[:, :2] += 100_000 * (rank in ranks)
    return edit


def enters_late(rank: int, record: Record, samples: Samples) -> None:
    """Rank 2 enters after the others have left."""
    if rank == 2:
        samples[7, :2] += 100_000


def stopped(*reasons: str) -> Edit:
    return lambda rank, record, samples: {"stop_reason": reasons[rank]}


@pytest.mark.parametrize(("code", "plan", "edit", "parts"), [
    ("HB116", OF_BATCHES, flagged(0, Flag.WARMUP), (
        "rank 1: 3 warm-ups and 20 timed iterations of 24", "planned are 3")),
    ("HB116", OF_BATCHES, flagged(23, Flag(0)), ("3 warm-ups and 21 timed iterations of 24",)),
    ("HB116", OF_BATCHES, flagged(5, Flag.SINGLE), ("3 warm-ups and 19 timed iterations of 24",)),
    ("HB124", PLAN, enters_late, ("rank 0 iteration 7: left all_reduce", "before rank 2")),
    ("HB124", of_groups(), enters_late, ("rank 3", "before rank 2")),
    ("HB124", of_groups(group_stride=2), enters_late, ("rank 0", "before rank 2")),
    ("HB129", PLAN, lasting(DEVICE, 1200), ("rank 1 iteration 9",)),
    ("HB129", PLAN, lasting(ENQUEUE, 1), ("rank 1 iteration 9",)),
    ("HB133", UNTIL_KNOWN, stopped("converged", "budget", "converged"),
     ("converged on rank 0, 2, budget on rank 1",)),
    ("HB133", PLAN, stopped(*["budget"] * 3), ("the reason 'budget'", "planned are 20")),
    ("HB133", PLAN, stopped(*["bored"] * 3), ("the reason 'bored'",)),
])
def test_samples_that_cannot_be_reject_their_case(
    tmp_path: Path, code: str, plan: Plan, edit: Edit, parts: tuple[str, ...],
) -> None:
    assert_rejected(reduced(tmp_path, edit, plan), code, *parts)


@pytest.mark.parametrize(("plan", "edit"), [
    (of_groups(), later(2, 3)), (of_groups(group_stride=2), later(1, 3)),  # a group waits for none
    (PLAN, lasting(DEVICE, 900)), (PLAN, lasting(ENQUEUE, 0))])
def test_samples_that_can_be_are_no_finding(tmp_path: Path, plan: Plan, edit: Edit) -> None:
    assert reduced(tmp_path, edit, plan).findings == ()


def test_hb116_an_operation_without_a_check_has_no_single_calls(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> dict[str, Any]:
        rows = with_rows(record, samples[1:-1]).samples
        return {"samples": rows, "n_wrong": -1, "communicator_ns": 1,
                "detail": {**record.detail, HAS_NO_CHECK: True}}

    results = reduced(tmp_path, edit, OF_BATCHES)
    checked, unchecked = results.cases
    assert checked.statistics and unchecked.statistics and not results.findings
    assert (unchecked.status, unchecked.statistics.n) == ("ok", checked.statistics.n)
    assert unchecked.timing and unchecked.timing.first_call_s is None  # the first row is 5 calls


def on_node(header: Header) -> Header:
    """Every rank on a node of its own."""
    return replace(header, node=f"node{header.rank}", hostname=f"host{header.rank}", local_rank=0)


BEFORE_NS, AFTER_NS = BASE_NS - CASE_NS, BASE_NS + 100 * CASE_NS
OTHER = ClockModel(BASE_NS, 10e-6, 5_000_000, 200.0, 0.0, 3.0, 0, 50, 50)


def compared(
    model: ClockModel, at_ns: Iterable[int] = (BEFORE_NS, AFTER_NS),
    check: Callable[[int], ClockCheck | None] = lambda local_ns: None,
    silent: frozenset[int] = frozenset(),
) -> Notes:
    """Notes of clocks compared at these times; all ranks but 0 are off as ``model`` says."""
    def notes(rank: int) -> Iterable[tuple[str, dict[str, Any]]]:
        for global_ns in at_ns if rank not in silent else ():
            local_ns = model.to_local(global_ns)
            known = replace(model, t_ref_ns=local_ns, offset_ns=model.offset_at(local_ns))
            yield (sync_note(known, f"host{rank}", 3, check(local_ns)) if rank else
                   sync_note(ClockModel.identity(global_ns), "host0", 3))
    return notes


def seen(rank: int, record: Record, samples: Samples) -> dict[str, Any] | None:
    """The record of a rank as its own clock has it."""
    if rank == 0:
        return None
    own = seen_by(OTHER, with_rows(record, samples))
    return {"samples": own.samples, "begin_ns": own.begin_ns, "end_ns": own.end_ns}


def several_clocks(folder: Path, notes: Notes, edit: Edit = seen) -> Results:
    """Reduce two cases of three ranks on three nodes whose clocks differ."""
    def change(rank: int, record: Record) -> Iterable[Record]:
        samples = record.samples.rows()
        use = edit if record.case_id == BAD else seen
        fields = use(rank, record, samples) or {}
        return (replace(with_rows(record, samples), **fields),)

    write_synthetic_run(folder / "run", PLAN, change=change, notes=notes, headers=on_node)
    return reduce_folder(folder / "run")


def folds(results: Results) -> list[str]:
    return [item.timing.fold for item in results.cases if item.timing]


def test_hb121_no_clock_model(tmp_path: Path) -> None:
    results = several_clocks(tmp_path, compared(OTHER, silent=frozenset({2})))
    assert_noted(results, "HB121", "rank 2: no clock model", "several clocks")
    assert folds(results) == ["local_max"] * 2
    timing = results.cases[0].timing
    assert timing is not None and timing.quality == ("clock_unreliable",)
    assert timing.clock_bound_s is timing.last_in_s is timing.imbalance_s is None


def test_hb121_not_between_two_synchronisations(tmp_path: Path) -> None:
    between = BASE_NS + CASE_NS // 2  # within the first case
    results = several_clocks(tmp_path, compared(OTHER, (BEFORE_NS, between)))
    assert_noted(results, "HB121", "2 cases were not between two", PLAN.cases[0].label,
                 "rank 0-2", "extrapolated")
    assert folds(results) == ["global"] * 2
    assert only(several_clocks(tmp_path / "whole", compared(OTHER)), "HB121") == []


def test_one_clock_needs_no_model(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "one", PLAN)
    assert reduce_folder(tmp_path / "one").findings == ()


def test_hb122_clock_check_beyond_its_bounds(tmp_path: Path) -> None:
    results = several_clocks(tmp_path, compared(
        OTHER, check=lambda local_ns: ClockCheck(local_ns, 41_000.0, 300.0)))
    found = only(results, "HB122")
    assert ["rank 1: the clock was found 41000 ns off" in found[0].message,
            "rank 2:" in found[1].message, "in 2 of 2 checks" in found[1].message] == [True] * 3
    assert exit_code(results) is ExitCode.OK
    assert folds(results) == ["local_max"] * 2  # the error counts as the bound
    assert results.clocks is not None and results.clocks.check_error_s == 41e-6
    sound = several_clocks(tmp_path / "sound", compared(
        OTHER, check=lambda local_ns: ClockCheck(local_ns, 450.0, 300.0)))
    assert sound.findings == () and folds(sound) == ["global"] * 2


def test_hb123_clock_that_was_set(tmp_path: Path) -> None:
    steep = replace(OTHER, slope=300e-6)
    results = several_clocks(tmp_path, compared(steep))
    assert ["rank 1: the clock drifts 300 ppm" in item.message
            for item in only(results, "HB123")] == [True, False]
    assert exit_code(results) is ExitCode.OK and folds(results) == ["local_max"] * 2


def test_hb124_between_clocks_it_may_be_the_clocks(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> dict[str, Any] | None:
        enters_late(rank, record, samples)
        return seen(rank, record, samples)

    results = several_clocks(tmp_path, compared(OTHER), edit)
    assert_noted(results, "HB124", "rank 0 iteration 7", "before rank 2", "clocks")
    assert folds(results) == ["global", "local_max"]


@pytest.mark.parametrize("work", [
    {"collective": "broadcast", "op": None, "root": 0}, {"collective": "all_gather", "op": None,
                                                          "split": "zero"}])
def test_ranks_that_do_not_need_all_others_may_leave(
    tmp_path: Path, work: Mapping[str, Any]
) -> None:
    good, bad = PLAN.cases
    plan = replace(PLAN, cases=(good, replace(bad, workload=replace(bad.workload, **work))))
    assert reduced(tmp_path, enters_late, plan).findings == ()


def test_hb125_late_starts(tmp_path: Path) -> None:
    def late(rank: int, record: Record, samples: Samples) -> None:
        rows = np.array([2, 3, 5, 8, 9, 12, 14, 15, 17, 18, 21])[:10 + (rank == 1)]
        samples[rows, FLAGS] |= Flag.LATE_START * (rank > 0)
        samples[rows, 1] += 2_000

    results = reduced(tmp_path, late)
    assert_noted(results, "HB125", PLAN.cases[1].label, "in 55 %", "see what else runs")
    timing = results.cases[1].timing
    assert timing is not None and timing.n_late == 11 and timing.quality[0] == "late_starts"


@pytest.mark.parametrize(("hardware", "told"), [
    ({"link_peaks": {"slow": 0.5e-3}}, True), ({"link_peaks": {"slow": 0.5e-3, "fast": 1}}, False),
    ({"link_peaks": {}}, False), ({"network_bandwidth_gbps": 1e-6}, False)])
def test_hb128_more_than_the_hardware_can(
    tmp_path: Path, hardware: Mapping[str, Any], told: bool
) -> None:
    """16 B in some 20 us are about 0.001 GB/s; on one node the network does not count."""
    plan = replace(PLAN, config={**PLAN.config, "hardware": hardware})
    results = reduced(tmp_path, lambda rank, record, samples: None, plan)
    messages = [item.message for item in only(results, "HB128")]
    assert ["more than the 0.0005 GB/s" in text for text in messages] == [True] * 2 * told
    assert exit_code(results) is ExitCode.OK


def test_the_peak_between_nodes_is_the_networks() -> None:
    case, hardware = make_case(world_size=4), {"network_bandwidth_gbps": 80}
    assert declared_peak(case, dict.fromkeys(range(4), "a"), hardware) is None
    assert declared_peak(case, {0: "a", 1: "b", 2: "c", 3: "d"}, hardware) == pytest.approx(10)
    two_nodes = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert declared_peak(case, two_nodes, hardware) == pytest.approx(10 * (3 / 4) / (1 / 2))
    grouped = replace(case, workload=replace(case.workload, groups=2))
    assert declared_peak(grouped, two_nodes, hardware) is None
    assert declared_peak(grouped, two_nodes, {**hardware, "link_peaks": {"x": 7.0}}) == 7
    assert declared_peak(make_case(), two_nodes, {}) is None


def shuffled_plan(order: str = "shuffled") -> Plan:
    plan = make_plan(n_cases=6, passes=2, launches=2, iterations=20)
    return replace(plan, config={**plan.config, "measure": {"order": order, "seed": 5}})


def test_hb135_not_in_the_order_of_the_seed(tmp_path: Path) -> None:
    plan = shuffled_plan()
    first, second = shuffled(plan.cases, "shuffled", 5, 3)[:2]
    swap = {first.case_id: 1, second.case_id: 0}

    def change(rank: int, record: Record) -> Iterable[Record]:
        here = (record.launch, record.pass_index) == (1, 1) and record.case_id in swap
        yield replace(record, position=swap[record.case_id]) if here else record

    write_synthetic_run(tmp_path / "run", plan, change=change)
    assert_noted(reduce_folder(tmp_path / "run"), "HB135", "2 times", first.label,
                 "launch 2, pass 2", "number 1 of its workers instead of 0")


@pytest.mark.parametrize("order", ["shuffled", "planned"])
def test_the_order_of_the_seed_is_no_finding(tmp_path: Path, order: str) -> None:
    """Not of cases that this machine cannot run, that were not reached, or were run again."""
    plan = shuffled_plan(order)
    skipped, again = plan.cases[2].case_id, plan.cases[4].case_id
    runnable = [case for case in plan.cases if case.case_id != skipped]

    def change(rank: int, record: Record) -> Iterable[Record]:
        number = record.launch * 2 + record.pass_index
        places = {case.case_id: place for place, case in enumerate(
            shuffled(runnable, order, 5, number))}
        if record.case_id == skipped:
            if number == 0:
                yield replace(record, status="skipped", reason="no nccl", n_wrong=-1, begin_ns=0,
                              end_ns=0, samples=no_samples(), position=-1)
        elif number < 3:
            yield replace(record, position=places[record.case_id])
            if record.case_id == again:
                yield replace(record, attempt=1, position=0)

    write_synthetic_run(tmp_path / "run", plan, change=change)
    results = reduce_folder(tmp_path / "run")
    assert only(results, "HB135") == []
    assert [item.status for item in results.cases].count("ok") == 5


def canary_notes(
    medians_us: Iterable[float], status: Callable[[int, int], str] = lambda rank, run: "ok"
) -> Notes:
    """Runs of the canary, a second apart, whose slowest rank has these medians."""
    def notes(rank: int) -> Iterable[tuple[str, dict[str, Any]]]:
        jitter = np.arange(-10, 10)
        for run, median_us in enumerate(medians_us):
            durations = 1000 * median_us + 100 * jitter - 5000 * (rank == 0)
            yield "canary", {
                "case_id": "canary", "launch": 0, "pass_index": run // 2, "status":
                status(rank, run), "at_ns": BASE_NS + run * CASE_NS + rank,
                "durations_ns": durations.astype(int).tolist() if status(rank, run) == "ok" else []}
    return notes


def test_hb145_the_machine_drifted(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, notes=canary_notes(range(100, 116, 2)))
    results = reduce_folder(tmp_path / "run")
    assert_noted(results, "HB145", "all_reduce gloo", "+13.1 % over 8 runs in 7 s", "tau +1.00")
    canary = results.canary
    assert canary is not None and "all_reduce gloo" in canary.label
    assert canary.quality == ("drifting",) and canary.drift == pytest.approx(14 / 107, abs=0.001)
    assert [(run.pass_index, run.since_start_s, run.n) for run in canary.runs[:3]] == [
        (0, 0.0, 20), (0, 1.0, 20), (1, 2.0, 20)]
    assert [run.median_s for run in canary.runs[:2]] == pytest.approx([100e-6, 102e-6], 1e-3)
    first = canary.runs[0]
    assert first.ci_low_s is not None and first.ci_low_s < first.median_s
    with open_results(tmp_path / "run") as file:
        assert file.results == results


@pytest.mark.parametrize(("medians", "quality"), [
    ([100, 180], ()), ([100], ()), ([], ()), ([*range(100, 107)], ()),
    ([*range(100, 92, -1)], ("drifting",)), ([100, 101, 99, *range(102, 112)], ("drifting",)),
    ([100, 90, 110, 900, 910, 890, 900, 920], ()), ([100 + 0.1 * run for run in range(20)], ())])
def test_only_what_rises_or_falls_steadily_drifts(
    tmp_path: Path, medians: list[float], quality: tuple[str, ...]
) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, notes=canary_notes(medians))
    canary = reduce_folder(tmp_path / "run").canary
    assert (canary is None) == (medians == [])
    if canary is not None:
        assert canary.quality == quality
        assert (canary.drift is None) == (canary.tau is None) == (len(medians) < 8)


def test_hb147_a_canary_run_that_some_rank_lost_has_no_time(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, notes=canary_notes(
        [100, 110, 120, 130], lambda rank, run: "failed" if (rank, run) == (1, 2) else "ok"))
    results = reduce_folder(tmp_path / "run")
    assert_noted(results, "HB147", "1 of 4 runs of the canary")
    canary = results.canary
    assert canary is not None and (len(canary.runs), canary.n_not_ok) == (3, 1)
    assert [run.since_start_s for run in canary.runs] == [0.0, 1.0, 3.0]
    (tmp_path / "run" / "traces" / "rank00001.h5").unlink()
    without = reduce_folder(tmp_path / "run").canary
    assert without is not None and (without.runs, without.n_not_ok) == ((), 4)


def test_hb152_a_crash_after_the_last_case(tmp_path: Path) -> None:
    def notes(rank: int) -> list[tuple[str, dict[str, Any]]]:
        note = {"ended": "worker ended by signal 6 (SIGABRT)", "launch": 0, "pass_index": 0}
        return [("teardown", note)] * 2 if rank == 1 else []

    write_synthetic_run(tmp_path / "run", PLAN, notes=notes)
    results = reduce_folder(tmp_path / "run")
    (finding,) = only(results, "HB152")
    assert finding.scope == "note" and finding.message.startswith("rank 1 on ")
    assert "worker ended by signal 6 (SIGABRT) when it left the process group (2 times)" in (
        finding.message)
    assert {item.status for item in results.cases} == {"ok"}
    assert exit_code(results) is ExitCode.OK
