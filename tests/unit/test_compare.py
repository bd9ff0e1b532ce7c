"""`hpcbench compare`: verdicts, their figures, and what users read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, mannwhitneyu
from typer.testing import CliRunner

from bad_input_process import hpcbench
from golden import RESULTS
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.answers.compare import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    CaseComparison,
    SideComparison,
    compare,
    compare_by,
    compare_each,
    compare_sides,
    launches_needed,
    pairs_text,
    scope_of,
)
from hpcbench.answers.compare_inputs import (
    CaseOfSide,
    Side,
    _fastest_first,
    aligned,
    cases_of,
    differences,
    differs_from_nearest,
    own_key,
    paired_keys,
    read_side,
    split_by,
)
from hpcbench.answers.compare_tables import (
    DISAGREE,
    change_text,
    comparison_table,
    needed_line,
    totals_line,
    unmatched_table,
)
from hpcbench.answers.recommend import recommend
from hpcbench.cli import app
from hpcbench.config.axes import Checks
from hpcbench.errors import UsageError
from hpcbench.plan.case import Case, planned_canary
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import each_once, new_results
from hpcbench.statistics.hypothesis_tests import benjamini_hochberg, least_chance, shift_of
from hpcbench.statistics.order import Interval
from hpcbench.views.table import Range
from results_factory import (
    MemorySamples,
    flagged,
    in_launches,
    in_passes,
    make_case,
    make_results,
    make_workload,
)

SAMPLES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8, unique=True)


def case() -> Case:
    return planned_canary(2, 1.0, 1.0)


def compared(
    first: Sequence[float], second: Sequence[float], *, in_launch: bool = False,
    passes: tuple[Sequence[float | None], Sequence[float | None]] = ((), ()),
) -> CaseComparison:
    a, b = (CaseOfSide(case(), tuple(times), ((tuple(of_passes),),))
            for times, of_passes in zip((first, second), passes, strict=True))
    found = compare({"x": a}, {"x": b}, ("A", "B"), in_launch=in_launch)
    return found.cases[0]


@given(SAMPLES, SAMPLES)
def test_the_chance_is_that_of_mann_and_whitney(first: list[float], second: list[float]) -> None:
    if len({*first, *second}) == len(first) + len(second):
        known = mannwhitneyu(first, second, method="exact").pvalue
        assert shift_of(np.array(first), np.array(second))[1] == pytest.approx(known)


def test_the_chance_of_many_values_is_by_the_normal_distribution() -> None:
    noise = np.random.default_rng(1)
    first, second = noise.normal(0, 1, 61), noise.normal(0.3, 1, 70)
    known = mannwhitneyu(first, second, method="asymptotic").pvalue
    assert shift_of(first, second)[1] == pytest.approx(known)


TIED = st.lists(st.integers(0, 5), min_size=2, max_size=7)


@example([0, 1, 2], [2, 3, 4])
@given(TIED, TIED)
def test_equal_values_speak_for_no_difference(first: list[int], second: list[int]) -> None:
    """Whichever way ties are broken, the chance that is given is no smaller."""
    a, b = (np.array(values, dtype=float) for values in (first, second))
    _, tied = shift_of(a, b)
    for by in (-1e-3, 1e-3):
        assert tied >= shift_of(a, b + by)[1]


@given(SAMPLES, SAMPLES, st.floats(-10, 10))
def test_the_shift_is_in_its_interval_and_moves_with_the_second(
    first: list[float], second: list[float], by: float,
) -> None:
    found, _ = shift_of(np.array(first), np.array(second))
    moved, _ = shift_of(np.array(first), np.array(second) + by)
    assert found.holds(found.value)
    assert moved.value == pytest.approx(found.value + by, abs=1e-9)


def test_three_launches_a_side_can_never_decide() -> None:
    assert least_chance(3, 3) == pytest.approx(0.1)
    assert least_chance(5, 5) == pytest.approx(2 / 252)
    found = compared((1.0, 1.01, 0.99), (2.0, 2.02, 1.98))
    assert found.verdict == INCONCLUSIVE and found.low is None


def test_large_samples_have_nearly_the_exact_chance() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=70), rng.normal(0.4, size=70)
    known = mannwhitneyu(first, second, method="exact").pvalue
    assert shift_of(first, second)[1] == pytest.approx(known, rel=0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_shares_of_false_ones_are_those_of_scipy(chances: list[float]) -> None:
    assert benjamini_hochberg(chances) == pytest.approx(list(false_discovery_control(chances)))


def test_verdicts() -> None:
    base = [1.0, 1.002, 0.998, 1.001, 0.999]
    assert compared(base, [time * 1.05 for time in base]).verdict == SLOWER
    assert compared(base, [time / 1.05 for time in base]).verdict == FASTER
    assert compared(base, [time * 1.001 for time in base]).verdict == SAME
    wide = compared(base, [1.0, 1.2, 0.8, 1.1, 0.9])
    assert wide.verdict == INCONCLUSIVE and wide.more_launches and wide.more_launches > 5


def test_a_row_shows_the_change_of_the_times_that_it_shows() -> None:
    """Two levels: the medians are twice as far apart as the middle of all ratios says."""
    first, second = (825.0, 825.4, 826.0, 1650.0, 1660.0), (830.0, 832.0, 1674.1, 1680.0, 1690.0)
    found = compared(first, second)
    assert found.ratio == pytest.approx(found.second_s / found.first_s)
    assert found.verdict == INCONCLUSIVE
    low = tuple(1.0 + at / 1000 for at in range(11))
    apart = compared((*low, *(9.0 for _ in range(10))), (*low[:10], *(9.0 for _ in range(11))))
    assert apart.ratio > 5 and apart.verdict == INCONCLUSIVE, "the middle of all ratios is 1"


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=9),
       st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=9))
def test_passes_of_one_launch_show_medians_and_the_change_by_pairs(
    first: list[float], second: list[float],
) -> None:
    found = compared((1.0,), (3.0,), in_launch=True, passes=(first, second))
    assert (found.first_s, found.second_s) == pytest.approx((1.0, 3.0))  # as in show
    logs = [math.log(b / a) for a, b in zip(first, second, strict=False)]
    assert found.ratio == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_launches_in_one_process_are_one_and_those_of_a_job_are_marked() -> None:
    case_of = {name: in_launches(make_case(backend=name), *[[1.0] * 9] * 5)
               for name in ("gloo", "mpi")}
    case_of["mpi"] = flagged(case_of["mpi"], "repeats")
    job = make_results(tuple(case_of.values()))
    one, five = Side("one", (job,)), Side("five", (job,) * 5)
    found = {case.label.split()[1]: case
             for case in compare(cases_of(one), cases_of(one), ("A", "B")).cases}
    assert (found["mpi"].verdict, found["mpi"].launches) == (INCONCLUSIVE, (1, 1))
    assert (found["gloo"].verdict, found["gloo"].launches) == (SAME, (5, 5))
    assert scope_of([found["gloo"]]) == "within one job a side" and not scope_of([found["mpi"]])
    jobs = {case.label.split()[1]: case
            for case in compare(cases_of(five), cases_of(five), ("A", "B")).cases}
    assert (jobs["mpi"].launches, jobs["mpi"].is_within_jobs) == ((5, 5), False)
    assert (jobs["gloo"].launches, jobs["gloo"].jobs) == ((25, 25), (5, 5))


def test_launches_of_one_run_are_compared_in_pairs_of_passes_as_recommendations_are() -> None:
    """Passes while launches are alike and few, else launches; those of one process are one."""
    def made(launches: int, *, repeats: bool = False) -> CaseComparison:
        slow = np.exp(np.random.default_rng(3).normal(0, 0.5, 3 * launches))
        times = {"gloo": slow, "mpi": slow * (1.2 + 1e-3 * (np.arange(3 * launches) % 5))}
        items = [flagged(in_passes(make_case(backend=name), *of.tolist()), *(
            ["repeats"] if repeats and name == "mpi" else []), launch_medians_s=tuple(of[::3]))
            for name, of in times.items()]
        run = make_results(tuple(items))
        run = replace(run, plan=replace(run.plan, passes=3, launches=launches))
        first, second = split_by(Side("A", (run,)), "backend").values()
        (case,) = compare(first, second, ("A", "B"), in_launch=True).cases
        ranked = recommend([Run("A", run, MemorySamples(run))], TopicOptions()).rankings[0]
        rival = ranked.rivals[0].paired
        assert (case.ratio, case.low, case.high, case.chance, case.launches[0], case.unit,
                case.n_launches) == (rival.ratio, rival.low, rival.high, rival.chance, rival.n,
                                     rival.unit, rival.n_launches)
        return case

    alike, whole = made(4, repeats=True), made(8)
    assert (alike.launches, alike.unit, alike.n_launches) == ((12, 12), "passes", 1)
    assert (whole.launches, whole.unit, whole.n_launches) == ((8, 8), "launches", 8)
    assert whole.verdict == SLOWER and made(2).n_launches == 2


def test_a_row_has_one_statistic_whichever_side_has_several_launches() -> None:
    """Of launches of unequal length the median of all samples is not that over launches."""
    sides = [measured(f"{name}/results.h5", in_launches(make_case(), [1.0] * 9, *[[by] * 2] * 3))
             for name, by in (("before", 2.0), ("after", 3.0))]
    found = matched(*sides)
    (case,) = found.cases
    assert (case.first_s, case.second_s, case.ratio) == pytest.approx((2.0, 3.0, 1.5))
    table = comparison_table(found)
    assert [column.title for column in table.columns[1:3]] == ["before", "after"]
    assert table.columns[3].unit == "%" and table.rows[0].cells[1:3] == (2.0, 3.0)
    assert table.title.endswith(", medians over launches")
    for first, second in ((Side("B", sides[0].results * 2), sides[1]),
                          (sides[0], Side("B", sides[1].results * 3))):
        (case,) = matched(first, second).cases
        assert (case.first_s, case.second_s, case.ratio) == pytest.approx((2.0, 3.0, 1.5))
    even = compared((1.0, 4.0), (2.0, 3.0, 5.0, 9.0))
    assert (even.first_s, even.second_s, even.ratio) == (2.5, 4.0, 1.6), "numpy's median"


@pytest.mark.parametrize(("ratio", "title", "cells"), [
    (8.0, "change", (7.0, Range(6.0, 8.0))), (15.0, "times as long", (15.0, Range(7.0, 9.0)))])
def test_a_column_of_changes_has_one_form(
    ratio: float, title: str, cells: tuple[float, Range],
) -> None:
    found = compare(*({key: CaseOfSide(case(), (by,)) for key in "xy"} for by in (1.0, 8.0)),
                    ("A", "B"))
    first, second = (replace(one, low=7.0, high=9.0) for one in found.cases)
    table = comparison_table(replace(found, cases=(
        first, replace(second, ratio=ratio))), full=True)
    assert table.columns[3].title == title
    assert cells in [row.cells[3:5] for row in table.rows]
    assert {type(row.cells[3]) for row in table.rows} == {float}
    tenfold = replace(found, cases=(replace(first, ratio=ratio),))
    assert totals_line(tenfold).endswith({8.0: "mean +700.0 %", 15.0: "mean 15x"}[ratio])


@pytest.mark.parametrize(("sides", "names"), [
    (("a/before/results.h5", "results/latest"), ("before", "latest")),
    (("old", "new"), ("old", "new")), (("a,b", "c,d"), ("before", "after")),
    (("x/run/results.h5", "y/run/results.h5"), ("before", "after")),
    (("implementation=torch", "implementation=chunked_pipeline chunks=2"),
     ("torch", "chunked_pipeline")),
    (("x=alike chunks=2 and more", "x=alike chunks=4 and more"), ("first", "second"))])
def test_columns_have_the_names_of_the_sides(
    sides: tuple[str, str], names: tuple[str, str],
) -> None:
    one = {"x": CaseOfSide(case(), (1.0,))}
    table = comparison_table(compare(one, one, sides))
    assert tuple(column.title for column in table.columns[1:3]) == names


def test_cases_that_only_one_side_has_are_counted_in_a_sentence() -> None:
    one = CaseOfSide(case(), (1.0,))
    found = compare({"x": one, "y": one}, {"z": one}, ("A", "B"))
    assert totals_line(found) == "0 cases compared: 2 only in A; 1 only in B"


def test_how_many_launches_a_verdict_needs() -> None:
    assert [launches_needed(family) for family in (1, 5, 59)] == [4, 5, 7]


def test_sides_have_names(tmp_path: Path) -> None:
    file = tmp_path / "a=b.h5"
    file.write_bytes(Path(RESULTS["mixed"]).read_bytes())
    assert read_side(f"old={RESULTS['primitive']},{file}").label == "old"
    assert read_side(str(file)).label == str(file)
    done = hpcbench("compare", f"old={RESULTS['mixed']}", f"new={file}")
    assert done.returncode == 0 and "new against old" in done.stdout, done
    assert done.stdout.index("the same run") < done.stdout.index("new against old")


def test_pairs_that_contradict_the_medians_are_named_in_an_undecided_row() -> None:
    sides = [{"0": CaseOfSide(case(), (by,))} for by in (1.0, 2.4)]
    found = compare(*sides, ("A", "B"))
    texts = []
    for ratio in (0.9, 2.0):
        one = replace(found.cases[0], in_launch=True, verdict=INCONCLUSIVE, ratio=ratio, reason="",
                      remedy="")
        texts.append(comparison_table(replace(found, cases=(one,)), full=True).rows[0].cells[-1])
    assert texts == [DISAGREE, None]


def test_too_few_launches_state_once_how_many_decide() -> None:
    sides = [{f"{at}": CaseOfSide(case(), (by + at,)) for at in range(27)} for by in (1.0, 1.1)]
    found = compare(*sides, ("A", "B"))
    assert needed_line(found) == (
        "1 launch a side decides nothing: use 7 (other jobs, or --launches); 4 are enough if all "
        "27 cases change")
    rows = comparison_table(found).rows
    assert {row.cells[-2:] for row in rows} == {(None, None)}
    assert {row.cells[-2] for row in comparison_table(found, full=True).rows} == {"7"}
    assert "the same run" in needed_line(compare(sides[0], sides[0], ("A", "B")))
    imported = {key: replace(one, is_imported=True) for key, one in sides[0].items()}
    assert "--launches" not in needed_line(compare(imported, sides[1], ("A", "B")))
    uneven = [{f"{at}": CaseOfSide(case(), tuple(by + at / 100 for at in range(n)))
               for at in range(2)} for by, n in ((1.0, 11), (9.0, 3))]
    found = compare(*uneven, ("A", "B"))
    assert {one.verdict for one in found.cases} == {SLOWER} and not needed_line(found)


def test_why_passes_of_one_launch_do_not_decide() -> None:
    passes = {"among": (2.9, 3.0, 3.1), "noise": (0.5, 1.25, 3.0),
              "small": (1.029, 1.03, 1.031) * 4}
    first, second = ({key: CaseOfSide(case(), (1.0,), ((times if at else (1.0,) * len(times),),))
                      for key, times in passes.items()} for at in (0, 1))
    del first["small"]
    wide = compare(first, second, ("A", "B"), in_launch=True).cases
    assert [one.verdict for one in wide] == [INCONCLUSIVE] * 2 and (wide[0].low or 0) > 1
    assert [(one.reason, one.remedy) for one in wide] == [
        ("not significant, with at most 1 % false, among 2 comparisons", "use 9 passes"),
        ("the interval includes 0 % and a change that matters", "use over 200 passes")]
    small = compared((1.0,), (1.0,), in_launch=True, passes=((1.0,) * 12, passes["small"]))
    assert (small.reason, small.remedy) == (
        "the interval includes changes too small to matter", "use over 200 passes")


def test_ways_in_one_launch_have_the_error_rate_that_recommendations_have() -> None:
    factors = np.exp(0.5 + 0.6 * np.array([1, -1, 0.5, -0.5, 1.2, -1.2, 0.2, -0.2, 0.0]))
    found = compared((1.0,), (1.6,), in_launch=True, passes=((1.0,) * 9, factors.tolist()))
    assert found.low and found.low > 1.01 and found.false_share is not None
    assert 0.01 < found.false_share <= 0.05 and found.verdict == INCONCLUSIVE
    assert 9 < int(found.remedy.split()[-2]) < 20


def test_values_of_a_key_are_one_family_whichever_pairs_are_shown() -> None:
    """The share of false ones is of all pairs of ways, of which those with the first are shown."""
    random = np.random.default_rng(5)
    sides = {name: {key: CaseOfSide(case(), (1.0,), ((tuple(
        random.lognormal(0.01 * at, 0.02, 9)),),)) for key in ("a", "b")}
        for at, name in enumerate("ABCD")}
    pairs = {}
    for name, first in sides.items():
        others = [other for other in sides if other != name]
        found = compare_each(first, [sides[other] for other in others], [name, *others],
                             in_launch=True)
        assert [(side.first, side.second) for side in found] == [(name, one) for one in others]
        pairs |= {(one.key, frozenset((name, side.second))): (one.chance, one.false_share)
                  for side in found for one in side.cases}
    chances, shares = zip(*pairs.values(), strict=True)
    assert len(shares) == 12 and shares == pytest.approx(benjamini_hochberg(chances))


def test_advise_and_compare_have_one_interval_and_verdict_of_a_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a run that varies two keys, of which the passes of one depend on one another."""
    from hpcbench.kinds.hardware.plan.test import Stream  # not in the core

    random = np.random.default_rng(5)

    def series(correlation: float, factor: float) -> CaseResult:
        logs = 0.2 * random.standard_normal(9)
        for at in range(1, 9):
            logs[at] += correlation * logs[at - 1]
        return in_passes(case(), *(factor * 1e-3 * np.exp(logs)))

    cases = {make_case(make_workload(size_bytes=size), backend=name, index=at): series(0.9, 1 + at)
             for size in (1024, 4096, 2**20) for at, name in enumerate(("gloo", "mpi", "ucc"))}
    cases |= {make_case(Stream("fp32", kernel, 2**20, threads), index=at, kind="hardware"):
              series(0.0, 4 / threads) for kernel in ("copy", "triad")
              for at, threads in enumerate((1, 2, 8))}
    run = make_results(tuple(replace(of, case=each) for each, of in cases.items()))
    run = replace(run, plan=replace(run.plan, passes=9))
    advised = {(one.case_id, rival.case_id): rival for one in recommend(
        [Run("A", run, MemorySamples(run))], TopicOptions()).rankings for rival in one.rivals}
    monkeypatch.setattr("hpcbench.answers.compare.read_side", lambda _: Side("A", (run,), ("A",)))
    widths, n_common = {}, 0
    for key in ("backend", "threads"):
        sides = [*split_by(Side("A", (run,)), key).values()]
        for at, side in enumerate(compare_by(["A"], key, 0.03).comparisons, 1):
            for one in side.cases:
                pair = [sides[of][one.key].case.case_id for of in (0, at)]
                widths[key] = one.interval.ends[1] / one.interval.ends[0]
                for ids, sign in ((pair, 1), (pair[::-1], -1)):
                    if rival := advised.get((ids[0], ids[1])):
                        n_common += 1
                        known = rival.paired
                        ends = sorted(end ** sign for end in known.interval.ends)
                        assert one.interval.ends == pytest.approx(ends)
                        assert (one.chance, one.false_share, one.launches[0], one.tested) == (
                            known.chance, known.false_share, known.n, known.tested)
                        assert (one.verdict in (SLOWER, FASTER)) == rival.is_clear
                        assert one.remedy in ("", f"use {pairs_text([known], 0.03)}")
    assert n_common >= 6 and widths["backend"] > 4 * widths["threads"], "not of unlike comparisons"


