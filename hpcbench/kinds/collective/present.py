"""The presenter of collectives: tables, charts and fields of the summaries.

Cases that differ in size only are one line of a figure, or with one size rows to compare. A
collective with more lines than a figure can show readably is split into several figures along the
axes that matter least for a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.collective.brief_tables import (
    brief_tables,
    collective_type_name,
    form_text,
)
from hpcbench.kinds.collective.derive import CollectiveRecord, column_values
from hpcbench.kinds.collective.plan import USUAL, Collective, collective_of, groups_text
from hpcbench.operations.collectives import collective_spec, summary_keys
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.reduce.spread import FEWEST_FOR_PERCENTILES, interval_share
from hpcbench.trace.schema import UNKNOWN
from hpcbench.units import format_bytes, grouped, in_summary_units, plural, size_text
from hpcbench.views import columns
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
    file_name,
    is_wide,
)
from hpcbench.views.presenter import Presenter, Words
from hpcbench.views.table import (
    INTERVAL_TITLE,
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    backend_text,
    batch_text,
    cell_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    flag_cell,
    from_to_text,
    iterations_text,
    launches_title,
    like_median,
    mode_text,
    timed_text,
)

MAX_LINES = 6
MAX_ROWS = 16
"""More lines (with one size: rows) than this are split over several figures, to stay readable."""

AXES = ("wake-up", "validate", "warmup", "iterations", "in-place", "root", "op", "type",
        "env", "groups", "split", "buffers", "async", "mode", "ranks", "device", "backend")
"""Axes that distinguish lines. The left split figures first; the right stay in one figure."""

_ENV = AXES.index("env")
_SHOWN = tuple(map(AXES.index, ("backend", "device", "ranks", "mode", "async", "split", "buffers",
                                "groups", "type", "op", "root", "in-place", "env")))
"""Axes that a subtitle names, in this order."""
_USUAL = ("", "1 group", "split even", "buffers warm")
"""Values that a subtitle leaves out where all lines have them."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """The cases of one line, by size; ``label`` distinguishes it from its neighbours."""

    label: str
    items: tuple[CaseResult, ...]


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """The lines of one figure; ``subtitle`` states what they have in common."""

    collective: str
    subtitle: str
    file_stem: str
    series: tuple[Series, ...]

    @property
    def items(self) -> tuple[CaseResult, ...]:
        return tuple(item for one in self.series for item in one.items)

    @property
    def sizes(self) -> list[int]:
        return sorted({collective_of(item.case).size_bytes for item in self.items})


def groups(items: Iterable[CaseResult]) -> list[SeriesGroup]:
    """Return the figures to draw; a case that two blocks ask for belongs to both."""
    by_collective: dict[str, dict[Key, list[CaseResult]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.statistics is not None:
            by_collective[collective_of(item.case).collective][_key(item)].append(item)
    return [_group(collective, facet, {key: lines[key] for key in keys})
            for collective, lines in by_collective.items()
            for facet, keys in _facets(list(lines), lines, ())]


def _key(item: CaseResult) -> Key:
    case, work = item.case, collective_of(item.case)
    in_place = {None: "", True: "in place", False: "out of place"}[work.in_place]
    return (
        f"wake-up {case.wakeup_s:g} s", case.check.text,
        plural(case.warmup, "warm-up"), f"{iterations_text([case])} iterations", in_place,
        "" if work.root is None else f"root {work.root}",
        work.op or "", work.dtype if work.traits.moves_data else "", env_text(case),
        groups_text(work), f"split {work.split}", f"buffers {work.buffers}",
        "async" if work.asynchronous else "", mode_text(item),
        plural(case.world_size, "rank"), device_type(item), case.backend,
    )


def _facets(
    keys: list[Key], lines: dict[Key, list[CaseResult]], facet: Key
) -> list[tuple[Key, list[Key]]]:
    """Return (what was split by, keys) of figures that are small enough to read."""
    sizes = {collective_of(item.case).size_bytes for key in keys for item in lines[key]}
    one_size = len(sizes) == 1
    if len(keys) <= (MAX_ROWS if one_size else MAX_LINES):
        return [(facet, keys)]
    axis = _varied(keys)[0]
    groups = grouped((key[axis], key) for key in keys)
    return [part for value, group in groups.items()
            for part in _facets(group, lines, (*facet, value))]


def _varied(keys: Sequence[Key]) -> list[int]:
    return [axis for axis in range(len(AXES)) if len({key[axis] for key in keys}) > 1]


def _group(collective: str, facet: Key, lines: dict[Key, list[CaseResult]]) -> SeriesGroup:
    keys = list(lines)
    varied = _varied(keys)
    common = set.intersection(*(set(key[_ENV].split()) for key in keys))
    shared = [keys[0][axis] for axis in _SHOWN
              if axis not in varied and keys[0][axis] not in _USUAL]
    extra = [part for part in facet if part and part not in shared]
    stem = "-".join(part for part in (collective, *facet) if part)
    if _ENV in varied:
        extra += sorted(common)
    return SeriesGroup(
        collective=collective, subtitle=", ".join([*shared, *extra]),
        file_stem=file_name(stem, allowed="-_."),
        series=tuple(
            Series(label=_label(key, varied, common),
                 items=tuple(sorted(items, key=lambda item: collective_of(item.case).size_bytes)))
            for key, items in sorted(lines.items(), key=lambda pair: _line_order(keys, *pair))
        ),
    )


def _line_order(keys: Sequence[Key], key: Key, items: Sequence[CaseResult]) -> tuple[int, int]:
    """Return a sort key: backends as they come, and within one fewer ranks first."""
    backends = [other[-1] for other in keys]
    return backends.index(key[-1]), items[0].case.world_size


def _label(key: Key, varied: Sequence[int], common: set[str]) -> str:
    """Return the label that distinguishes a line; variables that all share are left out."""
    words = [word for axis in reversed(varied) for word in key[axis].split()
             if axis != _ENV or word not in common]
    return " ".join(words)


_WHAT = (Column("collective", "collective"), Column("backend", "backend"),
         Column("device", "device"), Column("ranks", "ranks", Show.COUNT))
_SIZE = (Column("size", "size", Show.SIZE), Column("count", "count", Show.COUNT, "elem"))
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), *_WHAT, Column("type", "type", optional=True),
    Column("op", "op", optional=True), Column("root", "root", Show.COUNT, optional=True),
    Column("place", "place", optional=True), *_SIZE, *columns.COST)
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), *_WHAT, Column("types", "types", optional=True),
    Column("ops", "ops", optional=True), Column("sizes", "sizes", optional=True),
    *columns.COST)
_RESULT_COLUMNS = (
    *_SIZE, Column("type", "type"), Column("op", "op"),
    Column("root", "root", Show.COUNT), Column("place", "place"),
    columns.TIME, columns.INTERVAL,
    Column("p95", "p95", Show.US, "us", better="less"),
    Column("issue", "issue", Show.US, "us", "until an asynchronous call returned: median of the "
           "rank that takes longest", "less", optional=True),
    Column("algbw", "algbw", Show.GB_PER_S, "GB/s", "size / time p50", "more"),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "algbw x nccl-tests' factor", "more"),
    Column("of_link", "of link", Show.WHOLE_PERCENT, "%", "of what the declared links allow",
           "more", optional=True),
    Column("of_measured_link", "of pair", Show.WHOLE_PERCENT, "%",
           "of what two ranks reached in this run", "more", optional=True),
    Column("bound_by", "bound by", optional=True),
    columns.WRONG, columns.N, columns.STATUS,
    columns.LAUNCHES, columns.FLAGS,
    Column("library", "library", meaning="what libraries say of the call", optional=True))
Records = Mapping[str, CollectiveRecord]


def size_range(works: Iterable[Collective]) -> str:
    """Return ``64KiB`` or ``8..64MiB``; nothing where no case has a size."""
    sizes = sorted({work.size_bytes for work in works} - {0})
    return "..".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1])))) if sizes else ""


def collective_plan_table(
    title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
) -> Table:
    if listed:
        return Table(title, _CASE_COLUMNS, (Group("", tuple(map(_case_row, cases))),))
    groups = grouped(((_what_cells(case), batch_text(case), case.needs), case) for case in cases)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),))


def result_tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one block's table: a group of rows per collective, backend, device, ranks and mode."""
    groups = grouped(((_group_title(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    if groups:
        yield Table(title, _RESULT_COLUMNS, tuple(
            Group(name, tuple(_result_row(item, derived.get(item.case.case_id))
                              for item in sorted(group, key=_row_order)), timed)
            for (name, timed), group in groups.items()))


def _case_row(case: Case) -> Row:
    work = collective_of(case)
    samples, needs, estimate = columns.cost_cells([case])
    return Row((case.index, *_what_cells(case), *_option_cells(work), work.size_bytes, work.count,
                samples, needs, estimate or None), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    works = [collective_of(case) for case in cases]
    return Row((
        len(cases), *_what_cells(cases[0]), distinct(map(collective_type_name, works)) or None,
        distinct(work.op for work in works) or None, size_range(works) or None,
        *columns.cost_cells(cases)))


def _what_cells(case: Case) -> tuple[Cell, ...]:
    work = collective_of(case)
    form = form_text(work)
    return (f"{work.collective} ({form})" if form else work.collective, backend_text(case),
            case.device, case.world_size)


def _option_cells(work: Collective) -> tuple[Cell, ...]:
    """Return type, reduction and root, and ``in`` or ``out`` where it has the choice."""
    place = {None: None, True: "in", False: "out"}[work.in_place]
    return collective_type_name(work), work.op, work.root, place


def _group_title(item: CaseResult) -> str:
    case, work = item.case, collective_of(item.case)
    parts = (work.collective, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), form_text(work), device_memory_text(item),
             env_text(case))
    return "  ".join(part for part in parts if part)


def _row_order(item: CaseResult) -> tuple[str, str, int, bool, int, int]:
    work = collective_of(item.case)
    return (work.dtype, work.op or "", work.root or 0, bool(work.in_place), work.size_bytes,
            item.case.index)


def _result_row(item: CaseResult, record: CollectiveRecord | None) -> Row:
    work, stats, known = collective_of(item.case), item.statistics, column_values(item, record)
    median = columns.median_cell(stats)
    return Row((
        work.size_bytes, work.count, *_option_cells(work),
        median, columns.interval_cell(stats), like_median(stats.p95_s if stats else None, median),
        like_median(known["issue_s"], median),
        *(like_median(known[name], median) for name in ("algbw_bytes_per_s", "busbw_bytes_per_s")),
        *(known[name] for name in ("of_link", "of_measured_link", "bound_by")),
        columns.wrong_cell(item) if work.traits.moves_data else None, columns.n_cell(stats),
        item.status, columns.launches_cell(item), flag_cell(item), _library_text(item)),
        item.status, item.case.case_id)


def _library_text(item: CaseResult) -> str:
    """Return ``RING SIMPLE, 8 channels, P2P/CUMEM``: details of the call that libraries logged."""
    known = {name: text for name, text in (item.library or {}).items() if text != UNKNOWN}
    call = " ".join(known[name] for name in ("algorithm", "protocol") if name in known)
    channels = f"{known['channels']} channels" if "channels" in known else ""
    return ", ".join(text for text in (call, channels, known.get("transport")) if text)


Values = Callable[[CaseResult], Mapping[str, float]]
"""Returns a value for each time that statistics name: the time itself, or a rate in it."""
Names = tuple[str, str]
NO_RECORD = CollectiveRecord()
MEDIAN = "median_s"
INTERVAL, PERCENTILES, EXTREMES = ("ci_low_s", "ci_high_s"), ("p5_s", "p95_s"), ("min_s", "max_s")
LAUNCHES = ("launch_low_s", "launch_high_s")
MOST_BANDS = 3
"""Bands of more lines, one over the other, could not be distinguished."""
MOST_LEVELS = 2
"""With more backends the rates of two ranks are not drawn."""
WIDE = 30
"""Rows whose longest time is this many times the shortest are on a log scale."""
SIZE = Axis("size", Show.SIZE, "bytes, log scale", Scale.LOG2)
TIME = Axis("time per operation", Show.US, "us", Scale.LOG)
BUSBW = Axis("bus bandwidth", Show.GB_PER_S, "GB/s", Scale.LOG)
ROW_COLUMNS = (
    Column("time_p50", "median", Show.US, "us", better="less"),
    Column("interval", "interval", Show.PERCENT, "+-%", better="less"),
    Column("busbw", "bus bandwidth", Show.GB_PER_S, "GB/s", better="more", optional=True))


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
                  empty="One rank: nothing crosses a link, bus bandwidth is 0")))


def _levels(group: SeriesGroup, records: Records) -> Iterator[Level]:
    """Yield the declared link rate, if all lines have the same, and the rates of two ranks."""
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
    return records.get(item.case.case_id, NO_RECORD)


def _line(label: str, items: Sequence[CaseResult], values: Values, *, banded: bool) -> Curve:
    band = _band(items) if banded else None
    return Curve(label, tuple(
        (collective_of(item.case).size_bytes, _point(item, known, band))
        for item in items for known in [values(item)] if MEDIAN in known))


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
    median = columns.median_cell(stats)
    return Dot(label, _point(item, _times(item), _band([item])), (
        median, interval_share(stats), like_median(rates.busbw_bytes_per_s if rates else None,
                                                   median)),
        case_id=item.case.case_id)


def _stats(item: CaseResult) -> Statistics:
    if item.statistics is None:
        raise ValueError(f"{item.case.case_id} has no statistics and cannot be drawn")
    return item.statistics


def _have_percentiles(items: Sequence[CaseResult]) -> bool:
    return all(_stats(item).p5_s is not None and _stats(item).p95_s is not None for item in items)


def _caption(group: SeriesGroup) -> str:
    text = (f"Point: median of n = {from_to_text(_stats(item).n for item in group.items)} samples. "
            f"{_band_text(group)} {_interval_text(group.items)}")
    if not collective_spec(group.collective).moves_data:
        return text
    text += " Bus bandwidth as in nccl-tests, from the median; GB = 1e9 B."
    if len(group.sizes) > 1 and any(item.case.world_size == 1 for item in group.items):
        text += " One rank: bus bandwidth is 0, not drawn."
    return text


def _band_text(group: SeriesGroup) -> str:
    """Return the meaning of the bands, and the lines whose bands are minimum to maximum."""
    if len(group.sizes) > 1 and len(group.series) > MOST_BANDS:
        return f"No bands: there are more than {MOST_BANDS} lines."
    few = [one for one in group.series if not _have_percentiles(one.items)]
    if len(few) == len(group.series):
        return "Band: minimum to maximum."
    labels = ", ".join(one.label for one in few) if len(few) < 3 else f"{len(few)} lines"
    others = f" (of {labels}, with n < {FEWEST_FOR_PERCENTILES}: minimum to maximum)" if few else ""
    return f"Band: 5th to 95th percentile{others}."


def _interval_text(items: Sequence[CaseResult]) -> str:
    """Return the meaning of the error bars, and how many points have none."""
    bars = [_bar(item) for item in items]
    without = bars.count(None)
    if without == len(items):
        return "No sound confidence interval (docs/method.md)."
    meanings = [INTERVAL_TITLE] if INTERVAL in bars else []
    meanings += [launches_title(items)] if LAUNCHES in bars else []
    left = (f"; {without} of {len(items)} points have none (n < 6, or samples that depend on one "
            "another)" if without else "")
    return f"Bar: {'; or '.join(meanings)}{left}."


def collective_heat_map_case(case: Case) -> HeatMapCase:
    """Return the call, its details and a note on dark rows; an all_reduce goes first."""
    work = collective_of(case)
    size = f" of {size_text(work.size_bytes)}" if work.traits.moves_data else ""
    group = " of its group" if work.groups > 1 else ""
    note = (f"Dark row, others bright: this rank arrives last, and the others{group} wait for it; "
            "no rank can finish before all have arrived.")
    parts = (form_text(work), work.dtype, work.op or "", "in place" if work.in_place else "")
    order = (work.collective == "all_reduce", case.world_size, work.size_bytes)
    return HeatMapCase(
        f"{work.collective}{size}", parts, order, note if work.features.needs_all_ranks else "",
        "an all_reduce, then the most ranks, then the largest")


Items = Sequence[CaseResult]
COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "op", "in_place", "size_bytes", "split",
    "groups", "group_stride", "buffers", "asynchronous", "issue_s", "n", "median_s", "p95_s",
    "algbw_gb_per_s", "busbw_gb_per_s", "mode", "fold", "ci_low_s", "ci_high_s", "ci_reliable",
    "device_memory",
)


