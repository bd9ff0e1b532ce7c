"""The presenter of collectives: tables, charts and fields of the summaries.

Cases that differ in size only are one line of a figure, or with one size rows to compare. A
collective with more lines than a figure can show readably is split into several figures along the
axes that matter least for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from hpcbench.kinds.collective import derive
from hpcbench.kinds.collective.plan import USUAL, Collective, collective_of, groups_text
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.collectives import collective_spec, collectives, summary_keys
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Metric, Records, Values
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.reduce.spread import FEWEST_FOR_PERCENTILES, interval_share
from hpcbench.trace.schema import UNKNOWN
from hpcbench.units import format_bytes, grouped, plural, size_text, vary
from hpcbench.views import chart, columns
from hpcbench.views.metric_tables import (
    INTERVAL,
    OUTCOME,
    P95,
    PLACE,
    TIME,
    Aspect,
    Figure,
    PlannedColumn,
    ShownColumn,
    cell_of,
    column_of,
    figures,
    metric_column,
    of_case,
    plan_table,
    planned_as,
    result_tables,
    several,
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
    WithInterval,
    cell_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    flag_words,
    from_to_text,
    iterations_text,
    launches_title,
    mode_text,
    plugin_lines,
    punctual_mode_text,
    time_texts,
)

MAX_LINES = 6
MAX_ROWS = 16
"""More lines (with one size: rows) than this are split over several figures, to stay readable."""
Items = Sequence[CaseResult]


def type_name(work: Collective) -> str | None:
    return work.dtype if work.traits.moves_data else None


def form_text(work: Collective) -> str:
    """Return ``split linear, 2 groups, buffers cold, async``, or nothing for what is usual."""
    parts = [f"split {work.split}"] if work.split != "even" else []
    parts += [groups_text(work)] if work.groups != 1 else []
    parts += [f"buffers {work.buffers}"] if work.buffers != "warm" else []
    parts += ["async"] if work.asynchronous else []
    return ", ".join(parts)


def _name(case: Case) -> str:
    form = form_text(collective_of(case))
    return f"{collective_of(case).collective} ({form})" if form else collective_of(case).collective


def _place(case: Case, names: tuple[str, str] = ("in", "out")) -> str | None:
    """Return ``in`` or ``out``, or other words; None where there is no choice."""
    in_place = collective_of(case).in_place
    return None if in_place is None else names[not in_place]


def _place_text(item: CaseResult) -> str:
    return _place(item.case, ("in place", "out of place")) or ""


def _size(item: CaseResult) -> int:
    return collective_of(item.case).size_bytes


ASPECTS = (
    Aspect(lambda item: f"wake-up {item.case.wakeup_s:g} s"),
    Aspect(lambda item: item.case.check.text),
    Aspect(lambda item: plural(item.case.warmup, "warm-up")),
    Aspect(lambda item: f"{iterations_text([item.case])} iterations"),
    Aspect(_place_text, 12),
    Aspect(lambda item: "" if (of := collective_of(item.case)).root is None else f"root {of.root}",
           11),
    Aspect(lambda item: collective_of(item.case).op or "", 10),
    Aspect(lambda item: type_name(collective_of(item.case)) or "", 9),
    Aspect(lambda item: env_text(item.case), 13, is_list=True),
    Aspect(lambda item: groups_text(collective_of(item.case)), 8, "1 group"),
    Aspect(lambda item: f"split {collective_of(item.case).split}", 6, "split even"),
    Aspect(lambda item: f"buffers {collective_of(item.case).buffers}", 7, "buffers warm"),
    Aspect(lambda item: "async" if collective_of(item.case).asynchronous else "", 5),
    Aspect(mode_text, 4), Aspect(lambda item: plural(item.case.world_size, "rank"), 3),
    Aspect(device_type, 2), Aspect(lambda item: item.case.backend, 1))
"""What distinguishes lines. The first split figures first; the last stay in one figure."""


def _type(case: Case) -> str | None:
    return type_name(collective_of(case))


PLAN = (
    PlannedColumn(Column("collective", "collective"), _name), *PLACE,
    PlannedColumn(Column("type", "type", optional=True), _type, several(_type), "types"),
    PlannedColumn(Column("op", "op", optional=True), planned_as("op"), several(planned_as("op")),
                  "ops"),
    PlannedColumn(
        Column("root", "root", Show.COUNT, optional=True), planned_as("root"), lambda cases: None),
    PlannedColumn(Column("place", "place", optional=True), _place, lambda cases: None),
    PlannedColumn(column_of(derive.SIZE), planned_as("size_bytes"),
            lambda cases: size_range(map(collective_of, cases)) or None, "sizes"),
    PlannedColumn(column_of(derive.COUNT), planned_as("count"), lambda cases: None))


def size_range(works: Iterable[Collective]) -> str:
    """Return ``64KiB`` or ``8..64MiB``; nothing where no case has a size."""
    sizes = sorted({work.size_bytes for work in works} - {0})
    return "..".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1])))) if sizes else ""


def _where(item: CaseResult) -> str:
    case, work = item.case, collective_of(item.case)
    parts = (work.collective, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), form_text(work), device_memory_text(item),
             env_text(case))
    return "  ".join(part for part in parts if part)


def _order(item: CaseResult) -> tuple[str, str, int, bool, int, int]:
    work = collective_of(item.case)
    return (work.dtype, work.op or "", work.root or 0, bool(work.in_place), work.size_bytes,
            item.case.index)


def _library_text(item: CaseResult) -> str:
    """Return ``RING SIMPLE, 8 channels, P2P/CUMEM``: details of the call that libraries logged."""
    facts = {name: text for name, text in (item.library or {}).items() if text != UNKNOWN}
    call = " ".join(facts[name] for name in ("algorithm", "protocol") if name in facts)
    channels = f"{facts['channels']} channels" if "channels" in facts else ""
    return ", ".join(text for text in (call, channels, facts.get("transport")) if text)


RESULTS = (
    derive.SIZE, derive.COUNT, of_case(Column("type", "type"), lambda item: _type(item.case)),
    derive.OP, derive.ROOT,
    of_case(Column("place", "place"), lambda item: _place(item.case)), TIME, INTERVAL, P95,
    derive.ISSUE_S, derive.ALGBW, derive.BUSBW, derive.RECEIVED, derive.BUSIEST, derive.IDEAL,
    derive.OF_LINK, derive.OF_PAIR, derive.BOUND_BY,
    of_case(columns.WRONG, lambda item: (
        columns.wrong_cell(item) if collective_of(item.case).traits.moves_data else None)),
    *OUTCOME, of_case(Column("library", "library", meaning="what libraries say of the call",
                             optional=True), _library_text))
Times = Mapping[str, Any]
"""A value for each time that statistics name: the time itself, or a rate in it."""
Names = tuple[str, str]
MEDIAN = "median_s"
ENDS, PERCENTILES, EXTREMES = ("ci_low_s", "ci_high_s"), ("p5_s", "p95_s"), ("min_s", "max_s")
OF_LAUNCHES = ("launch_low_s", "launch_high_s")
MOST_BANDS = 3
"""Bands of more lines, one over the other, could not be distinguished."""
MOST_LEVELS = 2
"""With more backends the rates of two ranks are not drawn."""
WIDE = 30
"""Rows whose longest time is this many times the shortest are on a log scale."""
EXTENT = chart.Axis("size", Show.SIZE, "bytes, log scale", chart.Scale.LOG2)
SECONDS = chart.Axis("time per operation", Show.US, "us", chart.Scale.LOG)
RATE = chart.Axis("bus bandwidth", Show.GB_PER_S, "GB/s", chart.Scale.LOG)
ROW_COLUMNS = (
    Column("time_p50", "median", Show.US, "us", better="less"),
    Column("interval", "interval", Show.PERCENT, "+-%", better="less"),
    replace(column_of(derive.BUSBW), title="bus bandwidth", optional=True))


def collective_figures(items: Items) -> Iterator[Figure]:
    return figures(items, ASPECTS, lambda item: collective_of(item.case).collective, _size,
                   lambda sizes: MAX_ROWS if sizes == 1 else MAX_LINES)


def charts(items: Items, derived: Records) -> Iterator[chart.Chart]:
    for figure in collective_figures(items):
        sizes = {_size(item) for item in figure.items}
        yield _dots(figure, derived, *sizes) if len(sizes) == 1 else _lines(figure, derived)


def _lines(figure: Figure, derived: Records) -> chart.LineChart:
    banded = len(figure.lines) <= MOST_BANDS
    times = tuple(_line(label, items, _times, banded=banded) for label, items in figure.lines)
    rates = tuple(_line(label, [item for item in items if item.case.world_size > 1], _rates,
                        banded=banded) for label, items in figure.lines)
    return chart.LineChart(
        title=f"{figure.name}: time and bus bandwidth against size",
        subtitle=figure.subtitle, file_stem=figure.file_stem, notes=(_caption(figure),),
        case_ids=figure.case_ids, x=EXTENT, panels=(
            chart.Panel(SECONDS, times, "Time (latency)"),
            chart.Panel(RATE, rates, "Bus bandwidth", levels=tuple(_levels(figure, derived)),
                        empty="One rank: nothing crosses a link, bus bandwidth is 0")))


def _levels(figure: Figure, derived: Records) -> Iterator[chart.Level]:
    """Yield the declared link rate, if all lines have the same, and the rates of two ranks."""
    items = [item for item in figure.items if item.case.world_size > 1]
    declared = {item.timing.link_bytes_per_s if item.timing else None for item in items}
    if len(declared) == 1 and (rate := next(iter(declared))):
        yield chart.Level(f"declared link: {_rate_text(rate)}", rate, dotted=True)
    measured = dict.fromkeys((item.case.backend, rate) for item in items
                             if (rate := _value(derive.MEASURED_LINK, item, derived)))
    for backend, rate in measured if len(measured) <= MOST_LEVELS else ():
        yield chart.Level(f"two {backend} ranks: {_rate_text(rate)}", rate)


def _value(one: Metric, item: CaseResult, derived: Records) -> Any:
    return one.value(item, derived.get(item.case.case_id))


def _rate_text(bytes_per_s: float) -> str:
    return f"{cell_text(bytes_per_s, Show.GB_PER_S)} GB/s"


def _times(item: CaseResult) -> Times:
    return asdict(_stats(item))


def _rates(item: CaseResult) -> Times:
    """Return the bus bandwidth in each time that the statistics name."""
    of, ranks = collective_of(item.case), item.case.world_size
    return {name: rates.busbw_bytes_per_s for name, time_s in _times(item).items()
            if name.endswith("_s") and time_s is not None
            and (rates := derive.bandwidth(of, ranks, time_s))}


def _line(
    label: str, items: Items, values: Callable[[CaseResult], Times], *, banded: bool,
) -> chart.Curve:
    band = _band(items) if banded else None
    return chart.Curve(label, tuple((_size(item), _point(item, of_item, band)) for item in items
                                    for of_item in [values(item)] if MEDIAN in of_item))


def _band(items: Items) -> Names:
    """Return p5 and p95, or minimum and maximum for all of a line's cases."""
    return PERCENTILES if all(_stats(item).p5_s is not None and _stats(item).p95_s is not None
                              for item in items) else EXTREMES