def test_a_case_without_a_partner_is_said_to_differ_from_the_nearest_beside_others_that_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hpcbench.kinds.hardware.plan.test import Stream  # not in the core

    own, log = (make_results(tuple(in_passes(case, 1e-3, 1e-3, 1e-3) for case in cases))
                for cases in ([*(make_case(backend=name, warmup=5, batch=20, index=at)
                                 for at, name in enumerate(("gloo", "mpi"))),
                               make_case(make_workload(size_bytes=64), backend="gloo", index=2),
                               make_case(Stream("fp32", "copy", 2**20, 1), backend="gloo",
                                         index=3, kind="hardware")],
                              [make_case(backend="gloo", warmup=1, batch=5, index=4)]))
    log = replace(log, run=replace(log.run, imported=("other",)))
    side = Side("A", (log, own), ("a", "b"))
    monkeypatch.setattr("hpcbench.answers.compare.read_side", lambda _: side)
    (found,) = compare_by(["A"], "backend", 0.03).comparisons
    assert len(found.cases) == 1
    assert [why.removeprefix("not in backend=mpi") for _, why in found.unmatched] == [
        "no pass has both: pairs of one run are compared",
        ", where the nearest differs in requested_bytes", ", which has no case of its kind"]


def test_the_most_frequent_reasons_are_shown_and_further_ones_counted() -> None:
    pairs = [(f"case {at}", f"reason {at}") for at in range(20)] + [("last", "reason 19")] * 3
    side = replace(compare({}, {}, ("A", "B")), unmatched=tuple(pairs))
    short, full = (unmatched_table(side, full=full) for full in (False, True))
    assert short and full and len(full.groups[0].rows) == 20 and not full.notes
    rows = short.groups[0].rows
    assert len(rows) <= 4 and rows[0].cells[0] == 4 and rows[0].cells[1] == "reason 19"
    shown = sum(int(str(row.cells[0])) for row in rows)
    assert len(short.notes) == 1 and f" {len(pairs) - shown} cases" in short.notes[0].text