def _definitions(derived: Records) -> Iterator[str]:
    yield "algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B"
    if any(record.of_link is not None for record in derived.values()):
        yield ("of link = busbw (of an all_reduce by NVLS: algbw x (n + 1) / n; of gloo's "
               "reduce_scatter: 2 x busbw) over what the declared links allow")
    if any(record.of_measured_link is not None for record in derived.values()):
        yield ("of pair = the same over what two ranks of this backend reached alone in this "
               "run (kind hardware, test pairs);")
        yield ("  it is above 100 % where a call uses more links than two ranks do; bound by: "
               "see docs/hardware.md")


def _highest_busbw(items: Items, derived: Records) -> Iterator[Line]:
    rates = [(found.busbw_bytes_per_s, item) for item in items if item.status == "ok"
             and (found := _known(item, derived).bandwidth) and found.busbw_bytes_per_s]
    if rates:
        rate, item = max(rates, key=lambda one: one[0])
        work = collective_of(item.case)
        shown = cell_text(like_median(rate, columns.median_cell(item.statistics)), Show.GB_PER_S)
        yield Line(f"{shown} GB/s ({item.case.backend} {work.collective} "
                   f"{size_text(work.size_bytes)})", topic="peak busbw")


class CollectivePresenter(Presenter[Collective, CollectiveRecord]):
    """Presents collectives."""

    fields = ("buffers", "link_gb_per_s", "of_link", "measured_link_gb_per_s", "of_measured_link",
              *ROOFLINE_FIELDS, "group_stride", "asynchronous", "issue_s")
    in_every_summary = False
    ranks_word = "n"
    plan_table = staticmethod(collective_plan_table)
    heat_map_case = staticmethod(collective_heat_map_case)

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        yield from result_tables(title, items, derived)
        yield from brief_tables(title, items, derived)

    def words(self, works: Sequence[Collective]) -> Words:
        """Return splits, groups and buffers where they are not the usual ones; sizes."""
        found = {name: distinct(sorted({getattr(work, name) for work in works})) for name in USUAL
                 if name != "asynchronous"}
        more = ["async"] if any(work.asynchronous for work in works) else []
        return Words([*(f"{name.removeprefix('group_')}={value}" for name, value in found.items()
                        if value != str(USUAL[name])), *more],
                     list(map(collective_type_name, works)), [size_range(works)])

    def overviews(self, items: Items, derived: Records) -> Iterator[Chart | Line]:
        yield from map(Line, _definitions(derived))
        yield from _highest_busbw(items, derived)
        for group in groups(items):
            yield _dots(group, derived) if len(group.sizes) == 1 else _lines(group, derived)

    def row(self, item: CaseResult, record: CollectiveRecord | None) -> dict[str, Any]:
        link = item.timing and item.timing.link_bytes_per_s
        return {**asdict(collective_of(item.case)), **in_summary_units({
            **column_values(item, record), "link_bytes_per_s": link or None,
        }), **roofline_values(record.roofline if record else None)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``communication``: the ok rows under the names that other tools use."""
        return {"communication": {
            name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
                   if row["collective"] == collective and row["status"] == "ok"]
            for collective, name in summary_keys().items()
        }}
