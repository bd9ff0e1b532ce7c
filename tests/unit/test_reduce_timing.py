"""What the statistics of a case are made of: folds, what counts, flags, launches, quality."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.config.axes import UNCHECKED, Checks
from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.fold import ClockHistory, RankClocks
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import CaseResult, CaseSamples, Results, Statistics, Timing
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record, Samples
from synthetic import (
    Change,
    duration_ns,
    make_case,
    make_plan,
    plan_of,
    seen_by,
    sync_note,
    with_rows,
    write_synthetic_run,
)

START, END, ENQUEUE, DEVICE, FLAGS = range(len(SAMPLE_COLUMNS))


def numbers(item: CaseResult) -> tuple[Statistics, Timing]:
    assert item.status == "ok" and item.statistics is not None and item.timing is not None
    return item.statistics, item.timing


def one(
    folder: Path, edit: Callable[[int, Record, Samples], dict[str, Any] | None] | None = None,
    *, plan: Plan | None = None, **changes: Any,
) -> tuple[Statistics, Timing]:
    """Reduce one case; ``edit`` works on a copy of the samples and returns changed fields."""
    plan = plan or make_plan(1, **{"iterations": 30, **changes})

    def change(rank: int, record: Record) -> Iterable[Record]:
        samples = record.samples.rows()
        fields = edit(rank, record, samples) if edit else None
        return (replace(with_rows(record, samples), **fields or {}),)

    write_synthetic_run(folder / "run", plan, change=change)
    (item,) = reduce_folder(folder / "run").cases
    return numbers(item)


def later(rank: int, by_ns: int) -> Callable[[int, Record, Samples], None]:
    """Make a rank start so much later, and all ranks end when it does."""
    def edit(at: int, record: Record, samples: Samples) -> None:
        samples[:, START] += by_ns * (at == rank)
        samples[:, END] += by_ns
    return edit


def times_s(case: Case, rank: int, first: int, n: int) -> np.ndarray[Any, Any]:
    rows = range(first, first + n)
    return np.array([duration_ns(case.index, 0, rank, row) for row in rows]) / 1e9


def test_isolated_is_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    statistics, timing = one(tmp_path, later(0, 4000), world_size=3, mode="isolated")
    expected = times_s(make_case(0), 2, 2, 30) + 4e-6
    assert timing.fold == "global"
    assert statistics.median_s == pytest.approx(np.median(expected))
    assert (statistics.min_s, statistics.max_s) == pytest.approx((expected.min(), expected.max()))
    assert timing.imbalance_s == pytest.approx(4e-6)
    assert timing.last_in_s == pytest.approx(statistics.median_s - 4e-6)
    assert timing.local_max_s == pytest.approx(statistics.median_s)
    assert timing.clock_bound_s == 0
    assert (timing.quickest_rank, timing.quickest_share) == (0, 1.0)


def test_barrier_start_is_the_longest_call_of_any_rank(tmp_path: Path) -> None:
    statistics, timing = one(tmp_path, later(2, 4000), world_size=3, mode="barrier_start")
    assert timing.fold == "local_max"
    assert statistics.median_s == pytest.approx(np.median(times_s(make_case(0), 1, 2, 30)) + 4e-6)
    assert timing.local_max_s == statistics.median_s


@pytest.mark.parametrize("validate", [True, False])
def test_pipelined_is_per_call_and_single_calls_do_not_count(
    tmp_path: Path, validate: bool
) -> None:
    statistics, timing = one(tmp_path, mode="pipelined", batch=10, check=Checks(validate))
    first = 3 if validate else 2
    expected = times_s(make_case(0), 1, first, 30) / 10
    assert (timing.fold, timing.calls, statistics.n) == ("per_call", 10, 30)
    assert statistics.median_s == pytest.approx(np.median(expected))
    assert timing.local_max_s == pytest.approx(statistics.median_s)
    assert timing.n_warmup == (3 if validate else 2)


def test_the_interval_holds_the_median_and_takes_six_samples(tmp_path: Path) -> None:
    statistics, _ = one(tmp_path / "30")
    assert statistics.min_s < statistics.ci_low_s < statistics.median_s < statistics.ci_high_s
    assert statistics.ci_reliable
    few, timing = one(tmp_path / "5", iterations=5)
    assert (few.ci_low_s, few.ci_high_s, few.ci_reliable) == (None, None, False)
    assert "ci_unreliable" not in timing.quality  # there is none to be doubted


def slow_at_first(rank: int, record: Record, samples: Samples) -> None:
    slow = samples[2:12]
    slow[:, END] += 40_000 - 4_000 * np.arange(10)


def test_samples_before_the_steady_state_do_not_count(tmp_path: Path) -> None:
    """Of each pass, not of all together: the second pass begins slowly, too."""
    plan = make_plan(1, passes=2, iterations=60, min_iterations=10)
    statistics, timing = one(tmp_path, slow_at_first, plan=plan)
    assert timing.n_ramp in (20, 25, 30) and statistics.n == 120 - timing.n_ramp
    assert timing.n_warmup == 4
    assert statistics.max_s < 12e-6
    assert timing.quality == ("ci_unreliable",)  # the second pass is 10 % slower


def test_a_number_of_iterations_that_was_given_is_what_counts(tmp_path: Path) -> None:
    """Samples before the steady state are flagged, and there are statistics without them."""
    plan = make_plan(1, passes=2, iterations=60)
    statistics, timing = one(tmp_path, slow_at_first, plan=plan)
    assert statistics.n == 120 and statistics.max_s > 40e-6
    assert timing.all_count and timing.n_ramp in (20, 25, 30)
    assert timing.quality == ("ci_unreliable", "ramp")  # the second pass is 10 % slower
    unflagged = timing.unflagged
    assert unflagged is not None and unflagged.max_s < 12e-6
    assert (unflagged.n, unflagged.median_s) == (timing.unflagged_n, timing.unflagged_median_s)
    assert unflagged.n == 120 - timing.n_ramp and unflagged.p95_s is not None
    with open_results(tmp_path / "run") as file:
        samples = file.samples(plan.cases[0].case_id)
    assert samples is not None and samples.use is not None
    assert np.bincount(samples.use).tolist() == [120 - timing.n_ramp, timing.n_ramp, 0, 4]


def test_a_pass_without_a_steady_state_is_flagged(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> None:
        noise = np.random.default_rng(5).integers(0, 900, 60)
        samples[2:, END] += noise + 4000 * (np.arange(60) < 30)

    _, timing = one(tmp_path, edit, iterations=60)
    assert timing.n_ramp == 30 and {"ramp", "unsteady"} <= {*timing.quality}


def test_a_trend_and_a_step_are_flagged(tmp_path: Path) -> None:
    def rising(rank: int, record: Record, samples: Samples) -> None:
        samples[2:, END] += 30 * np.arange(100)

    def stepping(rank: int, record: Record, samples: Samples) -> None:
        noise = np.random.default_rng(5).integers(0, 900, 100)
        samples[2:, END] += noise + 1500 * (np.arange(100) >= 60)

    assert "trend" in one(tmp_path / "trend", rising, iterations=100)[1].quality
    assert "change_point" in one(tmp_path / "step", stepping, iterations=100)[1].quality


def test_one_pass_of_nine_that_rises_is_no_flag_where_the_median_stays(tmp_path: Path) -> None:
    def one_rises(rank: int, record: Record, samples: Samples) -> None:
        noise = np.random.default_rng(record.pass_index).integers(0, 900, 60)
        samples[2:, END] += noise + 30 * np.arange(60) * (record.pass_index == 4)

    def all_rise(rank: int, record: Record, samples: Samples) -> None:
        noise = np.random.default_rng(record.pass_index).integers(0, 900, 60)
        samples[2:, END] += noise + 30 * np.arange(60)

    plan = make_plan(1, passes=9, iterations=60)
    assert "trend" not in one(tmp_path / "one", one_rises, plan=plan)[1].quality
    assert "trend" in one(tmp_path / "all", all_rise, plan=plan)[1].quality


def test_late_starts_and_outliers_count_and_are_recorded(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> None:
        if rank == 1:
            samples[5:8, FLAGS] |= Flag.LATE_START
            samples[0, FLAGS] |= Flag.LATE_START  # a warm-up
        samples[[10, 20], END] += 400_000

    statistics, timing = one(tmp_path, edit, mode="isolated")
    assert (statistics.n, timing.n_late, timing.n_outlier, timing.unflagged_n) == (30, 3, 2, 25)
    assert statistics.max_s > 400e-6
    unflagged = np.delete(times_s(make_case(0), 1, 2, 30), [3, 4, 5, 8, 18])
    assert timing.unflagged_median_s == pytest.approx(np.median(unflagged))
    assert timing.quality == ()


@pytest.mark.parametrize(("longer_ns", "words"), [
    (2_000, ("late_starts", "fragile", "two_modes")), (0, ())])
def test_late_starts_are_flagged_where_they_move_the_median(
    tmp_path: Path, longer_ns: int, words: tuple[str, ...],
) -> None:
    late = 2 + np.flatnonzero(np.random.default_rng(3).random(100) < 0.6)

    def edit(rank: int, record: Record, samples: Samples) -> None:
        samples[2:, END] += np.random.default_rng(4).integers(0, 300, 100)
        samples[late, END] += longer_ns
        samples[late, FLAGS] |= Flag.LATE_START

    _, timing = one(tmp_path, edit, mode="isolated", iterations=100)
    assert timing.n_late == late.size
    assert timing.quality == words


@pytest.mark.parametrize(("skew_ns", "words"), [(50_000, ("late_starts",)), (0, ())])
def test_where_all_are_late_the_time_behind_the_last_start_decides(
    tmp_path: Path, skew_ns: int, words: tuple[str, ...],
) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> None:
        samples[2:, END] += np.random.default_rng(4).integers(0, 300, 100)
        later(1, skew_ns)(rank, record, samples)
        samples[:, FLAGS] |= Flag.LATE_START

    _, timing = one(tmp_path, edit, mode="isolated", iterations=100)
    assert (timing.n_late, timing.unflagged_median_s) == (100, None)
    assert timing.quality == words


def test_passes_and_launches_all_count_and_have_medians_of_their_own(tmp_path: Path) -> None:
    plan = make_plan(1, world_size=3, passes=2, launches=3, iterations=20)
    write_synthetic_run(tmp_path / "run", plan)
    results = reduce_folder(tmp_path / "run")
    statistics, timing = numbers(results.cases[0])
    expected = [np.median([duration_ns(0, number, 2, row, launch)
                           for number in range(2) for row in range(2, 22)]) / 1e9
                for launch in range(3)]
    assert statistics.n == 120
    assert timing.launch_medians_s == pytest.approx(expected)
    assert timing.pass_medians_s == pytest.approx([
        np.median([duration_ns(0, number, 2, row, launch) for row in range(2, 22)]) / 1e9
        for launch in range(3) for number in range(2)])
    assert timing.stop_reasons == ("fixed",) * 6
    with open_results(tmp_path / "run") as file:
        assert file.results == results
        samples = file.samples(plan.cases[0].case_id)
    assert samples is not None and samples.start_ns.shape == (3, 6 * 22)
    assert samples.launch.tolist() == [0] * 44 + [1] * 44 + [2] * 44
    assert samples.pass_index.tolist() == ([0] * 22 + [1] * 22) * 3
    assert np.all(np.diff(samples.start_ns[:, :22]) > 0)


def test_passes_may_stop_at_different_counts(tmp_path: Path) -> None:
    plan = make_plan(1, passes=3, min_iterations=4, iterations=40)

    def change(rank: int, record: Record) -> Iterable[Record]:
        rows = (42, 6, 12)[record.pass_index]
        reason = ("max_iterations", "converged", "budget")[record.pass_index]
        yield replace(with_rows(record, record.samples.rows()[:rows]), stop_reason=reason)

    write_synthetic_run(tmp_path / "run", plan, change=change)
    results = reduce_folder(tmp_path / "run")
    statistics, timing = numbers(results.cases[0])
    assert (statistics.n, timing.n_surplus) == (3 * 4, 36 + 6)
    assert timing.stop_reasons == ("max_iterations", "converged", "budget")
    assert {finding.code for finding in results.findings} == {"HB134"}  # 12 samples: no p5, p95


def test_the_first_call_and_the_opening_of_a_group_are_kept_apart(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> dict[str, Any]:
        samples[0, END] += 300_000 * (rank + 1)
        opened = record.pass_index == 0
        return {"communicator_ns": 7_000_000 + rank if opened else -1}

    _, timing = one(tmp_path, edit, plan=make_plan(1, passes=2, iterations=20))
    assert timing.communicator_s == 7_000_001 / 1e9
    assert timing.first_call_s == pytest.approx((duration_ns(0, 0, 1, 0) + 600_000) / 1e9)


def test_no_first_call_is_given_for_groups_that_were_open_or_for_several_calls(
    tmp_path: Path
) -> None:
    _, open_already = one(tmp_path / "open")
    assert open_already.first_call_s is open_already.communicator_s is None
    _, several = one(tmp_path / "several", lambda rank, record, samples: {"communicator_ns": 5},
                     mode="pipelined", batch=4, check=UNCHECKED)
    assert several.first_call_s is None and several.communicator_s == 5e-9


def test_device_and_enqueue_times_are_of_one_call_on_the_slowest_rank(tmp_path: Path) -> None:
    def edit(rank: int, record: Record, samples: Samples) -> None:
        samples[:, ENQUEUE] = 1000 + 500 * rank
        samples[:, DEVICE] = 8000 + 400 * rank

    _, timing = one(tmp_path, edit, mode="pipelined", batch=2)
    assert timing.enqueue_s == pytest.approx(1500 / 2 / 1e9)
    assert timing.device_s == pytest.approx(8400 / 2 / 1e9)
    _, cpu = one(tmp_path / "cpu")
    assert cpu.enqueue_s is cpu.device_s is None


def test_groups_have_no_common_quickest_rank(tmp_path: Path) -> None:
    case = make_case(0, world_size=4, iterations=20)
    case = replace(case, workload=replace(case.workload, groups=2))
    _, timing = one(tmp_path, plan=plan_of([case], 4))
    assert timing.quickest_rank is timing.quickest_share is None


OFF = ClockModel(10**12, 20e-6, 7 * 10**12, 100.0, 0.0, 5.0, 0, 50, 50)


def on_two_nodes(
    folder: Path, model: ClockModel = OFF, bounds: tuple[float, ...] = (100.0, 100.0),
    edit: Change = lambda rank, record: (record,), **changes: Any,
) -> Results:
    """Reduce an isolated case of two ranks whose clocks differ and were compared at both ends."""
    plan = make_plan(1, **{"mode": "isolated", "iterations": 30, **changes})
    at_ns = (10**12 - 10**9, 10**12 + 10**10)

    def change(rank: int, record: Record) -> Iterable[Record]:
        for item in edit(rank, record):
            yield seen_by(model, item) if rank == 1 else item

    def notes(rank: int) -> Iterable[tuple[str, dict[str, Any]]]:
        for global_ns, bound_ns in zip(at_ns, bounds, strict=True):
            local_ns = model.to_local(global_ns)
            known = replace(model, t_ref_ns=local_ns, offset_ns=model.offset_at(local_ns),
                            bound_ns=bound_ns)
            yield (sync_note(known, "host1") if rank else
                   sync_note(ClockModel.identity(global_ns)))

    write_synthetic_run(folder / "run", plan, change=change, notes=notes, headers=lambda header:
                        replace(header, node=f"node{header.rank}", local_rank=0))
    return reduce_folder(folder / "run")


def test_two_clocks_give_the_times_of_one(tmp_path: Path) -> None:
    def late(rank: int, record: Record) -> Iterable[Record]:
        samples = record.samples.rows()
        later(0, 4000)(rank, record, samples)
        yield with_rows(record, samples)

    results = on_two_nodes(tmp_path, edit=late)
    statistics, timing = numbers(results.cases[0])
    assert results.findings == ()
    assert timing.fold == "global" and timing.clock_bound_s == pytest.approx(100e-9, rel=0.01)
    expected = np.median(times_s(make_case(0), 1, 2, 30)) + 4e-6
    assert statistics.median_s == pytest.approx(expected, abs=3e-9)
    assert timing.imbalance_s == pytest.approx(4e-6, abs=3e-9)
    clocks = results.clocks
    assert (clocks.n_clocks, clocks.n_syncs, clocks.bound_s) == (2, 2, 100e-9)
    assert clocks.drift_ppm == pytest.approx(20)


def test_bounds_of_two_clocks_add_up() -> None:
    """Two ranks' times may be off by their clocks' bounds together: those of the worst two."""
    stamps = np.full((3, 4), 10**12, dtype=np.int64)
    nothing = np.zeros(4, dtype=np.int64)
    samples = CaseSamples((0, 1, 2), nothing, nothing, stamps, stamps, stamps, stamps, stamps)
    known = {number: ClockHistory((number,), (replace(ClockModel.identity(10**12),
                                                      bound_ns=bound_ns),), (), ())
             for number, bound_ns in enumerate((0.0, 300.0, 70.0))}
    found = RankClocks({0: 0, 1: 1, 2: 2}, known, frozenset()).stamps(samples)
    assert found is not None and found.bound_ns == 370.0


def test_clocks_that_are_not_known_well_enough_are_not_used(tmp_path: Path) -> None:
    results = on_two_nodes(tmp_path, bounds=(600.0, 600.0))  # of some 10 us
    statistics, timing = numbers(results.cases[0])
    assert timing.fold == "local_max" and timing.quality == ("clock_unreliable",)
    assert timing.clock_bound_s == pytest.approx(600e-9, rel=0.01)
    assert timing.imbalance_s is not None
    assert statistics.median_s == pytest.approx(
        np.median(times_s(make_case(0), 1, 2, 30)), abs=3e-9)


def test_quality_is_no_failure(tmp_path: Path) -> None:
    results = on_two_nodes(tmp_path, bounds=(600.0, 600.0))
    assert exit_code(results) == 0
    with open_results(tmp_path / "run") as file:
        assert file.results == results
