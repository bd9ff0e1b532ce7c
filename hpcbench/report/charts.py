"""Which charts a run has: those of each kind, the heat map of one case, and the canary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.reduce.results import CaseResult, Results, RunInfo, SampleSource
from hpcbench.report.canary_chart import FEWEST_RUNS, canary_chart
from hpcbench.report.rank_iteration import heat_map_case, rank_iteration
from hpcbench.views.chart import Chart
from hpcbench.views.timing import timing_text
from hpcbench.views.words import plural


def charts_of(results: Results, source: SampleSource) -> Iterator[Chart]:
    """Yield the charts of a run; none where no case is ok."""
    telling = most_telling(results.cases)
    if telling is None:
        return
    for chart in _charts_of_kinds(results):
        yield _with_timing(chart, results)
    samples = source.samples(telling.case.case_id)
    if samples is not None and samples.start_ns.size:
        yield _with_timing(rank_iteration(telling, samples), results)
    if results.canary and len(results.canary.runs) >= FEWEST_RUNS:
        yield canary_chart(results.canary, results.plan)


def _charts_of_kinds(results: Results) -> Iterator[Chart]:
    for kind in kinds():
        items = [item for item in results.cases if item.case.kind == kind]
        yield from presenter_of(kind).charts(items, results.derived.get(kind, {}))


def _with_timing(chart: Chart, results: Results) -> Chart:
    """Return the chart with a note that says how its cases were timed."""
    shown = set(chart.case_ids)
    items = [item for item in results.cases if item.case.case_id in shown]
    return replace(chart, notes=(*chart.notes, timing_text(results, items)))


def most_telling(items: Iterable[CaseResult]) -> CaseResult | None:
    """Return the case to map: of the first kind with statistics the one that its presenter prefers.

    A case whose samples are single calls goes before one with several calls a sample.
    """
    ranked = list(kinds())
    measured = [item for item in items if item.statistics is not None]
    first = min((item.case.kind for item in measured), default="", key=lambda kind: (
        ranked.index(kind) if kind in ranked else len(ranked)))
    of_kind = [item for item in measured if item.case.kind == first]
    return max(of_kind, default=None, key=lambda item: (
        heat_map_case(item.case).order, item.case.batch == 1, -item.case.index))


def origin_text(run: RunInfo) -> str:
    """Return which run it was, on what and with which versions."""
    versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    when = run.started_at or "start time unknown"
    return (f"{run.name}, run {run.run_id}, {when}; "
            f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')}; {versions}")
