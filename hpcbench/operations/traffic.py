"""``traffic.json``: which collectives a job called, in which order, and what they took.

A `TrafficRecord` with the keys ``format`` ("hpcbench.traffic") and ``version``. It names no clock
of its source: gaps and durations are differences of stamps of one rank. Values that a source does
not have are None: few have the reduction operator and the root."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from annotated_types import Interval

from hpcbench import limits
from hpcbench.errors import FileError, command_line
from hpcbench.operations.collectives import MAX_WORLD_SIZE
from hpcbench.records import dataclass
from hpcbench.texts import from_json, to_json

FORMAT = "hpcbench.traffic"
VERSION = 1
MOST_CALL_BYTES, MOST_NS = 2**44, 2**62
"""No call is larger, and no clock's stamp: what a sweep file cannot ask for is damage."""
Rank: TypeAlias = Annotated[int, Interval(ge=0, lt=MAX_WORLD_SIZE)]
Size: TypeAlias = Annotated[int, Interval(ge=0, le=MOST_CALL_BYTES)]
Count: TypeAlias = Annotated[int, Interval(ge=0, le=MOST_NS)]
"""Of calls, or of nanoseconds."""
MOST_BYTES = 2**28
"""Larger files are not read: an order of a million calls on each of 8 ranks is below it."""
NO_SPLITS = "splits of all_to_all that are not recorded on all ranks"
"""Why an all_to_all cannot be issued again whose sizes prove it uneven."""
SEND_RECV = "send_recv"
"""Collective of a message of one rank to another, which has a `Signature.pair`."""


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Ranks that called collectives together.

    Attributes:
        name: torch's name or a communicator's id; unique only together with ``ranks``.
        ranks: ranks of the job in the group's order, whose positions are the group's own ranks.
        assumed: whether the source does not list them: they are those that called something."""

    name: str
    description: str
    ranks: tuple[Rank, ...]
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of ``n`` times: in nanoseconds, by linear interpolation."""

    n: Count
    min_ns: Count
    p25_ns: Count
    median_ns: Count
    p75_ns: Count
    p95_ns: Count
    max_ns: Count


