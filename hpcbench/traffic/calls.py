"""Calls of one rank as a source has them, before ranks are matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcbench.config.axes import DTYPE_ALIASES
from hpcbench.formats.reading.names import our_name
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.profiling.flight import ITEM_BYTES

_OTHERS: Mapping[str, str] = {
    "allreducebarrier": "barrier", "allreducecoalesced": "all_reduce",
    "allgatherintotensorcoalesced": "all_gather", "allgathercoalesced": "all_gather",
    "reducescattertensorcoalesced": "reduce_scatter", "alltoallbase": "all_to_all",
    "send": SEND_RECV, "recv": SEND_RECV, "recvanysource": SEND_RECV}
"""Names of torch beyond those that tables of benchmarks have."""
NO_CALLS = frozenset({"wait", "init", "coalesced", "monitoredbarrier"})
"""Rows of sources that move nothing of their own."""
OWN = -1
_ITEM_BYTES: Mapping[str, int] = {
    "signedchar": 1, "unsignedchar": 1, "float8e4m3fn": 1, "float8e5m2": 1, "int8": 1, "bool": 1,
    "int16": 2, **{name.lower(): size for name, size in ITEM_BYTES.items()}, **DTYPE_BYTES}
"""Our names of element types, torch's in small letters, and c10's."""


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
    """

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


def collective_of(theirs: str) -> str:
    """Return our name of a collective, else theirs in small letters; "" for no call."""
    word = "".join(letter for letter in theirs.lower() if letter.isalpha())
    if word in NO_CALLS or not word:
        return ""
    return _OTHERS.get(word) or our_name(word) or theirs.lower().strip("_")[:40]


def dtype_of(theirs: str) -> str:
    """Return our name of torch's or c10's element type, else theirs in small letters."""
    word = theirs.lower().replace("_", "")
    return {"byte": "uint8", **DTYPE_ALIASES}.get(word, word[:20])


def item_bytes(dtype: str | None) -> int:
    """Return the bytes of an element; 0: unknown."""
    return 0 if dtype is None else _ITEM_BYTES.get(dtype, 0)
