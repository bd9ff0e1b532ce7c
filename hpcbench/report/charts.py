"""Which charts a run has: those of each kind, the heat map of one case, and the canary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpcbench.analysis.recommend import Recommendations
from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.canary_runs import FEWEST_FOR_DRIFT, LEAST_DRIFT, OLD_RULE, Canary, CanaryRun
from hpcbench.reduce.results import FOLDS, CaseResult, CaseSamples, Results, SampleSource
from hpcbench.reduce.stack import SampleMap, sample_map
from hpcbench.reduce.timeline import courses_of
from hpcbench.report.chart_names import with_short_names
from hpcbench.report.named_case import named_case
from hpcbench.units import grouped, plural
from hpcbench.views.chart import (
    Axis,
    BarChart,
    Chart,
    HeatMap,
    HeatMapCase,
    Line,
    LineChart,
    Panel,
    Point,
    Scale,
    is_wide,
)
from hpcbench.views.faults import injected_text
from hpcbench.views.fitting_units import with_fitting_units
from hpcbench.views.links import declared_links
from hpcbench.views.table import Range, Show
from hpcbench.views.telemetry_chart import telemetry_chart
from hpcbench.views.timeline import timeline_chart
from hpcbench.views.timing import INTERVAL_TITLE, repeats_text, timing_text
from hpcbench.views.topics import Told
from hpcbench.views.winners import winners_of, with_winners
from hpcbench.views.words import device_type, env_text, from_to_text

WIDE = 8
"""Times of which the longest is this many times the shortest are on a log scale."""
MOST_COLUMNS = 1000
"""More samples than this share columns: a picture has about as many pixels."""
FEWEST_RUNS = 3
"""Fewer runs of the canary are described in one line; a chart of them would show no course."""
MARGIN = 0.01
CANARY_FOLD = "local_max"
"""The canary's times are folded by it, whatever the modes of the sweep."""


def charts_of(
    results: Results, source: SampleSource, told: Sequence[Told] = (), case: str | None = None,
) -> list[Chart]:
    """Return the charts of a run, and of what is told of it; none where no case is ok.

    ``case`` names the one whose samples are shown. Raises UsageError for one that is not there.
    """
    if most_telling(results.cases) is None:
        return []
    named = None if case is None else named_case(results.cases, case)
    winners = {best: others for one in told if isinstance(one.record, Recommendations)
               for best, others in winners_of(one.record).items()}
    return with_short_names([with_winners(with_fitting_units(_without_empty(chart)), winners)
                             for chart in _charts(results, source, told, named)])


def _without_empty(chart: Chart) -> Chart:
    return chart.without_empty() if isinstance(chart, BarChart) else chart


def _charts(
    results: Results, source: SampleSource, told: Sequence[Told], named: CaseResult | None,
) -> Iterator[Chart]:
    by_kind = grouped((item.case.kind, item) for item in results.cases)
    for kind in kinds():
        items = by_kind.get(kind)
        if not items:  # its presenter need not be loaded
            continue
        for chart in presenter_of(kind).charts(items, results.derived.get(kind, {})):
            yield _with_timing(chart, results)
    for one in told:
        yield from one.topic.charts(one.record)
    yield from _map(results, source, named)
    yield from timelines(results, source, named)
    if results.told and (course := telemetry_chart(results, source)) is not None:
        yield course
    if results.canary and len(results.canary.runs) >= FEWEST_RUNS:
        yield canary_chart(results.canary, results.plan)


def _map(results: Results, source: SampleSource, named: CaseResult | None) -> Iterator[Chart]:
    """Yield the map of the named case, else of the most telling one; nothing without samples."""
    shown = named or most_telling(results.cases)
    samples = source.samples(shown.case.case_id) if shown else None
    if shown is not None and samples is not None and samples.start_ns.size:
        yield _with_choice(_with_timing(rank_iteration(shown, samples), results), shown, named)


def _with_choice(chart: Chart, shown: CaseResult, named: CaseResult | None) -> Chart:
    """Return the chart with a note that says why it is of this case, and how to see another."""
    case = shown.case
    why = "it was asked for" if named is shown else (
        f"of kind {case.kind} it comes first by: {_heat_map_case(case).rule}; "
        "hpcbench plot --case shows another")
    return replace(chart, notes=(*chart.notes, f"Shown is case {case.case_id}: {why}."))


def timelines(
    results: Results, source: SampleSource, named: CaseResult | None = None,
) -> Iterator[Chart]:
    """Yield for each kind when each rank was where in chosen samples of its most telling case.

    Of the kind of the ``named`` case that is the case. There is none where ranks read different
    clocks: samples hold the stamps of their own.
    """
    if results.clocks is None or results.clocks.n_clocks > 1:
        return
    for _, items in grouped((item.case.kind, item) for item in results.cases).items():
        item = named if named in items else most_telling(items)
        if item is None:
            continue
        samples = source.samples(item.case.case_id)
        if samples is None or not samples.start_ns.size:
            continue
        looks = presenter_of(item.case.kind).part_looks
        chart = timeline_chart(item, courses_of(samples), _called(item), looks)
        if chart is not None:
            yield _with_choice(_with_timing(chart, results), item, named)


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
        _heat_map_case(item.case).order, item.case.batch == 1, -item.case.index))


