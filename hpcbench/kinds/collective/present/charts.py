"""Time and bus bandwidth of collectives: against size, or, with one size, as rows to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from hpcbench.kinds.collective.derive.deriver import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.collective.present.series import SeriesGroup, groups
from hpcbench.kinds.collective.present.tables import form_text
from hpcbench.operations.collectives import collective_spec
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.reduce.spread import FEWEST_FOR_PERCENTILES, interval_share
from hpcbench.units import size_text
from hpcbench.views.chart import (
    Axis,
    Chart,
    ChartPoint,
    Curve,
    Dot,
    DotChart,
    HeatMapCase,
    Level,
    LineChart,
    Panel,
    Scale,
    is_wide,
)
from hpcbench.views.table import Column, Range, Show, cell_text
from hpcbench.views.words import INTERVAL_TITLE, from_to_text, launches_title

Records = Mapping[str, CollectiveRecord]
Values = Callable[[CaseResult], Mapping[str, float]]
"""Returns a value for each time that statistics name: the time itself, or a rate in it."""
Names = tuple[str, str]
UNKNOWN = CollectiveRecord()
MEDIAN = "median_s"
INTERVAL, PERCENTILES, EXTREMES = ("ci_low_s", "ci_high_s"), ("p5_s", "p95_s"), ("min_s", "max_s")
LAUNCHES = ("launch_low_s", "launch_high_s")
MOST_BANDS = 3
"""Bands of more lines, one over the other, could not be told apart."""
MOST_LEVELS = 2
"""Of more backends what two ranks reached is not drawn."""
WIDE = 30
"""Rows whose longest time is this many times the shortest are on a log scale."""
SIZE = Axis("size", Show.SIZE, "bytes, log scale", Scale.LOG2)
TIME = Axis("time per operation", Show.US, "us", Scale.LOG)
BUSBW = Axis("bus bandwidth", Show.GB_PER_S, "GB/s", Scale.LOG)
ROW_COLUMNS = (
    Column("time_p50", "median", Show.US, "us", better="less"),
    Column("interval", "interval", Show.PERCENT, "+-%", better="less"),
    Column("busbw", "bus bandwidth", Show.GB_PER_S, "GB/s", better="more", optional=True))


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[Chart]:
    """Yield the charts of the cases that have statistics."""
    for group in groups(items):
        yield _dots(group, derived) if len(group.sizes) == 1 else _lines(group, derived)


def _lines(group: SeriesGroup, records: Records) -> LineChart:
    banded = len(group.series) <= MOST_BANDS
    times = tuple(_line(one.label, one.items, _times, banded=banded) for one in group.series)
    rates = tuple(_line(one.label, [item for item in one.items if item.case.world_size > 1],
                        lambda item: _known(item, records).busbw_at, banded=banded)
                  for one in group.series)
    return LineChart(
        title=f"{group.collective}: time and bus bandwidth against size",
        subtitle=group.subtitle, file_stem=group.file_stem, notes=(_caption(group),),
        case_ids=_ids(group), x=SIZE, panels=(
            Panel(TIME, times, "Time (latency)"),
            Panel(BUSBW, rates, "Bus bandwidth", levels=tuple(_levels(group, records)),
                  empty="One rank: nothing crosses a link,\nbus bandwidth is 0")))


def _levels(group: SeriesGroup, records: Records) -> Iterator[Level]:
    """Yield what declared links allow, if it is the same for all lines, and what two ranks reached.

    That is of each backend; of many backends the lines could not be told apart.
    """
    items = [item for one in group.series for item in one.items if item.case.world_size > 1]
    declared = {item.timing.link_bytes_per_s if item.timing else None for item in items}
    if len(declared) == 1 and (rate := next(iter(declared))):
        yield Level(f"declared link: {_rate(rate)}", rate, dotted=True)
    measured = dict.fromkeys((item.case.backend, rate) for item in items
                             if (rate := _known(item, records).measured_link))
    for backend, rate in measured if len(measured) <= MOST_LEVELS else ():
        yield Level(f"two {backend} ranks: {_rate(rate)}", rate)


def _rate(bytes_per_s: float) -> str:
    return f"{cell_text(bytes_per_s, Show.GB_PER_S)} GB/s"


def _ids(group: SeriesGroup) -> tuple[str, ...]:
    return tuple(item.case.case_id for item in group.items)


def _times(item: CaseResult) -> Mapping[str, float]:
    return asdict(_stats(item))


def _known(item: CaseResult, records: Records) -> CollectiveRecord:
    return records.get(item.case.case_id, UNKNOWN)


def _line(label: str, items: Sequence[CaseResult], values: Values, *, banded: bool) -> Curve:
    band = _band(items) if banded else None
    return Curve(label, tuple(
        (collective_of(item.case).size_bytes, _point(item, values(item), band))
        for item in items if MEDIAN in values(item)))


def _band(items: Sequence[CaseResult]) -> Names:
    """Return p5 and p95, or minimum and maximum for all of a line's cases."""
    return PERCENTILES if _have_percentiles(items) else EXTREMES


