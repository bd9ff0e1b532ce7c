"""The charts of a run, and those of them that were requested.

They are those of each kind, of answers, the heat map of one case, timelines of all ranks,
telemetry and the canary. Times are in the unit that makes their numbers short, and names are the
shortest that distinguish the charts."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import cycle
from typing import TypeVar

from hpcbench.answers.topics import TopicResult
from hpcbench.answers.winners import Winners, winners_among, with_winners
from hpcbench.config.axes import quote, unknown_name
from hpcbench.errors import UsageError
from hpcbench.kinds.registry import kind_aliases, kinds
from hpcbench.plan.case import Case, Plan
from hpcbench.records import dataclass
from hpcbench.reduce.results import (
    FEWEST_FOR_DRIFT,
    LEAST_DRIFT,
    Canary,
    CaseResult,
    CaseSamples,
    Results,
    SampleSource,
    fold_text,
)
from hpcbench.reduce.stack import SampleMap, SampleTimeline, sample_map, sample_timelines
from hpcbench.report.colours import colours_of, line_colours, with_colours
from hpcbench.units import grouped, plural, with_sizes
from hpcbench.views.chart import (
    PART_COLOURS,
    PLAIN,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Chart,
    ChartPoint,
    Curve,
    DotChart,
    HeatMap,
    HeatMapCase,
    LineChart,
    Look,
    Panel,
    Scale,
    file_name,
    in_fields,
    is_wide,
)
from hpcbench.views.columns import clock_text, passes_text, telemetry_chart
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import (
    INTERVAL_TITLE,
    Cell,
    Column,
    Range,
    Show,
    WithInterval,
    declared_links,
    device_type,
    env_text,
    from_to_text,
    mode_and_fold,
    repeats_text,
)

LADDER = (Show.US, Show.MS, Show.S)
"""From the smallest unit; a time is in no smaller one than its kind chose."""
GREATEST_S = {Show.US: 0.01, Show.MS: 10.0}
"""Times from this on are in the next unit: 10,000 is the first number that is hard to read."""
Rows = TypeVar("Rows", DotChart, BarChart)
Titled = TypeVar("Titled", Axis, Column)


def with_fitting_units(chart: Chart) -> Chart:
    """Return the chart with each axis and column of times in the unit that fits its values."""
    if isinstance(chart, LineChart):
        return replace(chart, panels=tuple(replace(panel, y=fitted(panel.y, (
            end for line in panel.lines for _, point in line.points for end in _ends(point))))
            for panel in chart.panels))
    if isinstance(chart, DotChart):
        ends = [end for row in chart.rows for end in _ends(row.point)]
        return _fitted_rows(chart, ends, [row.cells for row in chart.rows])
    if isinstance(chart, BarChart):
        bars = [bar for section in chart.sections for bar in section.bars]
        lengths = [sum(length for length, _ in bar.segments) for bar in bars]
        return _fitted_rows(chart, lengths, [bar.cells for bar in bars])
    if isinstance(chart, HeatMap):
        return replace(chart, colour=fitted(chart.colour, [chart.limits.greatest]))
    return chart


def fitted(titled: Titled, values_s: Iterable[float]) -> Titled:
    """Return an axis or a column in the unit that fits these times; others as they are."""
    if titled.show not in GREATEST_S or not titled.unit.startswith(titled.show.value):
        return titled
    greatest, show = max(values_s, default=0.0), titled.show
    while show in GREATEST_S and greatest >= GREATEST_S[show]:
        show = LADDER[LADDER.index(show) + 1]
    unit = show.value + titled.unit.removeprefix(titled.show.value)
    return replace(titled, show=show, unit=unit)


def _ends(point: ChartPoint) -> Iterator[float]:
    yield point.value
    yield from (span.greatest for span in (point.interval, point.band) if span)


def _fitted_rows(
    chart: Rows, along_x: list[float], rows: list[tuple[Cell, ...]],
) -> Rows:
    cells = [number for at, column in enumerate(chart.columns) if column.show in GREATEST_S
             for number in _numbers(row[at] for row in rows)]
    values = cells + (along_x if chart.x.show in GREATEST_S else [])
    return replace(chart, x=fitted(chart.x, values), columns=tuple(
        fitted(column, values) for column in chart.columns))


def _numbers(cells: Iterable[Cell]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, Range):
            yield cell.greatest
        elif isinstance(cell, WithInterval):
            yield cell.value
        elif isinstance(cell, (int, float)):
            yield float(cell)


MOST_RANKS = 32
"""More ranks than this are no longer distinguishable in one picture."""
_BEFORE = Look("before it begins", "#ffffff", 0.0)
_WHOLE, _REST = Look("in the call", PLAIN), Look("other", "#bbbbbb")
_COLUMNS = (Column("whole", "takes", Show.US, "us"), Column("begin", "begins after", Show.US, "us"))


def timeline_chart(
    item: CaseResult, time_series: tuple[SampleTimeline, ...], called: str,
    known: Mapping[str, Look],
) -> BarChart | None:
    """Return a bar a rank for each chosen sample; None where there is none, or of too many ranks.

    ``called`` names the case, ``known`` is how parts look that other charts show, too."""
    if not time_series or len(time_series[0].ranks) > MOST_RANKS:
        return None
    names = dict.fromkeys(name for timeline in time_series for rank in timeline.ranks
                          for name, seconds in rank.parts if seconds > 0)
    looks = _looks([*names], known)
    sections = tuple(BarSection(
        f"the {timeline.name} sample, number {timeline.number}",
        tuple(_bars(timeline, looks))) for timeline in time_series)
    return BarChart(
        "When each rank was where, on one clock", called,
        f"timeline_{file_name(item.case.kind)}", (
            "Each bar: one rank in one sample, from the moment at which the first rank began. "
            "Chosen are the middle and the longest of the samples that count.",),
        (item.case.case_id,), Axis("time since the first rank began", Show.US, "us"), _COLUMNS,
        sections, tuple(looks.values()))


def _looks(names: Sequence[str], known: Mapping[str, Look]) -> dict[str, Look]:
    """Return how each part looks: as in other charts, else in a colour that is not taken."""
    if names == [""]:
        return {"": _WHOLE}
    own = {"": _REST, **known}
    used = {own[name].colour for name in names if name in own}
    free = cycle([one for one in PART_COLOURS if one not in used] or PART_COLOURS)
    return {name: own[name] if name in own else Look(name, next(free)) for name in names}


def _bars(timeline: SampleTimeline, looks: dict[str, Look]) -> Iterator[Bar]:
    for rank in timeline.ranks:
        whole = sum(seconds for _, seconds in rank.parts)
        yield Bar(f"rank {rank.rank}", (whole, rank.begin_s), (
            (rank.begin_s, _BEFORE),
            *((seconds, looks[name]) for name, seconds in rank.parts if seconds > 0)))


LONGEST = 40
"""A name that would be longer is the first part with a number instead."""


def with_short_names(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts with the fewest parts of their names, which - separates, that differ."""
    names = [chart.file_stem for chart in charts]
    short = [_shortest(name, names) for name in names]
    seen = Counter[str]()
    for at, name in enumerate(names):
        if len(short[at]) > LONGEST:
            first = name.partition("-")[0]
            seen[first] += 1
            short[at] = f"{first}-{seen[first]}"
    if len(set(short)) < len(short):  # a number that is another one's name
        return list(charts)
    return [replace(chart, file_stem=name) for chart, name in zip(charts, short, strict=True)]


