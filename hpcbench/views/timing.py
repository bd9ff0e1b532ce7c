"""What the times of a case are, in words: mode, fold, interval, clock and flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.precision import CI_LEVEL
from hpcbench.reduce.results import FOLDS, CaseResult, Results
from hpcbench.reduce.spread import clock_bound_s, late_share, ramp_share
from hpcbench.units import format_seconds, plural
from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Cell, Show, Words
from hpcbench.views.words import distinct

MODES: Mapping[str, str] = MappingProxyType({
    "isolated": "a sample is one call, which all ranks start at an agreed time",
    "pipelined": "a sample is several calls back to back after a barrier of a control group",
    "barrier_start": "a sample is one call after a barrier of a control group",
})
"""Timing mode -> what a sample is (docs/method.md)."""
USUAL_FOLDS: Mapping[str, str] = MappingProxyType({
    "isolated": "global", "pipelined": "per_call", "barrier_start": "local_max"})
"""Timing mode -> the fold of its times, unless a case says otherwise."""
INTERVAL_TITLE = f"{CI_LEVEL:.0%} confidence interval of the median (order statistics)"

FLAGS: Mapping[str, str] = MappingProxyType({
    "clock_unreliable": "clock", "late_starts": "late", "fragile": "fragile",
    "two_modes": "modes",
    "repeats": "repeats", "ramp": "ramp", "trend": "trend", "change_point": "change",
    "unsteady": "unsteady"})
"""Word of QUALITIES -> its short form; ci_unreliable is the question mark of the interval."""


def launches_title(items: Iterable[CaseResult]) -> str:
    """Return what the range of launches' medians is; nothing of cases without one."""
    levels = {(len(item.timing.launch_medians_s), item.timing.launch_level) for item in items
              if item.timing and item.timing.launch_level is not None}
    holds = distinct(f"{100 * level:.4g} % ({plural(n, 'launch')})" for n, level in sorted(
        (n, level) for n, level in levels if level is not None))
    return (f"least to greatest median of a launch; it holds the median over launches with a "
            f"probability of {holds}" if levels else "")


def fold_of(item: CaseResult) -> str:
    """Return the fold of a case's times; without any times the usual one of its mode."""
    return item.timing.fold if item.timing else USUAL_FOLDS[item.case.mode]


def mode_and_fold(item: CaseResult) -> tuple[str, str]:
    """Return both names; times that differ in one of them must never be compared."""
    return item.case.mode, fold_of(item)


def timed_text(item: CaseResult) -> str:
    """Return the mode and the fold of a case's times: ``isolated, fold global``."""
    return ", fold ".join(mode_and_fold(item)) + _graph_words(item.case)


def mode_text(item: CaseResult) -> str:
    """Return the mode, with its fold where that is not the usual one."""
    mode, fold = mode_and_fold(item)
    text = mode if fold == USUAL_FOLDS[mode] else f"{mode} (fold {fold})"
    return text + _graph_words(item.case)


def _graph_words(case: Case) -> str:
    """Return that a call is the replay of a CUDA graph, if it is."""
    return ", CUDA graph" if case.cuda_graph else ""


def flag_cell(item: CaseResult, show: Show = Show.US) -> Cell:
    """Return the case's flags with their figures: ``late 23%, fragile 98.10 us, trend``.

    Times are shown in the unit of the table's times.
    """
    if item.timing is None or item.statistics is None:
        return ""
    unflagged_s = item.timing.unflagged_median_s  # None where all samples are flagged
    figures = {
        "late_starts": f"{late_share(item) or 0:.0%}",
        "ramp": f"{ramp_share(item) or 0:.0%}",
        "two_modes": " ".join(f"{cell_text(mode.median_s, show)} {show.value} {mode.share:.0%}"
                              for mode in item.timing.modes),
        "fragile": "" if unflagged_s is None else f"{cell_text(unflagged_s, show)} {show.value}"}
    return Words(tuple((FLAGS[word], figures.get(word, ""))
                       for word in item.timing.quality if word in FLAGS))


def clock_text(results: Results, items: Iterable[CaseResult]) -> str:
    """Return how times of different ranks were compared, and their bound over ``items``."""
    clocks = results.clocks
    bound_s = clock_bound_s(items)
    if clocks is None or bound_s is None:
        return "clocks: times of different ranks are not compared"
    if clocks.n_clocks == 1:
        return "clock: one for all ranks"
    if clocks.n_syncs == 0:
        return f"clocks: {clocks.n_clocks} different ones, not synchronised"
    return (f"clocks: {clocks.n_clocks}, {plural(clocks.n_syncs, 'synchronisation')} over MPI, "
            f"ranks' times at most {format_seconds(bound_s)} apart")


def iterations_text(cases: Sequence[Case]) -> str:
    """Return ``20`` or ``5 to 10000`` samples of a pass, over cases that may differ."""
    least = min((case.min_iterations or case.iterations for case in cases), default=0)
    most = max((case.iterations for case in cases), default=0)
    return str(most) if least == most else f"{least} to {most}"


def samples_text(cases: Iterable[Case]) -> str:
    """Return ``20``, ``auto``, or what there is of both."""
    return distinct(str(case.iterations) if case.is_fixed else "auto" for case in cases)


def batch_text(case: Case) -> str:
    """Return the mode, and how many calls a sample is where that is more than one."""
    text = f"{case.mode} x{case.batch}" if case.batch > 1 else case.mode
    return text + _graph_words(case)


def repeats_text(plan: Plan) -> str:
    """Return ``3 passes`` or ``2 launches x 3 passes``."""
    passes = plural(plan.passes, "pass")
    return passes if plan.launches == 1 else f"{plural(plan.launches, 'launch')} x {passes}"


def timing_text(results: Results, items: Sequence[CaseResult]) -> str:
    """Return how the cases of a chart were timed: mode, fold, clock, repeats."""
    pairs = dict.fromkeys(mode_and_fold(item) for item in items)
    modes = "; ".join(f"{mode}, fold {fold} ({FOLDS[fold]})" for mode, fold in pairs)
    return f"Mode {modes}; {clock_text(results, items)}; {repeats_text(results.plan)}."
