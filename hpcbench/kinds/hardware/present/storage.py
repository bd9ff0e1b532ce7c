"""Tables and charts of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.derive.storage import StorageRecord
from hpcbench.kinds.hardware.plan.storage import storage_of
from hpcbench.kinds.hardware.present.common import bandwidth_chart, own_range, table_of
from hpcbench.reduce.results import CaseResult
from hpcbench.units import to_gb_per_s
from hpcbench.views import columns
from hpcbench.views.chart import Bar, BarChart, Look
from hpcbench.views.table import Column, Line, Row, Show, Table
from hpcbench.views.words import flag_cell

Records = Mapping[str, HardwareRecord]
DEFINITIONS = (
    "storage: rank = bytes of a rank's call / time p50, all ranks at once; writes end with fsync;",
    "  cache: cold where no read found its data in the page cache, warm where all did")
FIELDS = ("storage_access", "file_bytes", "folder", "file_system", "cache",
          "storage_rank_gb_per_s", "storage_all_ranks_gb_per_s", "storage_own_gb_per_s")
_COLUMNS = (
    Column("access", "access"), Column("size", "a rank's file", Show.SIZE, "bytes"),
    Column("cache", "cache", optional=True), columns.TIME, columns.INTERVAL,
    Column("rank", "rank", Show.GB_PER_S, "GB/s", "of each rank, all at once", "more"),
    Column("all", "all ranks", Show.GB_PER_S, "GB/s", "all ranks together", "more"),
    Column("own", "own", Show.GB_PER_S, "GB/s", "slowest to fastest rank", "more"),
    columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
NOTHING = StorageRecord()


def tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one table; where the files were is a note."""
    return table_of(
        title, _COLUMNS, items, lambda item: _row(item, derived.get(item.case.case_id)),
        _places(items, derived))


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[BarChart]:
    """Yield the rates of all ranks, a bar an access."""
    return bandwidth_chart(
        "storage", "hardware-storage",
        "Bar: bytes of all ranks over the median time. Writes end with fsync.",
        items, lambda item, look: _bar(item, derived, look))


def row(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return the values of FIELDS."""
    work, known = storage_of(item.case), (record and record.storage) or NOTHING
    return {
        "storage_access": work.access, "file_bytes": work.size_bytes, "folder": known.folder,
        "file_system": known.file_system, "cache": known.cache,
        "storage_rank_gb_per_s": known.rank_bytes_per_s and to_gb_per_s(known.rank_bytes_per_s),
        "storage_all_ranks_gb_per_s": (
            known.all_ranks_bytes_per_s and to_gb_per_s(known.all_ranks_bytes_per_s)),
        "storage_own_gb_per_s": [
            to_gb_per_s(rate) for rate in (record.rank_rates if record else ())]}


def _places(items: Sequence[CaseResult], derived: Records) -> Iterator[Line]:
    """Yield each folder with the type of its file system."""
    found = (derived.get(item.case.case_id) for item in items)
    places = dict.fromkeys((one.storage.folder, one.storage.file_system) for one in found
                           if one and one.storage and one.storage.folder)
    for folder, system in places:
        yield Line(f"files in {folder}" + (f" ({system})" if system else ""), "quiet")


def _row(item: CaseResult, record: HardwareRecord | None) -> Row:
    work, known = storage_of(item.case), (record and record.storage) or NOTHING
    return Row((
        work.access, work.size_bytes, known.cache,
        columns.median_cell(item.statistics), columns.interval_cell(item.statistics),
        known.rank_bytes_per_s, known.all_ranks_bytes_per_s, own_range(record),
        columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
        columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _bar(item: CaseResult, derived: Records, look: Look) -> Bar:
    record = derived.get(item.case.case_id)
    known = (record and record.storage) or NOTHING
    cache = f" ({known.cache})" if known.cache else ""
    return Bar(f"{storage_of(item.case).access}{cache}", (),
               ((known.all_ranks_bytes_per_s or 0.0, look),))
