"""One rank's records: data types of the journal, the sealed trace and their readers. Dataclasses
out of JSON are checked against their declared types: a checksum does not prove them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from enum import IntFlag
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.texts import from_json, holds_halves, to_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Read = TypeVar("Read")


def from_text(kind: type[Read], text: str | bytes) -> Read:
    """Return a JSON text as ``kind``, unknown keys ignored. Raises ValueError naming the first bad
    field."""
    decoded = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
    if holds_halves(decoded):  # pydantic refuses them, but earlier versions wrote some
        text = to_json(from_json(decoded))
    from pydantic import ValidationError  # a worker needs none of it

    try:
        read: Read = adapter_of(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(_first(error)) from error
    return read


def from_values(kind: type[Read], values: Any) -> Read:
    return from_text(kind, to_json(values))


def to_values(item: Any) -> dict[str, Any]:
    """Return a dataclass as `dataclasses.asdict` does, in a tenth of the time."""
    values: dict[str, Any] = adapter_of(type(item)).dump_python(item, warnings=False)
    return values


def check_types(item: Any, without: Collection[str] = ()) -> None:
    """Raise ValueError where a field, but those ``without``, is not of its type; recursive."""
    from pydantic import ValidationError

    checkers = _checkers(
        type(item), frozenset(without))  # type: ignore[arg-type]  # a class is hashable
    for name, checker in checkers.items():
        value = getattr(item, name)
        try:
            checker.validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{name}: {_first(error)}") from error
        if is_dataclass(value):
            check_types(value)


def adapter_of(kind: type[Any]) -> TypeAdapter[Any]:
    return _adapter(kind)  # type: ignore[arg-type]  # a class is hashable


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@cache
def _checkers(kind: type[Any], without: frozenset[str]) -> Mapping[str, TypeAdapter[Any]]:
    """Return the checker of each other field."""
    try:
        hints = get_type_hints(kind)
    except Exception:
        if kind.__module__.partition(".")[0] == "hpcbench":
            raise
        return {}  # a plug-in need not be able to resolve its types at run time
    return {item.name: _checker(hints[item.name]) for item in fields(kind)
            if item.name not in without}


@cache
def _checker(of: Any) -> TypeAdapter[Any]:
    """Return the checker of a type; whole numbers have to fit into an HDF5 column."""
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[int, Field(ge=-2**63, lt=2**63)] if of is int else of, config=(
        None if is_dataclass(of) else {"strict": True, "arbitrary_types_allowed": True}))


def _first(error: Any) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


LIBRARY = "library"
"""The key of a record's detail that holds `LibraryChoices.to_json`, where any library reported."""
HAS_NO_CHECK = "has_no_check"
"""The key of a record's detail that is there if the operation has nothing that could be checked."""
CHECKSUM = "checksum"
"""The key of a record's detail with a text: equal while the bits are of a result that is compared
within a tolerance, of the same first call in each measurement."""
UNKNOWN = "unknown"
_AND = " + "


@dataclass(frozen=True, slots=True)
class LibraryChoices:
    """Choices that libraries reported: tuples of different texts. ``channels`` are numbers of a
    call, else ``up to 24`` of the communicator."""

    algorithm: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    transport: tuple[str, ...] = ()

    def to_json(self) -> dict[str, str]:
        """Return one text for each, ``unknown`` where there is none, ``A + B`` for several."""
        return {name: _AND.join(getattr(self, name)) or UNKNOWN for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> LibraryChoices:
        return cls(**{name: () if data[name] == UNKNOWN else tuple(data[name].split(_AND))
                      for name in cls.__slots__})


def merged(choices: Iterable[LibraryChoices]) -> LibraryChoices:
    """Return all ranks' choices of one case; most have neither algorithm nor protocol."""
    every = list(choices)
    used = different(tuple(text for text in item.channels if text.isdecimal()) for item in every)
    return LibraryChoices(
        algorithm=different(item.algorithm for item in every),
        protocol=different(item.protocol for item in every),
        channels=used or different(item.channels for item in every),
        transport=different(item.transport for item in every))


def different(texts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for several in texts for text in several))


SCHEMA_VERSION = 2
SAMPLE_COLUMNS = ("start_ns", "end_ns", "enqueue_ns", "device_ns", "flags")
"""int64, a row per sample. ``start_ns`` and ``end_ns`` are stamps of the rank's own clock;
``enqueue_ns`` is the time to issue the work, ``device_ns`` that on the device, both NO_DEVICE_TIME
where the call returns when the work is done."""
NO_DEVICE_TIME = -1
NO_COMMUNICATOR = -1

NOISE_NOTE = "noise"
"""The note in which a rank records `measure.noise.measure_noise` before the sweep."""