def test_single_launches_are_at_most_suspect() -> None:
    passes = ((1.0, 1.01, 0.99), (1.2, 1.21, 1.19))
    suspect = compared((1.0,), (1.2,), passes=passes)
    assert suspect.verdict == INCONCLUSIVE and "looks slower" in suspect.reason
    assert suspect.more_launches == 4
    assert "looks" not in compared((1.0,), (1.2,)).reason


def test_passes_of_one_launch_are_compared_in_pairs() -> None:
    slow_machine = np.array([1.0, 3.0, 1.5, 2.0, 1.2, 2.5, 1.0, 2.0, 3.0])
    found = compared((1.0,), (1.1,), in_launch=True, passes=(
        slow_machine.tolist(), (slow_machine * [1.1, 1.11, 1.09, *[1.1] * 6]).tolist()))
    assert found.verdict == SLOWER and found.ratio == pytest.approx(1.1, rel=0.01)
    assert found.in_launch and found.more_launches is None


def test_launches_without_a_common_pass_are_inconclusive() -> None:
    found = compared([1.0], [2.0], in_launch=True, passes=([1.0, None], [None, 2.0]))
    assert found.verdict == INCONCLUSIVE and found.ratio == pytest.approx(2)
    assert found.reason == "no pass has both"


def test_what_is_not_compared_has_a_reason() -> None:
    ok, bad = CaseOfSide(case(), (1.0,)), CaseOfSide(case(), (), problem="skipped: no GPU")
    found = compare({"x": ok, "y": bad, "z": ok}, {"y": bad, "z": bad}, ("A", "B"))
    assert [why for _, why in found.unmatched] == [
        "not in B", "skipped: no GPU on both sides", "skipped: no GPU in B"]
    nothing = compare({"x": ok}, {"y": bad}, ("A", "B"))
    assert totals_line(nothing) == "0 cases compared: skipped: no GPU"
    worse = replace(bad, problem="failed: hang")
    several = compare({"x": ok}, {"y": bad, "z": worse, "w": worse}, ("A", "B"))
    assert totals_line(several) == (
        "0 cases compared: 1 x skipped: no GPU; 2 x failed: hang")