def _point(item: CaseResult, values: Times, band: Names | None) -> chart.ChartPoint:
    return chart.ChartPoint(values[MEDIAN], _range(values, _bar(item)), _range(values, band))


def _bar(item: CaseResult) -> Names | None:
    """Return the ends of the error bar: the interval, else the range of launches, else none."""
    stats = _stats(item)
    if interval_share(stats) is not None:
        return ENDS
    return OF_LAUNCHES if stats.launch_low_s is not None else None


def _range(values: Times, names: Names | None) -> Range | None:
    """Return the range between two values; a rate is the less the longer its time is."""
    ends = sorted(values[name] for name in names or () if name in values)
    return Range(*ends) if len(ends) == 2 else None


def _dots(figure: Figure, derived: Records, size: int) -> chart.DotChart:
    rows = tuple(chart.Dot(
        label or figure.name, _point(item, _times(item), _band([item])), (
            columns.median_cell(item.statistics), interval_share(_stats(item)),
            cell_of(derive.BUSBW, item, derived.get(item.case.case_id, {}))),
        case_id=item.case.case_id)
        for label, items in figure.lines for item in items)
    wide = chart.is_wide((row.point.band for row in rows if row.point.band), WIDE)
    return chart.DotChart(
        title=f"{figure.name}{f' of {size_text(size)}' if size else ''}: time",
        subtitle=figure.subtitle, file_stem=figure.file_stem, notes=(_caption(figure),),
        case_ids=figure.case_ids, rows=rows, columns=ROW_COLUMNS, x=chart.Axis(
            SECONDS.title, SECONDS.show, SECONDS.unit,
            chart.Scale.LOG if wide else chart.Scale.LINEAR))


