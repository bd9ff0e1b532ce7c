"""Calls of one rank as a source has them, before ranks are matched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hpcbench import limits
from hpcbench.config.axes import DTYPE_ALIASES
from hpcbench.errors import FileError
from hpcbench.interop.formats.reading.names import our_name
from hpcbench.operations.collectives import MAX_WORLD_SIZE
from hpcbench.operations.traffic import MOST_CALL_BYTES, MOST_NS, SEND_RECV

_OTHERS: Mapping[str, str] = {
    "allreducebarrier": "barrier", "allreducecoalesced": "all_reduce",
    "allgatherintotensor": "all_gather", "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather", "allgathersingle": "all_gather",
    "reducescattertensor": "reduce_scatter", "reducescattertensorcoalesced": "reduce_scatter",
    "reducescattersingle": "reduce_scatter", "reducescatterv": "reduce_scatter",
    "alltoallbase": "all_to_all", "alltoallvsingle": "all_to_all",
    "broadcastoop": "broadcast", "reduceoop": "reduce",
    "send": SEND_RECV, "recv": SEND_RECV, "recvanysource": SEND_RECV}
"""Names of torch beyond those that tables of benchmarks have."""
NO_CALLS = frozenset({"wait", "init", "coalesced", "monitoredbarrier", "split", "newwindow"})
"""Rows of sources that move nothing of their own."""
OWN = -1
MOST_CALLS = 2_000_000
"""Calls of a rank that are read: the order of more has no room in traffic.json."""
_TYPES: Mapping[str, str] = {
    **DTYPE_ALIASES, "byte": "uint8", "unsignedchar": "uint8", "char": "int8", "signedchar": "int8",
    "short": "int16", "shortint": "int16", "longint": "int64", "complexhalf": "complex32",
    "complexfloat": "complex64", "complexdouble": "complex128", "complex<half>": "complex32",
    "complex<float>": "complex64", "complex<double>": "complex128"}
"""Element types of torch, c10 and C++ in small letters, without ``c10::`` -> our names."""
_BITS = re.compile(r"(?:fp|bf|q?u?int|float|complex|bits)(\d{1,3})")


@dataclass(frozen=True, slots=True)
class RankCall:
    """One call of one rank; a value that the source lacks is None.

    Attributes:
        group: name of its group in `RankRecord.groups`.
        sequence: the group's number of this call; None: the calls are counted.
        start_ns: on the rank's clock, for order and gaps.
        after_loss: whether calls directly before it were lost.
        is_open: whether it had not ended when the record was written.
        pair: sender and receiver in the group, of a message; OWN: this rank.
        splits_in: elements to each rank; None: even, or none; (): uneven, but not recorded.
        parts: elements of all ranks' parts where the source lists them instead of this rank's."""

    collective: str
    group: str
    sequence: int | None = None
    dtype: str | None = None
    operator: str | None = None
    root: int | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    splits_in: tuple[int, ...] | None = None
    splits_out: tuple[int, ...] | None = None
    size_bytes: int | None = None
    backend: str | None = None
    pair: tuple[int, int] | None = None
    start_ns: int | None = None
    duration_ns: int | None = None
    after_loss: bool = False
    is_open: bool = False
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a number that no call has; in one expression, as calls are many."""
        if not (0 <= (self.elements_in or 0) <= MOST_CALL_BYTES
                and 0 <= (self.elements_out or 0) <= MOST_CALL_BYTES
                and 0 <= (self.size_bytes or 0) <= MOST_CALL_BYTES
                and 0 <= (self.sequence or 0) <= MOST_NS
                and 0 <= (self.duration_ns or 0) <= MOST_NS
                and -MOST_NS <= (self.start_ns or 0) <= MOST_NS
                and 0 <= (self.root or 0) < MAX_WORLD_SIZE):
            raise ValueError("a size, number, time or root that no call has")
        for splits in (self.splits_in, self.splits_out, self.parts):
            if splits and not 0 <= min(splits) <= max(splits) <= MOST_CALL_BYTES:
                raise ValueError("parts of elements that no call has")
        if self.pair and not OWN <= min(self.pair) <= max(self.pair) < MAX_WORLD_SIZE:
            raise ValueError("a message of ranks that no job has")

    @property
    def bytes(self) -> int:
        """Return the call's size as in nccl-tests, as far as this rank knows it; 0: unknown."""
        if self.size_bytes is not None:
            return self.size_bytes
        most = max(self.elements_in or 0, self.elements_out or 0)
        return most * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group as a record describes it: ranks in order, None where it does not list them."""

    description: str = ""
    ranks: tuple[int, ...] | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for ranks that no group has."""
        ranks = self.ranks or (0,)
        if not 0 <= min(ranks) <= max(ranks) < MAX_WORLD_SIZE or len({*ranks}) < len(ranks):
            raise ValueError(f"a group of ranks {min(ranks)} to {max(ranks)}")
        if self.size is not None and not 0 < self.size <= MAX_WORLD_SIZE:
            raise ValueError(f"a group of {self.size} ranks, of 1 to {MAX_WORLD_SIZE}")