Samples = npt.NDArray[np.int64]
"""Rows as they are recorded: int64 (sample, SAMPLE_COLUMNS)."""
Times = npt.NDArray[np.int64]
Phases = Mapping[str, Times]
"""Phase of a step -> (sample,) int64 ns. With ARRIVAL: a moment, in ns after the step's begin."""
ARRIVAL = "arrival "
"""Followed by the number of a bucket, from 1: when the last gradient of that bucket was there."""


class Flag(IntFlag):
    """Bits of a sample's ``flags`` column. Rows are flagged, never dropped."""

    WARMUP = 1
    CHECKED = 2
    LATE_START = 4
    SINGLE = 8
    """One call, made to check its result, among samples of several calls (mode pipelined)."""
    SETTLED = 16
    """Calls that are not recorded stand between the check before it and this sample."""


SETTLING_CALLS = 2
"""How many calls stand before a sample with SETTLED."""
UNTIMED = Flag.WARMUP | Flag.SINGLE
"""Samples with one of these count in no statistic."""

STOP_REASONS = ("fixed", "converged", "budget", "max_iterations")


UNKNOWN_VERSION = "unknown"
"""The version of a driver or a library that crashed or hung when it was called."""


def same_version(one: str | None, other: str | None) -> bool:
    """Return whether two versions are alike, as far as both are known."""
    return one == other or UNKNOWN_VERSION in (one, other)


def bare_uuid(uuid: str) -> str:
    """Return the UUID of a GPU, or a part of one, without NVML's prefix."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


@dataclass(frozen=True, slots=True)
class Header:
    """The writer of a trace. ``node`` identifies the machine; ``versions`` must be alike on all
    ranks."""

    run_id: str
    plan_hash: str
    rank: int
    world_size: int
    local_rank: int
    hostname: str
    node: str
    pid: int
    versions: Mapping[str, str]
    environment: Mapping[str, Any]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """The samples of a record by SAMPLE_COLUMNS, each int64 (sample,), read-only and maybe
    shared."""

    start_ns: Times
    end_ns: Times
    enqueue_ns: Times
    device_ns: Times
    flags: Times

    @classmethod
    def of_rows(cls, rows: Samples) -> SampleColumns:
        """Return the columns of rows, in the same memory. Raises ValueError if they are no rows."""
        if rows.dtype != np.int64 or rows.shape != (len(rows), len(SAMPLE_COLUMNS)):
            raise ValueError(f"samples: int64 (n, {len(SAMPLE_COLUMNS)}) expected, got "
                             f"{rows.dtype} {rows.shape}")
        return cls(*rows.T)

    def __len__(self) -> int:
        return len(self.start_ns)

    def columns(self) -> tuple[Times, ...]:
        return self.start_ns, self.end_ns, self.enqueue_ns, self.device_ns, self.flags

    def rows(self) -> Samples:
        return np.stack(self.columns(), axis=1)


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's record of one case. ``status`` is one of plan.case.STATUSES, agreed by all ranks,
    ``reason`` a line for all but ``ok``. ``begin_ns`` to ``end_ns`` is its window on the rank's
    clock. ``samples`` begin with flagged warm-ups. ``stop_reason`` is one of STOP_REASONS or "".
    ``position``: cases run before it by these workers in the pass. -1: nobody blamed, unchecked,
    not run, group already open."""

    case_id: str
    pass_index: int
    launch: int
    attempt: int
    status: str
    reason: str
    blamed_rank: int
    mode: str
    device: str
    begin_ns: int
    end_ns: int
    n_wrong: int
    samples: SampleColumns
    detail: Mapping[str, Any] = field(default_factory=dict)
    stop_reason: str = ""
    position: int = -1
    communicator_ns: int = NO_COMMUNICATOR
    phases: Phases = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int, int]:
        return (self.case_id, self.pass_index, self.launch, self.attempt)


MOST_LOST = 0.1
"""Share of its core that a rank may lose to others in a run that is quoted, with care: of 7 such
ranks one is away in every second moment, so that the median of their calls holds the wait."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Time lost to others while a rank only read the clock. ``stolen_share`` is in detours (gaps
    above ``threshold_ns``), ``part_shares`` of equal parts; ``median_step_ns`` is an undisturbed
    turn."""

    seconds: float
    n_detours: int
    stolen_share: float
    longest_ns: int
    median_step_ns: float
    threshold_ns: float
    part_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FixedWork:
    """Spread of equal pieces of work: ratios to the median, and sd over mean."""

    n_loops: int
    median_ns: float
    cv: float
    p99_over_median: float
    max_over_median: float


def no_rows() -> Samples:
    return np.empty((0, len(SAMPLE_COLUMNS)), dtype=np.int64)


def no_samples() -> SampleColumns:
    return SampleColumns.of_rows(no_rows())
