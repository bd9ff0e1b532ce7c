"""The tables of a plan's and of a block's collectives, and the words that stand in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcbench.kinds.collective.derive.deriver import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import Collective, collective_of, groups_text
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.library_choices import UNKNOWN
from hpcbench.units import format_bytes, grouped, plural
from hpcbench.views import columns
from hpcbench.views.table import Cell, Column, Group, Row, Show, Table
from hpcbench.views.words import (
    backend_text,
    batch_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    flag_cell,
    timed_text,
)

_WHAT = (Column("collective", "collective"), Column("backend", "backend"),
         Column("device", "device"), Column("ranks", "ranks", Show.COUNT))
_SIZE = (Column("size", "size", Show.COUNT, "B"), Column("count", "count", Show.COUNT, "elem"))
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), *_WHAT, Column("type", "type", optional=True),
    Column("redop", "redop", optional=True), Column("root", "root", Show.COUNT, optional=True),
    Column("place", "place", optional=True), *_SIZE, *columns.COST)
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), *_WHAT, Column("types", "types", optional=True),
    Column("redops", "redops", optional=True), Column("sizes", "sizes", optional=True),
    *columns.COST)
_RESULT_COLUMNS = (
    *_SIZE, Column("type", "type", once=True), Column("redop", "redop", once=True),
    Column("root", "root", Show.COUNT, once=True), Column("place", "place", once=True),
    columns.TIME, columns.INTERVAL,
    Column("p95", "p95", Show.US, "us", better="less"),
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


def type_word(work: Collective) -> str | None:
    """Return the dtype; None where no data are moved."""
    return work.dtype if work.traits.moves_data else None


def form_text(work: Collective) -> str:
    """Return ``split linear, 2 groups, buffers cold``, or nothing for what is usual."""
    parts = [f"split {work.split}"] if work.split != "even" else []
    parts += [groups_text(work)] if work.groups != 1 else []
    parts += [f"buffers {work.buffers}"] if work.buffers != "warm" else []
    return ", ".join(parts)


def size_range(works: Iterable[Collective]) -> str:
    """Return ``64KiB`` or ``8..64MiB``; nothing where no case has a size."""
    sizes = sorted({work.size_bytes for work in works} - {0})
    return "..".join(dict.fromkeys(map(format_bytes, (sizes[0], sizes[-1])))) if sizes else ""


def plan_table(title: str, cases: Sequence[Case], *, listed: bool) -> Table:
    """Return a row for each case, or for each collective on each backend."""
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
        len(cases), *_what_cells(cases[0]), distinct(map(type_word, works)) or None,
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
    return type_word(work), work.op, work.root, place


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
    work, stats = collective_of(item.case), item.statistics
    rates = record.bandwidth if record else None
    return Row((
        work.size_bytes, work.count, *_option_cells(work),
        columns.median_cell(stats), columns.interval_cell(stats), stats.p95_s if stats else None,
        rates.algbw_bytes_per_s if rates else None, rates.busbw_bytes_per_s if rates else None,
        record.of_link if record else None, record.of_measured_link if record else None,
        record.roofline.bound_by if record and record.roofline else None,
        columns.wrong_cell(item) if work.traits.moves_data else None, columns.n_cell(stats),
        item.status, columns.launches_cell(item), flag_cell(item), _library_text(item)),
        item.status, item.case.case_id)


def _library_text(item: CaseResult) -> str:
    """Return ``RING SIMPLE, 8 channels, P2P/CUMEM``: what libraries said of it, if any did."""
    known = {name: text for name, text in (item.library or {}).items() if text != UNKNOWN}
    call = " ".join(known[name] for name in ("algorithm", "protocol") if name in known)
    channels = f"{known['channels']} channels" if "channels" in known else ""
    return ", ".join(text for text in (call, channels, known.get("transport")) if text)