def _shortest(name: str, names: Sequence[str]) -> str:
    parts = name.split("-")
    others = [other.split("-") for other in names if other != name]
    return next(("-".join(parts[:count]) for count in range(1, len(parts))
                 if all(other[:count] != parts[:count] for other in others)), name)


MOST_NAMED = 3


def named_case(items: Sequence[CaseResult], name: str) -> CaseResult:
    """Return the case with this id or label, or the only one whose id begins with ``name``.

    Or else the only one whose label contains it. Raises UsageError where none or several fit, or
    where the case has no samples."""
    for fits in (
        [item for item in items if name in (item.case.case_id, item.case.label)],
        [item for item in items if name and item.case.case_id.startswith(name)],
        [item for item in items if name and name in item.case.label],
    ):
        if len(fits) > 1:
            raise UsageError(f"--case {quote(name)} fits {len(fits)} cases: {_listed(fits)}")
        for item in fits:
            if item.statistics is None:
                raise UsageError(f"--case {quote(name)}: the case is {item.status}, so it has no "
                                 "samples that count")
            return item
    raise UsageError(f"--case {quote(name)}: no case has this id or label; "
                     f"nearest: {_listed(_nearest(items, name))}")


def _nearest(items: Sequence[CaseResult], name: str) -> list[CaseResult]:
    def likeness(item: CaseResult) -> float:
        return max(difflib.SequenceMatcher(None, name.lower(), text.lower()).ratio()
                   for text in (item.case.label, item.case.case_id))
    timed = [item for item in items if item.statistics is not None]
    return sorted(timed, key=likeness, reverse=True)[:MOST_NAMED]


def _listed(items: Sequence[CaseResult]) -> str:
    named = ", ".join(f"{item.case.case_id} ({item.case.label})" for item in items[:MOST_NAMED])
    return f"{named} ..." if len(items) > MOST_NAMED else named or "none"