@dataclass(frozen=True, slots=True)
class Signature:
    """One form of a collective: the same arguments in the same group.

    Attributes:
        collective: our name (``all_reduce``), else the source's (``barrier``).
        dtype: our name (``fp32``), else the source's in small letters; None: none, or unknown.
        operator: ``sum``, ``prod``, ``min``, ``max`` or ``avg``; None: none, or unknown.
        root: the root's rank in the group; None: none, or unknown.
        elements_in: elements of a rank's input: one number where all ranks have the same, else
            one for each rank of the group, in its order. None: unknown.
        elements_out: the same of a rank's output.
        splits_in: for each rank of the group the elements that it sends to each; None: even, or
            none; within: unknown of this rank.
        splits_out: the same of what it receives.
        group: index in `TrafficRecord.groups`.
        count: calls, each counted once for all its ranks.
        bytes: size of a call as nccl-tests counts it: the buffer, or all ranks' parts together.
        backend: ``gloo``, ``nccl``; None: unknown.
        pair: sender and receiver in the group, of ``send_recv`` only.
        transfer: of each call the least duration of its ranks, where at least two have one.
        wait: of each call and rank the duration beyond that.
        duration: of each call and rank."""

    collective: str
    dtype: str | None
    operator: str | None
    root: Rank | None
    elements_in: tuple[Size | None, ...]
    elements_out: tuple[Size | None, ...]
    splits_in: tuple[tuple[Size, ...] | None, ...] | None
    splits_out: tuple[tuple[Size, ...] | None, ...] | None
    group: Count
    count: Count
    bytes: Size
    backend: str | None = None
    pair: tuple[Rank, Rank] | None = None
    transfer: Quantiles | None = None
    wait: Quantiles | None = None
    duration: Quantiles | None = None

    @property
    def parts(self) -> tuple[int | None, ...]:
        """Return the elements of each rank's part of a collective that divides by ranks."""
        return {"all_gather": self.elements_in, "reduce_scatter": self.elements_out,
                "all_to_all": self.elements_in}.get(self.collective, ())

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Return the elements that each rank sends to each; () unless known of all ranks."""
        rows = [row for row in self.splits_in or () if row is not None]
        return tuple(rows) if len(rows) == len(self.splits_in or ()) else ()

    def is_uneven(self, ranks: int) -> bool:
        """Return whether the parts of that many ranks differ: by splits, or by recorded sizes that
        even parts cannot have."""
        if self.splits_in or self.splits_out:
            return True
        if self.collective != "all_to_all":
            return len({*self.parts} - {None}) > 1
        counts = {count for count in (*self.elements_in, *self.elements_out) if count is not None}
        return len(counts) > 1 or any(count % ranks for count in counts)


@dataclass(frozen=True, slots=True)
class CallForm:
    """The common form of calls that differ in size only.

    ``ranks`` of a group that are ``stride`` apart, with its like beside it on all ranks of the job;
    0: the group is of the first ranks, alone."""

    collective: str
    backend: str
    dtype: str
    operator: str | None
    root: int | None
    ranks: int
    stride: int


@dataclass(frozen=True, slots=True)
class RankOrder:
    """Calls of one rank in the order of their issue; all tuples have one item a call.

    Attributes:
        signature: index in `TrafficRecord.signatures`.
        sequence: the group's number of the call; ranks of a call have the same.
        gap_ns: from the issue of the call before to that of this one; None: first, or unknown as
            calls between them were dropped.
        duration_ns: from issue or start to end; None: unknown.
        wait_ns: the part beyond the least of all ranks; None: unknown, or of one rank only.
        dropped: calls that the source lost before or between these.
        unfinished: calls that had not ended when the record was written."""

    rank: Rank
    signature: tuple[Count, ...]
    sequence: tuple[Count, ...]
    gap_ns: tuple[Annotated[int, Interval(ge=-2 * MOST_NS, le=2 * MOST_NS)] | None, ...]
    duration_ns: tuple[Count | None, ...]
    wait_ns: tuple[Count | None, ...]
    dropped: Count = 0
    unfinished: Count = 0


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """The communication of one job.

    Attributes:
        source: programs and their versions, such as ``flight recorder 2.10``.
        files: names of the files that it was made of.
        world_size: ranks of the job.
        missing: those without a record.
        order: those of each rank that has one, by rank.
        notes: sentences on what was assumed, left out or not known."""

    source: tuple[str, ...]
    files: tuple[str, ...]
    world_size: Annotated[int, Interval(ge=1, le=MAX_WORLD_SIZE)]
    missing: tuple[Rank, ...]
    groups: tuple[CallGroup, ...]
    signatures: tuple[Signature, ...]
    order: tuple[RankOrder, ...]
    notes: tuple[str, ...] = ()


def form_id(record: TrafficRecord, one: Signature) -> str:
    """Return the id of a signature's calls: 16 hex digits of all but their number, times and
    group's name."""
    what = (one.collective, one.dtype, one.operator, one.root, one.elements_in, one.elements_out,
            one.splits_in, one.splits_out, one.pair, one.backend, record.groups[one.group].ranks)
    return hashlib.sha256(to_json(what).encode()).hexdigest()[:16]


