"""The interface of all readers of a rank's trace, be it sealed or still a journal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from hpcbench.errors import TraceError
from hpcbench.operations.collectives import MAX_WORLD_SIZE
from hpcbench.plan.case import STATUSES, Plan, plan_from_json, plan_to_json
from hpcbench.records import dataclass
from hpcbench.texts import from_json, to_json
from hpcbench.trace import schema
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.columns import TELEMETRY_NOTE, Rows, TelemetryReport
from hpcbench.trace.schema import Header, Record

END_NOTE = "end"
"""The note that a rank writes last, when it is done with the whole plan or was stopped."""
STOPPED_NOTE = "stopped"
"""The note of the signal that stopped the rank before the plan was done."""
BEGIN_NOTE = "begin"
"""Rank 0's note that a case is about to run, which is not waited for until it is on disk."""
PROFILE_NOTE = "profile"
"""Rank 0's note of the profile of a case (`profiling.profiled_cases.ProfileNote`)."""
RESUMED_NOTE = "resumed"
"""Rank 0's note of an earlier attempt's progress, in an attempt that goes on from there."""
TEARDOWN_NOTE = "teardown"
"""The note of a worker that crashed when it had done its cases and left the process group."""
FOLDERS_NOTE = "apart"
"""Rank 0's note of the ranks that do not see its folder: host and folder of each, by rank."""
CLOCK_NOTE = "clock"
"""The note that a synchronisation of clocks leaves."""
ARRAYS = ("samples", "phases")
"""Fields of a record that are no JSON."""
_INT64 = np.dtype(np.int64)
_RECORD_FIELDS = tuple(item.name for item in fields(Record) if item.name not in ARRAYS)


class UnreadableTrace(TraceError):
    """A file that is no usable trace; ``code`` is the check that fails (docs/checks.md)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Note:
    """Something a rank recorded beside its cases: ``end``, ``stopped``, an event."""

    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a journal that held no whole frame. ``torn``: the file ends inside them."""

    offset: int
    what: str
    torn: bool


@dataclass(frozen=True, slots=True)
class TraceSource(ABC):
    """One rank's trace, without open files and samples; each read opens the file anew. ``plan`` is
    only rank 0's; ``notes`` are in order of time; ``damage`` could not be read; ``sealed``: no
    journal."""

    path: Path
    header: Header
    plan: Plan | None
    notes: tuple[Note, ...]
    damage: tuple[Damage, ...]
    sealed: ClassVar[bool]

    @property
    @abstractmethod
    def case_ids(self) -> frozenset[str]:
        """Return the ids of all cases with a record."""

    @abstractmethod
    def sample_counts(self) -> Mapping[str, int]:
        """Return how many samples each case has at most, over all its records."""

    @abstractmethod
    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True,
    ) -> Iterator[Record]:
        """Yield the records of these cases (None: of all) in order, without rows unless
        ``samples``. Raises TraceError if the file has gone."""

    @abstractmethod
    def telemetry(self) -> Mapping[str, Rows]:
        """Return the readings of each table, as far as there are any."""


def never_ended(source: TraceSource) -> bool:
    return all(note.kind != END_NOTE for note in source.notes)


def was_cut_short(source: TraceSource) -> bool:
    return bool(source.damage) or never_ended(source)


def noted(source: TraceSource, kind: str) -> list[Mapping[str, Any]]:
    return [note.data for note in source.notes if note.kind == kind]


def sync_records(source: TraceSource) -> list[SyncRecord]:
    return [schema.from_values(SyncRecord, data) for data in noted(source, CLOCK_NOTE)]


def telemetry_report(source: TraceSource) -> TelemetryReport | None:
    notes = noted(source, TELEMETRY_NOTE)
    return schema.from_values(TelemetryReport, notes[-1]) if notes else None


def header_to_json(header: Header) -> dict[str, Any]:
    return {item.name: getattr(header, item.name) for item in fields(Header)}


def header_from_json(data: Mapping[str, Any], path: Path) -> Header:
    """Rebuild a header. Raises UnreadableTrace for another version or a foreign header."""
    try:
        check_version(int(data["schema_version"]), schema.SCHEMA_VERSION, path)
        header = schema.from_values(Header, data)
        if not (0 <= header.rank < MAX_WORLD_SIZE and 1 <= header.world_size <= MAX_WORLD_SIZE):
            raise ValueError(f"rank {header.rank} of {header.world_size}")
        return header
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableTrace("HB103", f"{path}: not an hpcbench trace ({error!r})") from error


def check_version(version: int, known: int, path: Path) -> None:
    if version != known:
        raise UnreadableTrace(
            "HB104", f"{path}: written as version {version}, this hpcbench reads {known}: "
            "use the hpcbench that wrote it" + (", or a newer one" if version > known else ""))


def plan_to_text(plan: Plan) -> str:
    return to_json(plan_to_json(plan), separators=(",", ":"))


def plan_from_text(text: str | bytes, path: Path) -> Plan:
    """Rebuild a plan. Raises TraceError naming the file if it is not one."""
    try:
        plan = plan_from_json(from_json(text))
        sizes = [plan.passes, plan.world_size, *(case.world_size for case in plan.cases)]
        counts = [number for case in plan.cases for number in (case.warmup, case.iterations)]
        if not all(type(number) is int for number in sizes + counts) or min(sizes) < 1:
            raise ValueError("passes, ranks and iterations have to be whole numbers")
        if max(sizes[1:]) > MAX_WORLD_SIZE:
            raise ValueError(f"{max(sizes[1:])} ranks, of {MAX_WORLD_SIZE} at most")
        for case in plan.cases:
            schema.check_types(case, without=("workload",))
            schema.check_types(case.workload)
        return plan
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError,
            RecursionError) as error:
        raise TraceError(f"{path}: the plan in it cannot be read ({error!r})") from error


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON values, without samples; of phases, if any, the names."""
    return {**{name: getattr(record, name) for name in _RECORD_FIELDS}, **phase_names(record)}


def phase_names(record: Record) -> dict[str, list[str]]:
    return {"phases": [*record.phases]} if record.phases else {}


def record_from_json(
    data: Mapping[str, Any], samples: schema.SampleColumns,
    phases: schema.Phases = MappingProxyType({}),
) -> Record:
    """Rebuild a record, unknown keys ignored. Raises KeyError, TypeError or ValueError."""
    known = {name: data[name] for name in _RECORD_FIELDS}
    return checked_record(Record(**known, samples=samples, phases=phases))


def checked_record(record: Record) -> Record:
    shape = record.samples.start_ns.shape
    for name, values in record.phases.items():
        if values.dtype != _INT64 or values.shape != shape:
            raise ValueError(f"phase {name!r} of {record.case_id}: int64 ({len(record.samples)},) "
                             f"expected, got {values.dtype} {values.shape}")
    if record.status not in STATUSES:
        raise ValueError(f"{record.case_id}: no status {record.status!r}; known: {STATUSES}")
    return record
