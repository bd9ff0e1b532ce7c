"""The table of a block of collectives at the end of a run: backends side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hpcbench.kinds.collective.derive import CollectiveRecord, issue_s
from hpcbench.kinds.collective.plan import Collective, collective_of, groups_text
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    cell_text,
    device_memory_text,
    device_type,
    env_text,
    flag_words,
    like_median,
    mode_text,
    time_texts,
)

Records = Mapping[str, CollectiveRecord]


def collective_type_name(work: Collective) -> str | None:
    return work.dtype if work.traits.moves_data else None


def form_text(work: Collective) -> str:
    """Return ``split linear, 2 groups, buffers cold, async``, or nothing for what is usual."""
    parts = [f"split {work.split}"] if work.split != "even" else []
    parts += [groups_text(work)] if work.groups != 1 else []
    parts += [f"buffers {work.buffers}"] if work.buffers != "warm" else []
    parts += ["async"] if work.asynchronous else []
    return ", ".join(parts)


MOST_SIDE_BY_SIDE = 3
"""More backends have rows of their own."""
_AXES: Mapping[str, Callable[[CaseResult], Cell]] = {
    "type": lambda item: collective_type_name(collective_of(item.case)),
    "ranks": lambda item: plural(item.case.world_size, "rank"),
    "device": lambda item: " ".join(filter(None, (device_type(item), device_memory_text(item)))),
    "mode": lambda item: "" if mode_text(item) == "isolated" else mode_text(
        item).removeprefix("isolated, "),
    "op": lambda item: "" if collective_of(item.case).op == "sum" else collective_of(
        item.case).op or "",
    "root": lambda item: f"root {collective_of(item.case).root}" if collective_of(
        item.case).root else "",
    "place": lambda item: {None: "", True: "in place", False: "out of place"}[
        collective_of(item.case).in_place],
    "form": lambda item: form_text(collective_of(item.case)),
    "env": lambda item: env_text(item.case),
}
"""Axes in which rows of a brief table may differ, beside collective, size and backend."""
_ALL_RANKS = ("ranks", "type", "device", "mode")
"""Axes that the title names where all rows have the same."""


def brief_tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield a block's table with backends side by side, or with all columns of nccl-tests."""
    items = [item for item in items if item.status in columns.TABLED]
    if not items:
        return
    backends = list(dict.fromkeys(item.case.backend for item in items))
    alone = not 1 < len(backends) <= MOST_SIDE_BY_SIDE
    by_collective = grouped((collective_of(item.case).collective, item) for item in items).values()
    varied = [name for name, of in _AXES.items() if len({of(item) for item in items}) > 1 and (
        name in _ALL_RANKS or any(len({of(item) for item in same}) > 1 for same in by_collective))]
    shared = [str(value) for name in _ALL_RANKS if name not in varied
              and (value := _AXES[name](items[0]))]
    if alone and len(backends) == 1:
        shared = [backends[0], *shared]

    def labels(item: CaseResult) -> tuple[Cell, ...]:
        more = (item.case.backend,) if len(backends) > 1 and alone else ()
        return (collective_of(item.case).collective, *more, *(_AXES[name](item) for name in varied),
                collective_of(item.case).size_bytes)

    rows = grouped((labels(item), item) for item in items)
    spans = [""] if alone else backends
    shown = tuple(column for span in spans for column in _measured_columns(span, spans))
    named = [*(["backend"] if len(backends) > 1 and alone else []), *varied]
    yield Table(
        ", ".join((title, *shared)),
        (Column("collective", ""), *(Column(name, name) for name in named),
         Column("size", "size", Show.SIZE), *shown,
         Column("flags", "flags", optional=True)),
        (Group("", tuple(_brief_rows(rows, spans, derived))),), is_brief=True)


def _measured_columns(span: str, spans: Sequence[str]) -> Iterator[Column]:
    """Yield the columns of a backend, from the second on beside the first; without ``span`` also
    p95 and algbw."""
    yield Column("time", "time", Show.DURATION, better="less", span=span)
    yield Column("interval", "95 % CI", Show.DURATION, span=span)
    if span != spans[0]:
        yield Column("speedup", f"x {spans[0]}", Show.NUMBER, "", f"t({spans[0]}) / t, of medians",
                     "more", span=span)
    if len(spans) < MOST_SIDE_BY_SIDE:
        yield Column("issue", "issue", Show.DURATION, span=span, optional=True)
    if not span:
        yield Column("p95", "p95", Show.DURATION)
        yield Column("algbw", "algbw", Show.GB_PER_S, "GB/s")
    yield Column("busbw", "busbw", Show.GB_PER_S, "GB/s", better="more", span=span,
                 first_to_go=bool(span))


def _brief_rows(
    rows: Mapping[tuple[Cell, ...], Sequence[CaseResult]], spans: Sequence[str], derived: Records,
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
    item, n_columns = of_span.get(span), len(tuple(_measured_columns(span, spans)))
    if item is None or item.statistics is None:
        yield from (None if item is None else item.status, *[None] * (n_columns - 1))
        return
    stats, median = item.statistics, columns.median_cell(item.statistics)
    interval = columns.interval_cell(stats)
    yield median if item.status == "ok" else f"{item.status} {cell_text(median, Show.DURATION)}"
    yield time_texts(stats.median_s, interval.least, interval.greatest)[1] if isinstance(
        interval, Range) else interval
    if span != spans[0]:
        yield _times_as_fast(of_span.get(spans[0]), item)
    if len(spans) < MOST_SIDE_BY_SIDE:
        yield issue_s(item)
    rates = derived.get(item.case.case_id, CollectiveRecord()).bandwidth
    if not span:
        yield like_median(stats.p95_s, median)
        yield like_median(rates.algbw_bytes_per_s if rates else None, median)
    yield like_median(rates.busbw_bytes_per_s if rates else None, median)


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