def _stats(item: CaseResult) -> Statistics:
    if item.statistics is None:
        raise ValueError(f"{item.case.case_id} has no statistics and cannot be drawn")
    return item.statistics


def _caption(figure: Figure) -> str:
    text = (f"Point: median of n = {from_to_text(_stats(item).n for item in figure.items)} samples."
            f" {_band_text(figure)} {_interval_text(figure.items)}")
    if not collective_spec(figure.name).moves_data:
        return text
    text += " Bus bandwidth as in nccl-tests, from the median; GB = 1e9 B."
    if len({*map(_size, figure.items)}) > 1 and any(
            item.case.world_size == 1 for item in figure.items):
        text += " One rank: bus bandwidth is 0, not drawn."
    return text


def _band_text(figure: Figure) -> str:
    """Return the meaning of the bands, and the lines whose bands are minimum to maximum."""
    if len({*map(_size, figure.items)}) > 1 and len(figure.lines) > MOST_BANDS:
        return f"No bands: there are more than {MOST_BANDS} lines."
    few = [label for label, items in figure.lines if _band(items) is EXTREMES]
    if len(few) == len(figure.lines):
        return "Band: minimum to maximum."
    labels = ", ".join(few) if len(few) < 3 else f"{len(few)} lines"
    others = f" (of {labels}, with n < {FEWEST_FOR_PERCENTILES}: minimum to maximum)" if few else ""
    return f"Band: 5th to 95th percentile{others}."