def measured(side: str, *items: CaseResult, programs: tuple[str, ...] = ()) -> Side:
    results = make_results(items)
    return Side(side, (replace(results, run=replace(results.run, imported=programs)),))


def matched(first: Side, second: Side) -> SideComparison:
    mine = cases_of(first)
    return compare(mine, aligned(mine, cases_of(second)), (first.label, second.label))


def test_cases_that_differ_in_the_protocol_are_compared_and_it_is_named() -> None:
    before = in_launches(make_case(iterations=20), *[[1.0] * 3] * 5)
    after = in_launches(make_case(iterations=50, warmup=9), *[[1.2] * 3] * 5)
    (case,) = matched(measured("A", before), measured("B", after)).cases
    assert case.verdict == SLOWER
    assert {one.key: one.values for one in case.protocol} == {
        "warmup": (str(before.case.warmup), "9"), "iterations": ("20", "50")}
    assert case.means_the_same
    slow = in_launches(make_case(mode="pipelined"), *[[1.2] * 3] * 5)
    (case,) = matched(measured("A", before), measured("B", slow)).cases
    assert "mode" in {one.key for one in case.protocol} and not case.means_the_same
    assert case.label == slow.case.label


def test_the_timing_mode_chooses_among_cases_of_one_label() -> None:
    modes = [in_passes(make_case(mode=mode), 1.0) for mode in ("isolated", "pipelined")]
    more = in_passes(make_case(mode="pipelined", iterations=99), 1.0)
    (case,) = matched(measured("A", *modes), measured("B", more)).cases
    assert {one.key for one in case.protocol} == {"iterations"}