@dataclass(frozen=True, slots=True)
class ChartChoice:
    """Only charts of this ``kind``, and only those whose name fits one of the patterns ``only``.

    None and no pattern stand for all. ``case`` names the case whose samples are shown one by one;
    None is that of `case_to_map`."""

    kind: str | None = None
    only: tuple[str, ...] = ()
    case: str | None = None


ALL = ChartChoice()


def chosen_charts(
    charts: Iterable[Chart], results: Results, chosen: ChartChoice,
) -> Iterator[Chart]:
    """Yield the charts that were requested. Raises UsageError where a pattern fits none."""
    of_kind = _of_kind(list(charts), results, chosen.kind)
    for pattern in chosen.only:
        if not any(fnmatchcase(chart.file_stem, pattern) for chart in of_kind):
            names = ", ".join(chart.file_stem for chart in of_kind) or "none"
            raise UsageError(f"--only {pattern}: no chart has such a name; there are: {names}")
    yield from (chart for chart in of_kind if not chosen.only or any(
        fnmatchcase(chart.file_stem, pattern) for pattern in chosen.only))


def _of_kind(charts: list[Chart], results: Results, kind: str | None) -> list[Chart]:
    if kind is None:
        return charts
    wanted = kind_aliases().get(kind, kind)
    kinds_here = dict.fromkeys(item.case.kind for item in results.cases)
    if wanted not in kinds_here:
        raise UsageError(f"--kind {unknown_name(kind, kinds_here)}")
    ids = {item.case.case_id for item in results.cases if item.case.kind == wanted}
    return [chart for chart in charts if chart.case_ids and set(chart.case_ids) <= ids]


WIDE = 8
"""Times of which the longest is this many times the shortest are on a log scale."""
MOST_COLUMNS = 1000
"""More samples than this share columns: a picture has about as many pixels."""
FEWEST_RUNS = 3
"""Fewer runs of the canary are described in one line; a chart of them would show nothing."""
MARGIN = 0.01
CANARY_FOLD = "local_max"
"""The canary's times are folded by it, whatever the modes of the sweep."""


def charts_of(
    results: Results, source: SampleSource, advice: Sequence[TopicResult] = (),
    case: str | None = None, among: Sequence[Results] = (),
) -> list[Chart]:
    """Return the charts of a run, and of its answers; none where no case is ok.

    ``case`` names the one whose samples are shown; ``among`` are the runs that share colours of
    names. Raises UsageError for a case that is not there."""
    if case_to_map(results.cases) is None:
        return []
    named = None if case is None else named_case(results.cases, case)
    winners = winners_among(one.record for one in advice)
    return with_short_names(finished(_charts(results, source, advice, named), among or [results],
                                     winners))


def finished(
    charts: Iterable[Chart], several: Sequence[Results], winners: Winners | None = None,
) -> list[Chart]:
    """Return charts of runs in units that fit, with sizes such as 64KiB, their winners marked, and
    with one colour for each name."""
    items = [item for results in several for item in results.cases]
    full = [chart.without_empty() if isinstance(chart, BarChart) else chart for chart in charts]
    colours = {**line_colours(full), **colours_of(items)}
    return [with_colours(with_winners(with_fitting_units(replace(
        in_fields(chart, with_sizes), file_stem=chart.file_stem)), winners or {}), colours, items)
        for chart in full]


def _charts(
    results: Results, source: SampleSource, advice: Sequence[TopicResult], named: CaseResult | None,
) -> Iterator[Chart]:
    by_kind = grouped((item.case.kind, item) for item in results.cases)
    for kind in kinds():
        items = by_kind.get(kind)
        if not items:  # its presenter need not be loaded
            continue
        for shown in presenter_of(kind).overviews(items, results.derived.get(kind, {})):
            if isinstance(shown, Chart):
                yield _with_timing(shown, results)
    for result in advice:
        yield from result.topic.charts(result.record)
    yield from _map(results, source, named)
    yield from timelines(results, source, named)
    if results.telemetry and (telemetry := telemetry_chart(results, source)) is not None:
        yield telemetry
    if results.canary and len(results.canary.runs) >= FEWEST_RUNS:
        yield canary_chart(results.canary, results.plan)


def _map(results: Results, source: SampleSource, named: CaseResult | None) -> Iterator[Chart]:
    """Yield the map of the named case, else of `case_to_map`; nothing without samples."""
    shown = named or case_to_map(results.cases)
    samples = source.samples(shown.case.case_id) if shown else None
    if shown is not None and samples is not None and samples.start_ns.size:
        yield _with_choice(_with_timing(rank_iteration(shown, samples), results), shown, named)


def _with_choice(chart: Chart, shown: CaseResult, named: CaseResult | None) -> Chart:
    """Return the chart with a note on the choice of its case, and how to see another."""
    case = shown.case
    why = "it was asked for" if named is shown else (
        f"of kind {case.kind} it comes first by: {_heat_map_case(case).rule}; "
        "hpcbench plot --case shows another")
    return replace(chart, notes=(*chart.notes, f"Shown is case {case.case_id}: {why}."))