def origin_text(results: Results) -> str:
    """Return which run it was, on what, over which declared links, and with which versions."""
    run, links = results.run, declared_links(results.plan.config)
    versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    when = run.started_at or "start time unknown"
    faults = f"{injected_text(run).upper()}; " if run.faults else ""
    return (f"{faults}{run.name}, run {run.run_id}, {when}; "
            f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')}; "
            f"{links}{'; ' * bool(links)}{versions}")


def rank_iteration(item: CaseResult, samples: CaseSamples) -> HeatMap:
    """Return how long each rank was in the call, for one case with at least one sample."""
    case, grid = item.case, sample_map(samples, MOST_COLUMNS)
    called = _heat_map_case(case)
    limits = Range(grid.least_s, grid.greatest_s)
    wide = is_wide([limits], WIDE)
    singles = " or a single checked call" if grid.has_single else ""
    return HeatMap(
        title=f"{called.heading}: time in the call, by rank and iteration",
        subtitle=_where(item, called), file_stem="rank_iteration",
        notes=(_map_caption(case.batch, called.note, grid),), case_ids=(case.case_id,),
        x=Axis("iteration, in the order they ran"), y=Axis("rank"), rows=grid.ranks,
        values=grid.time_s, n_columns=grid.n_samples, step=grid.step,
        colour=Axis("time in the call", Show.US, "us, log scale" if wide else "us",
                    Scale.LOG if wide else Scale.LINEAR),
        limits=limits, outside=(grid.below, grid.above), spans=grid.untimed,
        span_title=f"warm-up{singles}, not in the statistics",
        breaks=tuple(end + 1 for end in grid.pass_ends))


def _called(item: CaseResult) -> str:
    """Return what was called, and where."""
    called = presenter_of(item.case.kind).heat_map_case(item.case)
    return f"{called.heading}: {_where(item, called)}" if called else item.case.label


def _where(item: CaseResult, called: HeatMapCase) -> str:
    case = item.case
    words = (case.backend, device_type(item), plural(case.world_size, "rank"), *called.words,
             env_text(case))
    return ", ".join(filter(None, words))


def _heat_map_case(case: Case) -> HeatMapCase:
    """Return how the case's kind describes it, or a description that fits any case."""
    work = case.workload
    return presenter_of(case.kind).heat_map_case(case) or HeatMapCase(
        work.name, (work.dtype,), order=(case.world_size,))


def _map_caption(calls: int, note: str, grid: SampleMap) -> str:
    several = f" of a sample of {calls} calls" if calls > 1 else ""
    parts = [f"Each cell: end - start{several} on that rank's own clock.", note]
    if grid.pass_ends:
        parts.append("Dashed line: the next pass begins; other cases ran between.")
    if grid.step > 1:
        parts.append(f"Each column: the longest of {grid.step} samples.")
    return " ".join(filter(None, parts))


def canary_chart(canary: Canary, plan: Plan) -> LineChart:
    """Return the canary's times against the time since its first run, of FEWEST_RUNS at least."""
    launches = grouped((run.launch, run) for run in canary.runs)
    limits = _canary_limits(canary)
    scale = Scale.LOG if is_wide([limits], WIDE) else Scale.LINEAR
    lines = tuple(Line(f"launch {launch + 1}", tuple(
        (run.since_start_s, _canary_point(run)) for run in runs), is_joined=False)
        for launch, runs in launches.items())
    return LineChart(
        title="Canary: how the machine changed during the run", subtitle=canary.label,
        file_stem="canary", case_ids=(),
        notes=(_canary_caption(canary),
               f"Fold {CANARY_FOLD}: {FOLDS[CANARY_FOLD]}; {repeats_text(plan)}."),
        x=Axis("time since the first run of the canary", unit="s"),
        panels=(Panel(Axis("median", Show.US, "us", scale, limits), lines,
                      reference=_around(canary, LEAST_DRIFT)),))


def _around(canary: Canary, share: float) -> Range:
    """Return the first run's median, and what is such a share less and more."""
    first = canary.runs[0].median_s
    return Range(first * (1 - share), first * (1 + share), first)


def _canary_point(run: CanaryRun) -> Point:
    if run.ci_low_s is None or run.ci_high_s is None:
        return Point(run.median_s)
    return Point(run.median_s, Range(run.ci_low_s, run.ci_high_s))


def _canary_limits(canary: Canary) -> Range:
    """Return limits in which all runs and twice the band of LEAST_DRIFT are seen."""
    seen = _around(canary, 2 * LEAST_DRIFT)
    low = min(seen.least, *(run.ci_low_s or run.median_s for run in canary.runs))
    high = max(seen.greatest, *(run.ci_high_s or run.median_s for run in canary.runs))
    return Range(low / (1 + MARGIN), high * (1 + MARGIN))


def _canary_caption(canary: Canary) -> str:
    n = from_to_text(run.n for run in canary.runs)
    text = (f"Point: median of n = {n} samples of one of {plural(len(canary.runs), 'run')}. "
            f"Bar: {INTERVAL_TITLE}, none where n < 6. "
            f"Grey: within {LEAST_DRIFT:.0%} of the first run.")
    text += f" {canary.n_not_ok} more runs were not ok." if canary.n_not_ok else ""
    if canary.drift is None:
        return f"{text} Fewer than {FEWEST_FOR_DRIFT} runs cannot tell drift."
    if canary.tau is None:
        return f"{text} Drift: {canary.drift:+.1%} ({OLD_RULE})."
    how = ", ".join([f"Kendall's tau {canary.tau:+.2f}", *canary.quality])
    return f"{text} Drift: {canary.drift:+.1%} ({how})."