def _point(item: CaseResult, values: Mapping[str, float], band: Names | None) -> ChartPoint:
    bar = _bar(item)
    return ChartPoint(values[MEDIAN], _range(values, bar) if bar else None,
                 _range(values, band) if band else None)


def _bar(item: CaseResult) -> Names | None:
    """Return the ends of the error bar: the interval, else the range of launches, else none."""
    stats = _stats(item)
    if interval_share(stats) is not None:
        return INTERVAL
    return LAUNCHES if stats.launch_low_s is not None else None


def _range(values: Mapping[str, float], names: Names) -> Range | None:
    """Return the range between two values; a rate is the less the longer its time is."""
    found = sorted(values[name] for name in names if name in values)
    return Range(*found) if len(found) == len(names) else None


def _dots(group: SeriesGroup, records: Records) -> DotChart:
    size = group.sizes[0]
    rows = tuple(_dot(one.label or group.collective, item, records)
                 for one in group.series for item in one.items)
    wide = is_wide((row.point.band for row in rows if row.point.band), WIDE)
    return DotChart(
        title=f"{group.collective}{f' of {size_text(size)}' if size else ''}: time",
        subtitle=group.subtitle, file_stem=group.file_stem, notes=(_caption(group),),
        case_ids=_ids(group), rows=rows, columns=ROW_COLUMNS,
        x=Axis(TIME.title, TIME.show, TIME.unit, Scale.LOG if wide else Scale.LINEAR))


def _dot(label: str, item: CaseResult, records: Records) -> Dot:
    stats, rates = _stats(item), _known(item, records).bandwidth
    return Dot(label, _point(item, _times(item), _band([item])), (
        stats.median_s, interval_share(stats), rates.busbw_bytes_per_s if rates else None),
        case_id=item.case.case_id)


def _stats(item: CaseResult) -> Statistics:
    if item.statistics is None:
        raise ValueError(f"{item.case.case_id} has no statistics and cannot be drawn")
    return item.statistics


def _have_percentiles(items: Sequence[CaseResult]) -> bool:
    """Return whether every case of a line has enough samples for p5 and p95."""
    return all(_stats(item).p5_s is not None and _stats(item).p95_s is not None for item in items)


def _caption(group: SeriesGroup) -> str:
    text = (f"Point: median of n = {from_to_text(_stats(item).n for item in group.items)} samples. "
            f"{_band_words(group)} {_interval_words(group.items)}")
    if not collective_spec(group.collective).moves_data:
        return text
    text += " Bus bandwidth as in nccl-tests, from the median; GB = 1e9 B."
    if len(group.sizes) > 1 and any(item.case.world_size == 1 for item in group.items):
        text += " One rank: bus bandwidth is 0, not drawn."
    return text


def _band_words(group: SeriesGroup) -> str:
    """Return what the bands are, and of which lines they are something else."""
    if len(group.sizes) > 1 and len(group.series) > MOST_BANDS:
        return f"No bands: there are more than {MOST_BANDS} lines."
    few = [one for one in group.series if not _have_percentiles(one.items)]
    if len(few) == len(group.series):
        return "Band: minimum to maximum."
    labels = ", ".join(one.label for one in few) if len(few) < 3 else f"{len(few)} lines"
    others = f" (of {labels}, with n < {FEWEST_FOR_PERCENTILES}: minimum to maximum)" if few else ""
    return f"Band: 5th to 95th percentile{others}."


def _interval_words(items: Sequence[CaseResult]) -> str:
    """Return what the error bars are, and how many points have none."""
    bars = [_bar(item) for item in items]
    without = bars.count(None)
    if without == len(items):
        return "No sound confidence interval (docs/method.md)."
    words = [INTERVAL_TITLE] if INTERVAL in bars else []
    words += [launches_title(items)] if LAUNCHES in bars else []
    left = (f"; {without} of {len(items)} points have none (n < 6, or samples that depend on one "
            "another)" if without else "")
    return f"Bar: {'; or '.join(words)}{left}."


def heat_map_case(case: Case) -> HeatMapCase:
    """Return what is called, how, and why a row may be shorter; an all_reduce goes first."""
    work = collective_of(case)
    size = f" of {size_text(work.size_bytes)}" if work.traits.moves_data else ""
    group = " of its group" if work.groups > 1 else ""
    note = (f"No rank can finish before all{group} have arrived, so a row that is shorter than the "
            "others is a rank that arrives late and is waited for.")
    words = (form_text(work), work.dtype, work.op or "", "in place" if work.in_place else "")
    order = (work.collective == "all_reduce", case.world_size, work.size_bytes)
    return HeatMapCase(
        f"{work.collective}{size}", words, order, note if work.needs_all_ranks else "",
        "an all_reduce, then the most ranks, then the largest")