def timelines(
    results: Results, source: SampleSource, named: CaseResult | None = None,
) -> Iterator[Chart]:
    """Yield for each kind the timeline of all ranks in chosen samples of one case.

    That is the ``named`` case for its kind, else `case_to_map`. There is none where ranks read
    different clocks: samples hold the stamps of their own."""
    if results.clocks is None or results.clocks.n_clocks > 1:
        return
    for _, items in grouped((item.case.kind, item) for item in results.cases).items():
        item = named if named in items else case_to_map(items)
        if item is None:
            continue
        samples = source.samples(item.case.case_id)
        if samples is None or not samples.start_ns.size:
            continue
        looks = presenter_of(item.case.kind).part_looks
        described = presenter_of(item.case.kind).heat_map_case(item.case)
        called = (f"{described.heading}: {_where(item, described)}" if described else
                  item.case.label)
        chart = timeline_chart(item, sample_timelines(samples), called, looks)
        if chart is not None:
            yield _with_choice(_with_timing(chart, results), item, named)


def _with_timing(chart: Chart, results: Results) -> Chart:
    shown = set(chart.case_ids)
    items = [item for item in results.cases if item.case.case_id in shown]
    pairs = dict.fromkeys(mode_and_fold(item) for item in items)
    modes = "; ".join(f"{mode}, fold {fold} ({fold_text(fold)})" for mode, fold in pairs)
    return replace(chart, notes=(*chart.notes, f"Mode {modes}; {clock_text(results, items)}; "
                                               f"{passes_text(results)}."))


def case_to_map(items: Iterable[CaseResult]) -> CaseResult | None:
    """Return the case to map: the one that the presenter of the first kind with statistics prefers.

    Among equals, one whose samples are single calls goes before one with several calls a sample."""
    ranked = list(kinds())
    measured = [item for item in items if item.statistics is not None]
    first = min((item.case.kind for item in measured), default="", key=lambda kind: (
        ranked.index(kind) if kind in ranked else len(ranked)))
    of_kind = [item for item in measured if item.case.kind == first]
    return max(of_kind, default=None, key=lambda item: (
        _heat_map_case(item.case).order, item.case.batch == 1, -item.case.index))


def origin_text(results: Results) -> str:
    """Return the run, its ranks and nodes, its declared links and versions, in one line."""
    run, links = results.run, declared_links(results.plan.config)
    versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    when = run.started_at or "start time unknown"
    faults = f"{run.injected.upper()}; " if run.faults else ""
    return (f"{faults}{run.name}, run {run.run_id}, {when}; "
            f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')}; "
            f"{links}{'; ' * bool(links)}{versions}")


def rank_iteration(item: CaseResult, samples: CaseSamples) -> HeatMap:
    """Return the map of the time of each rank in the call, for a case with at least one sample."""
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


def _where(item: CaseResult, called: HeatMapCase) -> str:
    case = item.case
    parts = (case.backend, device_type(item), plural(case.world_size, "rank"), *called.words,
             env_text(case))
    return ", ".join(filter(None, parts))


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
    launches = grouped((run.launch, run) for run in canary.runs)
    limits = _canary_limits(canary)
    scale = Scale.LOG if is_wide([limits], WIDE) else Scale.LINEAR
    lines = tuple(Curve(f"launch {launch + 1}", tuple(
        (run.since_start_s, ChartPoint(
            run.median_s, None if run.ci_low_s is None or run.ci_high_s is None else Range(
                run.ci_low_s, run.ci_high_s))) for run in runs), is_joined=False)
        for launch, runs in launches.items())
    return LineChart(
        title="Canary: how the machine changed during the run", subtitle=canary.label,
        file_stem="canary", case_ids=(),
        notes=(_canary_caption(canary),
               f"Fold {CANARY_FOLD}: {fold_text(CANARY_FOLD)}; {repeats_text(plan)}."),
        x=Axis("time since the first run of the canary", unit="s"),
        panels=(Panel(Axis("median", Show.US, "us", scale, limits), lines,
                      reference=_around(canary, LEAST_DRIFT)),))


def _around(canary: Canary, share: float) -> Range:
    first = canary.runs[0].median_s
    return Range(first * (1 - share), first * (1 + share), first)


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
    if canary.drift is None or canary.tau is None:
        return f"{text} Fewer than {FEWEST_FOR_DRIFT} runs cannot tell drift."
    slope = f"slope {canary.drift:+.1%} over the run, Kendall's tau {canary.tau:+.2f}"
    return f"{text} {'Steady drift' if canary.is_drifting else 'No steady drift'}: {slope}."