def test_the_number_of_checks_is_no_part_of_what_is_compared() -> None:
    once, often = (in_passes(make_case(mode="pipelined", check=Checks(True, checks)), 1.0)
                   for checks in (1, 10))
    plain = in_passes(make_case(mode="pipelined"), 1.0)
    for other, programs in ((often, ()), (often, ("OSU",)), (plain, ())):
        assert matched(measured("A", once), measured("B", other, programs=programs)).cases
    (case,) = matched(measured("A", once, often), measured("B", replace(
        often, case=make_case(mode="pipelined", check=Checks(True, 10), iterations=99)))).cases
    assert case.key == often.case.case_id
    backends = [in_passes(make_case(backend=backend, check=Checks(True, checks)), 1.0)
                for backend in ("gloo", "mpi") for checks in (1, 10)]
    of_value = split_by(measured("A", *backends), "backend")
    assert [len(cases) for cases in of_value.values()] == [2, 2]


def test_the_nearest_case_is_named_by_what_differs() -> None:
    case = make_case(backend="gloo")
    near = make_case(backend="nccl", device="cuda")
    far = make_case(backend="nccl", device="cuda", world_size=2, mode="pipelined")
    differ = {one.key: one.values for one in differs_from_nearest(case, (far, near))}
    assert differ == {"backend": ("gloo", "nccl"), "device": ("cpu", "cuda")}
    assert differs_from_nearest(case, ()) == ()


