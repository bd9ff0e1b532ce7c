"""Short words for cases, results and numbers, the same in every table, figure and message.

Labels without the words that tell none apart; what times are: mode, fold, interval, clock, flags;
which faults were injected and which links declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcbench.plan.case import Case, Plan
from hpcbench.plan.points import Option, Values
from hpcbench.reduce.results import CaseResult, Results, RunInfo
from hpcbench.reduce.spread import clock_bound_s, late_share, ramp_share
from hpcbench.reduce.timing import CI_LEVEL
from hpcbench.units import format_seconds, grouped, plural
from hpcbench.views.table import Line, Range, Show, cell_text


def distinct(values: Iterable[object]) -> str:
    """Return the different values, comma-separated, in order of appearance; None is left out."""
    return ",".join(dict.fromkeys(str(value) for value in values if value is not None))


def span(numbers: Iterable[int]) -> int | Range:
    """Return the one number that all are, or their range; there is at least one."""
    ordered = sorted(set(numbers))
    return ordered[0] if len(ordered) == 1 else Range(ordered[0], ordered[-1])


def span_text(numbers: Iterable[int]) -> str:
    """Return ``64``, or ``64..8192``: the least and the most of at least one number."""
    return cell_text(span(numbers), Show.COUNT)


def from_to_text(numbers: Iterable[int]) -> str:
    """Return ``20``, or ``5 to 20``: the least and the most of at least one number."""
    return span_text(numbers).replace("..", " to ")


def options_text(options: Sequence[tuple[str, Option]]) -> str:
    """Return ``chunks=4 weight=sharded``, or nothing."""
    return " ".join(f"{name}={_plain(value)}" for name, value in options)


def option_lines(options: Mapping[str, Values]) -> Iterator[Line]:
    """Yield a line of `hpcbench list` for each option: what it may be, and its default."""
    for name, values in options.items():
        allowed = (", ".join(map(_plain, values.allowed)) if values.allowed else
                   f"a number from {values.least}")
        yield listed_more(f"option {name}", f"{allowed}; default {_plain(values.default)}")


def listed_more(title: str, text: str) -> Line:
    """Return a line of `hpcbench list` below the one that it says more of."""
    return Line(f"{'':<22}{title}: {text}", "quiet")


def _plain(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def env_text(case: Case) -> str:
    """Return ``NCCL_ALGO=Ring NCCL_PROTO=LL``, or nothing."""
    return " ".join(f"{key}={value}" for key, value in case.env)


def backend_text(case: Case) -> str:
    return f"{case.backend} {env_text(case)}".rstrip()


def device_type(result: CaseResult) -> str:
    """Return ``cpu`` or ``cuda``: where the case ran, or was planned to run."""
    return (result.device or result.case.device).split(":")[0]


def device_memory_how(result: CaseResult) -> str | None:
    """Return ``direct``, ``staged``, ``direct,staged`` where ranks differ; None if unknown."""
    reports = [left["device_memory"] for left in result.detail.values() if "device_memory" in left]
    return distinct(sorted(item["how"] for item in reports)) or None


def device_memory_text(result: CaseResult) -> str:
    """Return ``staged through the host`` or the like; nothing for what is usual, direct on cpu."""
    how = device_memory_how(result)
    if how is None or (how == "direct" and device_type(result) == "cpu"):
        return ""
    return {"staged": "staged through the host", "direct": "direct"}.get(
        how, "direct on some ranks, staged through the host on others")


def short_labels(labels: Iterable[str]) -> Mapping[str, str]:
    """Return `told_apart` of each label, the title of which is its first word."""
    each = list(dict.fromkeys(labels))
    titles = [(label.split(" ", 1)[0], label.split()[1:]) for label in each]
    return dict(zip(each, told_apart(titles), strict=True))


def shortened(text: str, labels: Mapping[str, str]) -> str:
    for label in sorted(labels, key=len, reverse=True):
        text = text.replace(label, labels[label])
    return text


def told_apart(titles: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return titles; those that several have, with those of their words that tell them apart."""
    alike = grouped((title, frozenset(words)) for title, words in titles)
    return [" ".join((title, *(word for word in words
                               if word and not all(word in other for other in alike[title]))))
            for title, words in titles]


def without_shared(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that all of several labels have, and each label without them.

    A label that has no other words keeps its first one. Of a single label nothing is taken.
    """
    words = [label.split() for label in labels]
    if len({*labels}) < 2:
        return "", [*labels]
    shared = set.intersection(*map(set, words))
    own = [" ".join(word for word in each if word not in shared).rstrip(",") or each[0]
           for each in words]
    if len({*own}) < len({*labels}):  # labels may differ in how often they have a word
        return "", [*labels]
    return " ".join(word for word in words[0] if word in shared), own


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


def flag_cell(item: CaseResult, show: Show = Show.US) -> str:
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
    return ", ".join(f"{FLAGS[word]} {figures.get(word, '')}".rstrip()
                     for word in item.timing.quality if word in FLAGS)


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


def batch_text(case: Case) -> str:
    text = f"{case.mode} x{case.batch}" if case.batch > 1 else case.mode
    return text + _graph_words(case)


def repeats_text(plan: Plan) -> str:
    """Return ``3 passes`` or ``2 launches x 3 passes``."""
    passes = plural(plan.passes, "pass")
    return passes if plan.launches == 1 else f"{plural(plan.launches, 'launch')} x {passes}"


def injected_text(run: RunInfo) -> str:
    return f"faults were injected: {'; '.join(run.faults)}" if run.faults else ""


def declared_links(config: Mapping[str, Any]) -> str:
    """Return ``declared: interconnect nvlink, nvlink 450 GB/s``, or nothing where none is.

    ``config`` is that of a plan.
    """
    hardware = config.get("hardware", {})
    name, rate = hardware.get("interconnect"), hardware.get("network_bandwidth_gbps")
    parts = [f"interconnect {name}"] if name else []
    parts += [f"{link} {peak:g} GB/s" for link, peak in hardware.get("link_peaks", {}).items()]
    parts += [f"network {rate:g} Gbit/s a node"] if rate else []
    return f"declared: {', '.join(parts)}" if parts else ""