def _interval_text(items: Sequence[CaseResult]) -> str:
    """Return the meaning of the error bars, and how many points have none."""
    bars = [_bar(item) for item in items]
    without = bars.count(None)
    if without == len(items):
        return "No sound confidence interval (docs/method.md)."
    meanings = [INTERVAL_TITLE] if ENDS in bars else []
    meanings += [launches_title(items)] if OF_LAUNCHES in bars else []
    left = (f"; {without} of {len(items)} points have none (n < 6, or samples that depend on one "
            "another)" if without else "")
    return f"Bar: {'; or '.join(meanings)}{left}."


def collective_heat_map_case(case: Case) -> chart.HeatMapCase:
    """Return the call, its details and a note on dark rows; an all_reduce goes first."""
    work = collective_of(case)
    size = f" of {size_text(work.size_bytes)}" if work.traits.moves_data else ""
    group = " of its group" if work.groups > 1 else ""
    note = (f"Dark row, others bright: this rank arrives last, and the others{group} wait for it; "
            "no rank can finish before all have arrived.")
    parts = (form_text(work), work.dtype, work.op or "", "in place" if work.in_place else "")
    order = (work.collective == "all_reduce", case.world_size, work.size_bytes)
    return chart.HeatMapCase(
        f"{work.collective}{size}", parts, order, note if work.features.needs_all_ranks else "",
        "an all_reduce, then the most ranks, then the largest")


MOST_SIDE_BY_SIDE = 3
"""More backends have rows of their own."""
_AXES: Mapping[str, Callable[[CaseResult], Cell]] = {
    "type": lambda item: _type(item.case),
    "ranks": lambda item: plural(item.case.world_size, "rank"),
    "device": lambda item: " ".join(filter(None, (device_type(item), device_memory_text(item)))),
    "mode": punctual_mode_text, "arrival": lambda item: item.case.arrival.words,
    "op": lambda item: "" if collective_of(item.case).op == "sum" else collective_of(
        item.case).op or "",
    "root": lambda item: f"root {collective_of(item.case).root}" if collective_of(
        item.case).root else "",
    "place": _place_text,
    "form": lambda item: form_text(collective_of(item.case)),
    "env": lambda item: env_text(item.case),
}
"""Axes in which rows of a brief table may differ, beside collective, size and backend."""
_OF_TITLE = ("ranks", "type", "device", "mode", "arrival")
"""Axes that the title names where all rows have the same; others differ within a collective."""


