"""The table of a block's collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.collective.derive.record import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.collective.present.words import form_text, place_word, type_word
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.library_choices import UNKNOWN
from hpcbench.views.columns import (
    FLAGS,
    INTERVAL,
    STATUS,
    TABLED,
    TIME,
    WRONG,
    N,
    interval_cell,
    median_cell,
    n_cell,
    wrong_cell,
)
from hpcbench.views.table import Cell, Column, Group, Range, Row, Show, Table
from hpcbench.views.timing import flag_text, fold_of
from hpcbench.views.words import device_memory_text, device_type, env_text, plural

COLUMNS = (
    Column("size", "size", Show.COUNT, "B"), Column("count", "count", Show.COUNT, "elem"),
    Column("type", "type"), Column("redop", "redop"), Column("root", "root", Show.COUNT),
    Column("place", "place"), TIME, INTERVAL, Column("p95", "p95", Show.US, "us", better="less"),
    Column("algbw", "algbw", Show.GB_PER_S, "GB/s", "size / time p50", "more"),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "algbw x nccl-tests' factor", "more"),
    WRONG, N, STATUS,
    Column("launches", "launches", Show.US, "p50, us", "medians of the launches", optional=True),
    FLAGS, Column("library", "library", meaning="what libraries say of the call", optional=True),
)


def definitions(
    items: Sequence[CaseResult], derived: Mapping[str, CollectiveRecord],
) -> Iterator[str]:
    """Yield what the bandwidths are."""
    yield "algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B"


def result_tables(
    title: str, items: Sequence[CaseResult], derived: Mapping[str, CollectiveRecord],
) -> Iterator[Table]:
    """Yield one block's table: a group of rows per collective, backend, device, ranks and mode."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if groups:
        yield Table(title, COLUMNS, tuple(
            Group(name, tuple(_row(item, derived.get(item.case.case_id))
                              for item in sorted(group, key=_row_order)))
            for name, group in groups.items()))


def _group_title(item: CaseResult) -> str:
    case, work = item.case, collective_of(item.case)
    parts = (work.collective, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}",
             form_text(work), device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row_order(item: CaseResult) -> tuple[str, str, int, bool, int, int]:
    work = collective_of(item.case)
    return (work.dtype, work.op or "", work.root or 0, bool(work.in_place), work.size_bytes,
            item.case.index)


def _row(item: CaseResult, record: CollectiveRecord | None) -> Row:
    work, stats = collective_of(item.case), item.statistics
    rates = record.bandwidth if record else None
    return Row((
        work.size_bytes, work.count, type_word(work), work.op, work.root, place_word(work),
        median_cell(stats), interval_cell(stats), stats.p95_s if stats else None,
        rates.algbw_bytes_per_s if rates else None, rates.busbw_bytes_per_s if rates else None,
        wrong_cell(item) if work.traits.moves_data else None, n_cell(stats), item.status,
        _launches_cell(item), flag_text(item), _library_text(item)),
        item.status, item.case.case_id)


def _library_text(item: CaseResult) -> str:
    """Return ``RING SIMPLE, 8 channels, P2P/CUMEM``: what libraries said of it, if any did."""
    known = {name: text for name, text in (item.library or {}).items() if text != UNKNOWN}
    call = " ".join(known[name] for name in ("algorithm", "protocol") if name in known)
    channels = f"{known['channels']} channels" if "channels" in known else ""
    return ", ".join(text for text in (call, channels, known.get("transport")) if text)


def _launches_cell(item: CaseResult) -> Cell:
    """Return the least and the greatest median of a launch; nothing for a single launch."""
    medians = item.timing.launch_medians_s if item.timing else ()
    return Range(min(medians), max(medians)) if len(medians) > 1 else ""