@pytest.mark.parametrize(("device", "remedy"), [
    ("cpu", "; hpcbench compare {a},{b} --by backend compares these"),
    ("cuda", ", the backend apart, for hpcbench compare {a},{b} --by backend")])
def test_runs_of_other_backends_are_told_how_they_compare(
    tmp_path: Path, device: str, remedy: str,
) -> None:
    paths = []
    for name, case in (("a", make_case()), ("b", make_case(backend="nccl", device=device))):
        paths.append(str(tmp_path / f"{name}.h5"))
        with new_results(Path(paths[-1])) as writer:
            writer.finish(make_results((in_passes(case, 1e-3, 1e-3, 1e-3),), run_id=name))
    with pytest.raises(UsageError) as caught:
        compare_sides(paths, 0.03)
    assert str(caught.value).endswith(remedy.format(a=paths[0], b=paths[1]))
    if device == "cpu":
        assert compare_by([",".join(paths)], "backend", 0.03).comparisons[0].cases


def test_a_change_is_in_percent_up_to_ten_times() -> None:
    assert change_text(Interval(1.05, 1.01, 1.1)) == "+5.0 % (1.0..10.0)"
    assert change_text(Interval(15.2, 5.279, 43.84)) == "15x (5.28..43.8)"
    assert [change_text(Interval(ratio)) for ratio in (0.5, 0.9999, 9.9, 269.4)] == [
        "-50.0 %", "+0.0 %", "+890.0 %", "269x"]


def test_no_case_is_chosen_among_several_of_one_label() -> None:
    several = [in_passes(make_case(iterations=count), 1.0) for count in (20, 30)]
    found = matched(measured("A", *several), measured("B", in_passes(
        make_case(iterations=40), 1.0)))
    assert not found.cases
    assert {why for _, why in found.unmatched} == {
        "one of several with its label, only with another iterations in B",
        "one of several with its label, only with another iterations in A"}