def brief_tables(title: str, items: Items, derived: Records) -> Iterator[Table]:
    """Yield a block's table with backends side by side, or with all columns of nccl-tests."""
    items = [item for item in items if item.status in columns.TABLED]
    if not items:
        return
    backends = list(dict.fromkeys(item.case.backend for item in items))
    alone = not 1 < len(backends) <= MOST_SIDE_BY_SIDE
    texts = {item.case.case_id: [of(item) for of in _AXES.values()] for item in items}
    shared = dict(vary(map(enumerate, texts.values()))[0])
    within = {at for same in grouped((collective_of(item.case).collective, texts[
        item.case.case_id]) for item in items).values()
        for at, _ in vary(map(enumerate, same))[1][0]}
    varied = {name: of for at, (name, of) in enumerate(_AXES.items()) if at not in shared and (
        name in _OF_TITLE or at in within)}
    words = [str(text) for name in _OF_TITLE if (text := shared.get([*_AXES].index(name)))]
    named: dict[str, Callable[[CaseResult], Cell]] = {
        **({"backend": lambda item: item.case.backend} if alone and len(backends) > 1 else {}),
        **varied}
    rows = _in_rows(items, named.values())
    if any(len({item.case.backend for item in row}) < len(row) for row in rows.values()):
        own = vary(item.case.unlabelled for item in items)[1]
        settings = {item.case.case_id: " ".join(words)
                    for item, words in zip(items, own, strict=True)}
        named["with"] = lambda item: settings[item.case.case_id]
        rows = _in_rows(items, named.values())
    spans = [""] if alone else backends
    yield Table(
        ", ".join((title, *backends[:alone and len(backends) == 1], *words)),
        (Column("collective", ""), *(Column(name, name) for name in named), column_of(derive.SIZE),
         *(one.column for span in spans for one in _measured(span, spans)),
         Column("flags", "flags", optional=True)),
        (Group("", tuple(_brief_rows(rows, spans, derived))),), is_brief=True)


def _in_rows(
    items: Items, named: Iterable[Callable[[CaseResult], Cell]],
) -> dict[tuple[Cell, ...], list[CaseResult]]:
    """Return the cases of each row by its labels: collective, what is named, size."""
    axes = (lambda item: collective_of(item.case).collective, *named, _size)
    return grouped((tuple(of(item) for of in axes), item) for item in items)


def _measured(
    span: str, spans: Sequence[str], first: CaseResult | None = None,
) -> Iterator[ShownColumn]:
    """Yield the columns of a backend, from the second on beside the first; without ``span`` also
    p95 and algbw."""
    yield of_case(Column("time", "time", Show.DURATION, better="less", span=span), _brief_time)
    yield of_case(Column("interval", "95 % CI", Show.DURATION, span=span, optional=True),
                  _brief_interval)
    yield of_case(Column("launches", "launches", Show.DURATION, "p50", span=span, optional=True),
                  lambda item: columns.launches_cell(item) if _brief_interval(item) is None else "")
    if span != spans[0]:
        yield of_case(Column(
            "speedup", f"x {spans[0]}", Show.NUMBER, "", f"t({spans[0]}) / t, of medians",
            "more", span=span), lambda item: _times_as_fast(first, item))
    if len(spans) < MOST_SIDE_BY_SIDE:
        yield of_case(Column("issue", "issue", Show.DURATION, span=span, optional=True),
                      derive.issue_s)
    if not span:
        yield of_case(Column("p95", "p95", Show.DURATION, optional=True),
                      lambda item: P95.of(item, {}))
        yield metric_column(derive.ALGBW)
    yield metric_column(derive.BUSBW, span=span, first_to_go=bool(span))


def _brief_rows(
    rows: Mapping[tuple[Cell, ...], Items], spans: Sequence[str], derived: Records,
) -> Iterator[Row]:
    for labels, items in rows.items():
        of_span = {span: item for item in items for span in ("", item.case.backend)}
        cells = [cell for span in spans
                 for cell in _brief_cells(of_span, span, spans, derived)]
        flags = [f"{backend}: {flag}" if len(spans) > 1 else flag for backend, flag in (
            (item.case.backend, flag_words(item)) for item in items) if flag]
        bad = [item.status for item in items if item.status != "ok"]
        yield Row((*labels, *cells, "; ".join(flags)),
                  bad[0] if bad else "ok", None if spans[0] else items[0].case.case_id,
                  tuple((item.case.backend, item.case.case_id) for item in items if spans[0]))


def _brief_cells(
    of_span: Mapping[str, CaseResult], span: str, spans: Sequence[str], derived: Records,
) -> Iterator[Cell]:
    """Yield the cells of one backend's columns; a case without statistics has only its status."""
    item, shown = of_span.get(span), [*_measured(span, spans, of_span.get(spans[0]))]
    if item is None or item.statistics is None:
        yield from (None if item is None else item.status, *[None] * (len(shown) - 1))
    else:
        yield from (one.of(item, derived.get(item.case.case_id, {})) for one in shown)