def traffic_text(record: TrafficRecord) -> str:
    """Return the file's text: a line for each group, signature and rank."""
    plain = asdict(record)
    lists = {name: plain.pop(name) for name in ("groups", "signatures", "order")}
    head = {"format": FORMAT, "version": VERSION, **plain}
    parts = [f" {to_json(name)}: {to_json(value)}" for name, value in head.items()]
    parts += [f" {to_json(name)}: [\n" + ",\n".join(f"  {to_json(one)}" for one in items) + "\n ]"
              for name, items in lists.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_traffic(path: Path) -> TrafficRecord:
    """Return the record in a file. Raises FileError for another file, version or wrong values."""
    return read_with_content(path)[0]


def read_with_content(path: Path) -> tuple[TrafficRecord, bytes]:
    """Return the record in a file, and the file's content. Raises FileError as `read_traffic`."""
    remedy = f"make it with `{command_line('import', 'DIR', '-o', path.name)}`"
    most = limits.raised(MOST_BYTES)
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}; {remedy}") from error
    if len(data) > most:
        raise FileError(f"{path}: more than {most >> 20} MiB is not read: record fewer steps, or "
                        f"{limits.remedy()}")
    try:
        document = from_json(data)
    except ValueError as error:
        raise FileError(f"{path}: is no traffic.json: {error}; {remedy}") from None
    try:
        return record_of(document), data
    except ValueError as error:
        raise FileError(f"{path}: {error}; {remedy}") from None


def record_of(document: Any) -> TrafficRecord:
    """Return the record in a parsed file. Raises ValueError with the key and its problem."""
    from pydantic import TypeAdapter, ValidationError  # every command imports the forms of calls

    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("is no traffic.json")
    if (version := document.get("version")) != VERSION or version is True:
        raise ValueError(f"has version {str(version)[:20]} of {FORMAT}; this hpcbench reads "
                         f"{VERSION}")
    content = {key: value for key, value in document.items() if key not in ("format", "version")}
    try:
        # as JSON: of other values strict refuses lists, too, and else `true` would be one call
        record = TypeAdapter(TrafficRecord).validate_json(to_json(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not "
                         f"{str(first['input'])[:40]}") from None
    if problem := problem_of(record):
        raise ValueError(problem)
    return record


def problem_of(record: TrafficRecord) -> str:
    """Return the first inconsistency of a record; "" if there is none."""
    ranks = range(record.world_size)
    for index, group in enumerate(record.groups):
        if not group.ranks or len(set(group.ranks)) < len(group.ranks) or not _within(
                group.ranks, ranks):
            return f"groups.{index}.ranks: want different ranks below {record.world_size}"
    for index, signature in enumerate(record.signatures):
        if signature.group not in range(len(record.groups)):
            return f"signatures.{index}.group: there are {len(record.groups)} groups"
        if problem := _signature_problem(signature, len(record.groups[signature.group].ranks)):
            return f"signatures.{index}.{problem}"
    if len({one.rank for one in record.order}) < len(record.order):
        return "order: has a rank twice"
    if {*record.missing} != {*ranks} - {one.rank for one in record.order}:
        return "missing: want the ranks without an order, and no others"
    for order in record.order:
        columns = (order.sequence, order.gap_ns, order.duration_ns, order.wait_ns)
        if order.rank not in ranks or any(len(one) != len(order.signature) for one in columns):
            return f"order: rank {order.rank} is none, or its columns differ in length"
        if not _within(order.signature, range(len(record.signatures))):
            return f"order: rank {order.rank} has a signature that is none"
    return ""


def _signature_problem(signature: Signature, size: int) -> str:
    inside = range(size)
    for name in ("elements_in", "elements_out"):
        counts = getattr(signature, name)
        if len(counts) not in (1, size):
            return f"{name}: want one number, or one for each of {size} ranks"
    for name in ("splits_in", "splits_out"):
        rows = getattr(signature, name)
        if rows is not None and (len(rows) != size or any(
                row is not None and len(row) != size for row in rows)):
            return f"{name}: want {size} rows of {size} numbers"
    if signature.root is not None and signature.root not in inside:
        return f"root: want a rank of the group below {size}"
    if (signature.pair is not None) != (signature.collective == SEND_RECV) or (
            signature.pair and not _within(signature.pair, inside)):
        return f"pair: want two ranks of the group, of {SEND_RECV} only"
    return ""


def _within(values: Sequence[int], allowed: range) -> bool:
    return all(value in allowed for value in values)