def test_other_work_of_one_label_is_not_compared() -> None:
    case = make_case()
    other = replace(case, case_id="other", workload=replace(case.workload, requested_bytes=7))
    found = matched(measured("A", in_passes(case, 1.0)), measured("B", in_passes(other, 1.0)))
    assert not found.cases and found.unmatched[0][1] == "only with another requested_bytes in B"
    whole = replace(case, workload=replace(case.workload, in_place=True))
    bare = replace(other, workload=replace(case.workload, in_place=None, requested_bytes=7))
    printed = matched(measured("A", in_passes(whole, 1.0)), measured(
        "B", flagged(in_passes(bare, 1.0), "imported"), programs=("OSU",)))
    assert not [one for one in printed.cases if one.imported != (False, True)]
    assert {one.key: one.values for one in printed.cases[0].protocol} == {
        "in_place": ("True", "unknown")}


def test_what_an_imported_table_does_not_state_is_no_difference() -> None:
    own, printed = measured("A", in_passes(make_case(), 1.0)), measured(
        "B", in_passes(make_case(), 1.0), programs=("OSU 7.4",))
    (run,) = own.results
    own = replace(own, results=(replace(run, run=replace(
        run.run, versions={"torch": "2.13"}, environment={"variables": {"A": "1"}})),))
    (bare,) = printed.results
    printed = replace(printed, results=(replace(bare, run=replace(
        bare.run, versions={}, environment={}, nodes=("elsewhere",))),))
    assert [one.key for one in differences([own, printed])] == ["imported", "nodes"]


def test_the_largest_part_of_a_change_comes_first() -> None:
    first = replace(CaseOfSide(case(), (1.0,) * 5), phases_s={"forward": (0.5,), "wait": (0.1,)})
    second = replace(CaseOfSide(case(), (1.4,) * 5), phases_s={"forward": (0.6,), "wait": (0.4,)})
    found = compare({"x": first}, {"x": second}, ("A", "B")).cases[0]
    assert [(one.name, round(one.share, 2)) for one in found.phases] == [
        ("wait", 0.75), ("forward", 0.25)]


def test_a_run_beside_itself_has_no_verdict_of_one_launch() -> None:
    file = str(RESULTS["mixed"])
    done = hpcbench("compare", file, file)
    assert done.returncode == 0 and "7 undecided" in done.stdout, done
    document = json.loads(hpcbench("compare", file, file, "--json").stdout)
    assert document["schema"] == "hpcbench.compare"
    assert {case["ratio"] for case in document["comparisons"][0]["cases"]} == {1.0}


def test_inside_a_file_by_a_key_and_as_a_figure(tmp_path: Path) -> None:
    figure = tmp_path / "ratios.svg"
    done = hpcbench("compare", str(RESULTS["primitive"]), "--by", "implementation", "--plot",
                    str(figure))
    assert done.returncode == 0 and "in this launch" in done.stdout, done
    assert "ratio of times" in figure.read_text(encoding="utf-8")
    sides = compare_by([str(RESULTS["primitive"])], "implementation", 0.03)
    assert not [label for label in sides.sides if "_only" in label]
    assert sides.comparisons[0].first == sides.sides[0]


def test_keys_are_offered_by_which_there_are_pairs(tmp_path: Path) -> None:
    """Ranks differ, but only together with an option, which needs no ``options.`` before it."""
    from training_cases import make_training, make_training_case

    def qlora(ranks: int, over: str, **own: int) -> CaseResult:
        work = make_training("qlora", dp=ranks, options=(("over", over), *own.items()))
        return in_passes(make_training_case(work), 1e-3, 1e-3, 1e-3)

    run = measured("A", qlora(2, "data", bucket_mb=25), qlora(2, "fsdp", reshard=True),
                   qlora(1, "single"))
    assert paired_keys(run) == ["options.over"] and own_key(run, "over") == "options.over"
    path = str(tmp_path / "results.h5")
    with new_results(Path(path)) as writer:
        writer.finish(run.results[0])
    assert compare_by([path], "over", 0.03).comparisons[0].cases
    with pytest.raises(UsageError, match="world_size=2 .*world_size=1:.* pairs by options.over"):
        compare_by([path], "world_size", 0.03)
    with pytest.raises(UsageError, match="allowed: options.over$"):
        compare_by([path], "bakend", 0.03)


@pytest.mark.parametrize("is_log_first", [True, False])
def test_a_log_beside_a_run_of_the_same_sizes_is_not_said_to_lack_a_partner(
    monkeypatch: pytest.MonkeyPatch, *, is_log_first: bool,
) -> None:
    work, more = make_workload(), make_workload(size_bytes=2048)
    own = make_results(tuple(
        in_passes(make_case(size, backend=name, index=at), 1e-3, 2e-3, 1e-3)
        for at, (name, size) in enumerate(product(("gloo", "mpi"), (work, more)))))
    log = make_results((in_passes(make_case(work, backend="gloo", index=9, warmup=1), 1e-3),))
    log = replace(log, run=replace(log.run, imported=("other",)))
    side = Side("A", (log, own) if is_log_first else (own, log), ("a", "b"))
    monkeypatch.setattr("hpcbench.answers.compare.read_side", lambda _: side)
    (found,) = compare_by(["A"], "backend", 0.03).comparisons
    assert len(found.cases) == 2 and all(case.in_launch for case in found.cases)
    ((_, why),) = found.unmatched
    assert why.startswith("no pass has both") and found.of_one_work
    assert "backend" in paired_keys(side) and "requested_bytes" not in paired_keys(side)
    (by_size,) = compare_by(["A"], "requested_bytes", 0.03).comparisons
    assert by_size.cases and not by_size.of_one_work
    assert " wins" not in str(comparison_table(by_size))


