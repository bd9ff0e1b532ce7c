"""The table of the largest batches that fitted, beside those that were predicted to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.memory.derive.deriver import NOTHING_KNOWN, MemoryRecord
from hpcbench.kinds.memory.derive.largest import tries_of
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.memory.present.table import where_text, who_cells
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.words import telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped
from hpcbench.views import columns
from hpcbench.views.table import Cell, Column, Group, Line, Row, Show, Table

_COLUMNS = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True),
    Column("step", "step", meaning="how it is taken, where that is unusual", optional=True),
    Column("limit", "limit", Show.MIB, "MiB", "what the training may take on a rank"),
    Column("largest", "largest batch", Show.COUNT, "replica", "the most that fitted on all ranks",
           "more"),
    Column("too_large", "too large", Show.COUNT, "replica", "the fewest tried that did not fit"),
    Column("ended", "ended", meaning="how that try ended", optional=True),
    Column("predicted", "predicted", Show.COUNT, "replica", "the most that the plan says need no "
           "more", optional=True),
    Column("deviation", "deviation %", Show.PERCENT, "", "largest / predicted - 1", optional=True),
    Column("tries", "tries", Show.COUNT, "", "batches tried, each by new workers"),
    Column("peak", "peak", Show.MIB, "MiB", "of the largest batch, without overhead"),
    Column("utilisation", "of limit %", Show.PERCENT, "", "peak / limit of the rank",
           optional=True), columns.STATUS)
DEFINITIONS = (
    "largest batch: the most samples of a replica whose steps fitted into the limit on every rank,",
    "  to 5 %, or to what batches are multiples of; too large = the fewest tried that did not fit;",
    "  each try has new workers (docs/memory.md)")


def is_search(item: CaseResult) -> bool:
    """Return whether a case looks for a largest batch."""
    return work_of(item.case).search is not None


def tables(
    title: str, items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[Table]:
    """Yield a row for each search."""
    listed = [item for item in items if item.status in columns.TABLED]
    if not listed:
        return
    options = telling_options(work_of(item.case).training for item in listed)
    groups = grouped((where_text(item), item) for item in listed)
    yield Table(f"{title}: largest batch", _COLUMNS, tuple(Group(where, tuple(
        Row((*_who(item, options), *_found(item, derived), item.status), item.status,
            item.case.case_id) for item in same)) for where, same in groups.items()),
        notes=tuple(_notes(listed, derived)))


def _who(item: CaseResult, options: Mapping[Training, str]) -> tuple[Cell, ...]:
    strategy, option, degrees, _, step = who_cells(work_of(item.case).training, options)
    return strategy, option, degrees, step


def _found(item: CaseResult, derived: Mapping[str, MemoryRecord]) -> tuple[Cell, ...]:
    record = derived.get(item.case.case_id, NOTHING_KNOWN)
    found, search = record.largest, work_of(item.case).search
    if found is None:
        limit = search.limit_bytes if search else 0
        return (limit or None, *(None,) * 5, len(tries_of(item)) or None, None, None)
    return (found.limit_bytes, found.largest_batch, found.too_large_batch, found.too_large_ended,
            found.predicted_largest_batch, found.batch_deviation, found.tries, record.peak_bytes,
            record.utilisation)


def _notes(
    items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[Line]:
    """Yield what the limits are of, and batches that are multiples of more than one sample."""
    records = [record for item in items if (record := derived.get(item.case.case_id))]
    if told := ", ".join(sorted({one.capacity_of for one in records if one.capacity_of})):
        yield Line(f"the limit is {told}", "quiet")
    for unit in sorted({search.unit for item in items if (search := work_of(item.case).search)}):
        if unit > 1:
            yield Line(f"batches of some rows are multiples of {unit}: others cannot be divided as "
                       "asked for", "quiet")