@dataclass(slots=True)
class RankRecord:
    """The calls of one rank in one file, in the order of issue; ``ras``: JSON of NCCL's RAS."""

    file: str
    program: str
    version: str
    rank: int | None
    world_size: int | None
    calls: Sequence[RankCall]
    groups: Mapping[str, KnownGroup]
    dropped: int = 0
    ras: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise FileError for a rank or a number of ranks that no job has."""
        size = MAX_WORLD_SIZE if self.world_size is None else self.world_size
        if not 1 <= size <= MAX_WORLD_SIZE:
            raise FileError(f"{self.file}: {str(size)[:20]} ranks, of 1 to {MAX_WORLD_SIZE}")
        if self.rank is not None and not 0 <= self.rank < size:
            raise FileError(f"{self.file}: rank {str(self.rank)[:20]}, of 0 to {size - 1}")


def check_count(name: str, count: int) -> None:
    """Raise FileError where a file ``name`` has more calls than are read of a rank."""
    if count > MOST_CALLS and count > (most := limits.raised(MOST_CALLS)):
        raise FileError(f"{name}: more than {most} calls: record fewer steps, or "
                        f"{limits.remedy()}")


def collective_of(theirs: str) -> str:
    """Return our name of a collective, else theirs in small letters; "" for no call."""
    word = "".join(letter for letter in theirs.lower() if letter.isalpha())
    if word in NO_CALLS or not word:
        return ""
    return _OTHERS.get(word) or our_name(word) or theirs.lower().strip("_")[:40]


@lru_cache(1024)
def dtype_of(theirs: str) -> str:
    """Return our name of torch's or c10's element type, else theirs in small letters."""
    word = re.sub(r"[_\s]|c10::", "", theirs.lower())
    return _TYPES.get(word, word[:20])


def item_bytes(dtype: str | None) -> int:
    """Return the bytes of an element, at least 1 of types of a few bits; 0: unknown."""
    found = _BITS.match(dtype or "")
    return max(int(found[1]) // 8, 1) if found else int(dtype == "bool")


def exact(value: Any) -> int:
    """Return a whole number of a file, also from its text. Raises ValueError for true and 1.5, of
    which int() makes 1, and what that raises."""
    if isinstance(value, bool) or isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no whole number")
    return int(value)


def ranks_of(listed: Any) -> tuple[int, ...]:
    """Return ranks of a list or of its text; () where it is neither or was cut off."""
    if isinstance(listed, str):
        if "..." in listed or not re.fullmatch(r"\[[\d,\s]*\]", listed):
            return ()
        listed = re.findall(r"\d+", listed)
    return tuple(map(exact, listed)) if isinstance(listed, (list, tuple)) else ()


def strided(start: int, stride: int, size: int) -> tuple[int, ...]:
    """Return the ranks of a group that are so far apart; () where they are not (stride -1).

    Raises ValueError for ranks from `MAX_WORLD_SIZE` on."""
    if size > MAX_WORLD_SIZE or start + (size - 1) * stride >= MAX_WORLD_SIZE:
        raise ValueError(f"a group of {size} ranks from {start} on, {stride} apart")
    return tuple(range(start, start + size * stride, stride)) if stride > 0 <= start else ()


def splits_of(listed: Any, elements: int | None) -> tuple[int, ...] | None:
    """Return splits in elements, () where they cannot be known, None where none are listed.

    torch lists rows: `all_to_all_single` divides the first dimension of a tensor of ``elements``.
    """
    if not listed or listed == "[]":
        return None
    splits = ranks_of(listed)
    rows = sum(splits)
    if elements is None or elements % max(rows, 1) or (elements and not rows):
        return ()
    return tuple(split * (elements // max(rows, 1)) for split in splits)


def backend_of(config: str, device: str) -> str | None:
    """Return the backend for a type of device of ``nccl`` or ``cpu:gloo,cuda:nccl``; None: unknown.

    Where no device is named, it has to be the only one."""
    named = [part.strip().rpartition(":") for part in config.lower().split(",")]
    names = {name for on, _, name in named if name and (on in ("", device) or not device)}
    return names.pop() if len(names) == 1 else None