def test_an_implementation_is_the_fastest_only_of_tasks_that_others_have() -> None:
    one, rest = CaseOfSide(case(), (1.0,)), {f"{at}": CaseOfSide(case(), (9.0,)) for at in range(3)}
    slow, fast = {"x": replace(one, launch_s=(2.0,)), **rest}, {"x": one}
    assert [*_fastest_first({"slow": slow, "fast": fast})] == ["fast", "slow"]


def test_a_variable_that_is_not_set_is_a_value() -> None:
    plain = make_case()
    items = tuple(in_passes(replace(plain, case_id=f"{at}", env=env), 1e-3, 1e-3, 1e-3)
                  for at, env in enumerate(((), (("NCCL_ALGO", "Ring"),))))
    assert [*split_by(Side("A", (make_results(items),)), "env.NCCL_ALGO")] == ["unset", "Ring"]


def test_cases_that_differ_in_iterations_alone_are_both_compared() -> None:
    items = tuple(in_passes(make_case(backend=backend, iterations=iterations), 1e-3, 1e-3, 1e-3)
                  for backend in ("gloo", "mpi") for iterations in (10, 20))
    found = split_by(Side("A", (make_results(items),)), "backend")
    assert {name: len(rows) for name, rows in found.items()} == {"gloo": 2, "mpi": 2}
    assert found["gloo"].keys() == found["mpi"].keys()


def test_imported_cases_of_one_label_are_all_compared_by_a_key() -> None:
    items = tuple(in_passes(make_case(backend=backend, block=f"nccl-bw {node}", batch=calls), 1e-3)
                  for backend, calls in (("gloo", 20), ("mpi", 50)) for node in ("node1", "node2"))
    found = split_by(measured("A", *items, programs=("SuperBench",)), "backend")
    assert {name: len(rows) for name, rows in found.items()} == {"gloo": 2, "mpi": 2}
    assert found["gloo"].keys() == found["mpi"].keys()


def test_the_link_to_the_newest_run_is_no_other_run(tmp_path: Path) -> None:
    """Patterns such as results/* find it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.h5").symlink_to(RESULTS["mixed"])
    (tmp_path / "latest").symlink_to("run")
    runs = [tmp_path / "latest", tmp_path / "run"]
    assert [*each_once(runs)] == [*each_once(runs[::-1])] == runs[1:]
    assert each_once(runs[:1]) == runs[:1]
    other = str(RESULTS["mixed"])
    assert CliRunner().invoke(app, ["advise", *map(str, runs)]).exit_code == 0
    rows = CliRunner().invoke(app, ["export", *map(str, runs), "--to", "csv"]).stdout
    assert rows == CliRunner().invoke(app, ["export", str(runs[1]), "--to", "csv"]).stdout
    found = compare_sides([*map(str, runs), other], 1.0)
    assert found.sides == (str(runs[1]), other)
    with pytest.raises(UsageError, match="is that same run"):
        compare_sides([*map(str, runs)], 1.0)
    (doubt,) = compare_sides([f"{runs[1]},{RESULTS['training']}", other], 1.0).doubts[:1]
    assert other in doubt, "a run on two sides"
    many = ",".join([other] * 60)
    with pytest.raises(UsageError, match="given twice"):
        compare_sides([many, other], 1.0)
    assert CliRunner().invoke(
        app, ["export", *map(str, runs), "--to", "prometheus"]).exit_code == 0


@pytest.mark.parametrize("command", [["advise"], ["report", "-o", "/nowhere/x.html"]])
def test_a_file_is_not_two_runs(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, *[str(RESULTS["mixed"])] * 2])
    assert isinstance(done.exception, UsageError) and "is given twice" in str(done.exception)


@pytest.mark.parametrize(("words", "said"), [
    (("{mixed}",), "compare needs two sides"),
    (("{collective}", "{training}"), "nothing to compare between"),
    (("{mixed}", "--by", "stratgy"), 'did you mean "strategy"? allowed: strategy'),
    (("{mixed}", "{training}", "--by", "backend"), "compares inside one side"),
    (("{mixed}", "/nowhere"), "no such file"),
    (("old=", "{training}"), "names no results file"),
    ((",", "{training}"), "names no results file"),
    (("{mixed}", "{training}", "--plot", "a.gif"), "the name must end with .png"),
])
def test_bad_input_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = hpcbench("compare", *(word.format(**RESULTS) for word in words))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done