def _brief_time(item: CaseResult) -> Cell:
    median = columns.median_cell(item.statistics)
    return median if item.status == "ok" else f"{item.status} {cell_text(median, Show.DURATION)}"


def _brief_interval(item: CaseResult) -> Cell:
    interval = columns.interval_cell(item.statistics)
    return time_texts(_stats(item).median_s, interval.least, interval.greatest)[1] if isinstance(
        interval, Range) else interval


def _times_as_fast(first: CaseResult | None, other: CaseResult) -> Cell:
    """Return the first one's median over the other's, with the digits that both intervals allow."""
    if first is None or (first.status, other.status) != ("ok", "ok") or (
            first.statistics is None or other.statistics is None or not other.statistics.median_s):
        return None
    ratio = first.statistics.median_s / other.statistics.median_s
    above, below = (columns.interval_cell(one) for one in (first.statistics, other.statistics))
    if not isinstance(above, Range) or not isinstance(below, Range) or below.least <= 0:
        return ratio
    return WithInterval(ratio, above.least / below.greatest, above.greatest / below.least)


COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "op", "in_place", "size_bytes", "split",
    "groups", "group_stride", "buffers", "asynchronous", "issue_s", "n", "median_s", "p95_s",
    "algbw_gb_per_s", "busbw_gb_per_s", "mode", "fold", "ci_low_s", "ci_high_s", "ci_reliable",
    "device_memory",
)


def _definitions(derived: Records) -> Iterator[str]:
    yield "algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B"
    if any(values.get(derive.OF_LINK.name) is not None for values in derived.values()):
        yield ("of link = busbw (of an all_reduce by NVLS: algbw x (n + 1) / n; of gloo's "
               "reduce_scatter: 2 x busbw) over what the declared links allow")
    if any(values.get(derive.OF_PAIR.name) is not None for values in derived.values()):
        yield ("of pair = the same over what two ranks of this backend reached alone in this "
               "run (kind hardware, test pairs);")
        yield ("  it is above 100 % where a call uses more links than two ranks do; bound by: "
               "see docs/hardware.md")


def _highest_busbw(items: Items, derived: Records) -> Iterator[Line]:
    rates = [(rate, item) for item in items
             if item.status == "ok" and item.case.arrival == TOGETHER  # else the delay counts, too
             and (rate := _value(derive.BUSBW, item, derived))]
    if rates:
        _, item = max(rates, key=lambda pair: pair[0])
        shown = cell_text(cell_of(derive.BUSBW, item, derived[item.case.case_id]), Show.GB_PER_S)
        yield Line(f"{shown} GB/s ({item.case.backend} {collective_of(item.case).collective} "
                   f"{size_text(_size(item))})", topic="peak busbw")


class CollectivePresenter(Presenter[Collective, Values]):
    """Presents collectives."""

    ranks_word = "n"
    heat_map_case = staticmethod(collective_heat_map_case)

    def listing(self) -> Iterator[Line]:
        return plugin_lines(collectives().offers, lambda spec: f"collective {spec.name}")

    def plan_table(
        self, title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
    ) -> Table:
        return plan_table(title, cases, PLAN, listed=listed)

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        yield from result_tables(title, items, derived, RESULTS, _where, _order)
        yield from brief_tables(title, items, derived)

    def words(self, works: Sequence[Collective]) -> Words:
        """Return splits, groups and buffers where they are not the usual ones; sizes."""
        words = {name: distinct(sorted({getattr(work, name) for work in works})) for name in USUAL
                 if name != "asynchronous"}
        more = ["async"] if any(work.asynchronous for work in works) else []
        return Words([*(f"{name.removeprefix('group_')}={value}" for name, value in words.items()
                        if value != str(USUAL[name])), *more],
                     list(map(type_name, works)), [size_range(works)])

    def overviews(self, items: Items, derived: Records) -> Iterator[chart.Chart | Line]:
        yield from map(Line, _definitions(derived))
        yield from _highest_busbw(items, derived)
        yield from charts(items, derived)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``communication``: the ok rows under the names that other tools use."""
        return {"communication": {
            name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
                   if row["collective"] == collective and row["status"] == "ok"]
            for collective, name in summary_keys().items()
        }}
