"""Which collectives there are, one row each; their sizes, bandwidths and memory.

A row is all that is known of a collective without torch; nothing else lists collectives. A plug-in
names its `CollectiveSpec` by an entry point of the group ``hpcbench.collectives``
(docs/plugins.md). A rate is derived once, from one time: the mean of rates is not the rate of the
mean time.

Sizes are nccl-tests' column S: the buffer of all_reduce, broadcast, reduce and send_recv; the parts
of all ranks together for all_gather, reduce_scatter, all_to_all, gather and scatter. Its count
column is in elements: S / e for the former, one rank's part for the latter. A part is rounded down
to 16 bytes (nccl-tests: ``(count / nranks) & -(16 / e)``); S is what is left after rounding. Parts
that differ in size are whole multiples (`weights`) of one unit, which is a multiple of 16 bytes.
Their S is the sum of all parts for all_gather and reduce_scatter. For all_to_all it is the maximum
over ranks of what a rank sends or receives, as in nccl-tests' alltoallv. Part d of every rank's
buffer goes to rank d, so this is n times the largest part. Parts by a load of experts
(`operations.loads`), one expert a rank, are rounded to 16 bytes each; S and the largest are as if
all were equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Literal

from hpcbench.errors import PluginError
from hpcbench.operations.loads import MATRIX, Load, is_load, popularity
from hpcbench.records import dataclass
from hpcbench.registry import Registry

ENTRY_POINTS = "hpcbench.collectives"
"""The group of entry points; each is a `CollectiveSpec`."""
Buffer = Literal["whole", "part", "nothing"]
Crossing = Callable[[Sequence[str]], Mapping[str, tuple[float, float]]]
"""Node of each rank of a group, which has several -> node -> the least that must leave and must
enter it in one call, over the call's size."""


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """A collective: its options, how its size is counted, and what runs it.

    Attributes:
        name: as sweep files write it.
        operation: ``module:class`` that runs it (`kinds.collective.run.Operation`).
        uneven_operation: the same for parts of different sizes; empty where parts must be equal.
        aliases: other names in sweep files.
        summary_key: key in summary.json's ``results.communication`` where other tools have one.
        has_op: whether it reduces, so that ``op`` is an axis.
        has_root: whether one rank is special, so that ``root`` is an axis.
        in_place: the forms that it has, the default first; None: it moves no data.
        split: whether its size is that of all ranks' parts together, not that of one buffer.
        pairwise: whether each rank has a part for each other rank.
        source: what each rank keeps as its input; ``nothing`` where only the root has one.
        result: what the rank that receives most ends with.
        needs_all_ranks: whether no rank can end before all ranks have begun.
        min_world_size: the fewest ranks of a group.
        busbw: busbw / algbw by number of ranks, from 2; None: it moves no data.
        carried: backend -> what its links carry over the bytes that busbw counts; others: 1.
        crossing: what crosses the boundaries of nodes; None: that is not known.
        ring_rounds: how often a ring sends the data round, for estimates.
        calls: the collectives that it is made of, which the backend must have; none: itself.
        backends: the backends that offer it, without a part behind ``/``; none: all.
        problem: why it can run nowhere; empty for every collective that is installed."""

    name: str
    operation: str
    uneven_operation: str = ""
    aliases: tuple[str, ...] = ()
    summary_key: str = ""
    has_op: bool = False
    has_root: bool = False
    in_place: tuple[bool, ...] | None = (False, True)
    split: bool = False
    pairwise: bool = False
    source: Buffer = "whole"
    result: Buffer = "whole"
    needs_all_ranks: bool = False
    min_world_size: int = 1
    busbw: Callable[[int], float] | None = None
    carried: tuple[tuple[str, int], ...] = ()
    crossing: Crossing | None = None
    ring_rounds: int = 1
    calls: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    problem: str = ""

    @property
    def uneven(self) -> bool:
        return bool(self.uneven_operation)

    @property
    def is_plugin(self) -> bool:
        return not self.operation.startswith(".")

    @property
    def moves_data(self) -> bool:
        """Return whether there is a buffer, and so a size, a rate and a result to check."""
        return self.in_place is not None

    def busbw_factor(self, ranks: int) -> float | None:
        """Return busbw / algbw; 0 for one rank, unlike nccl-tests; None where no data move."""
        if self.busbw is None:
            return None
        return 0.0 if ranks == 1 else self.busbw(ranks)

    def carried_on(self, library: str) -> int:
        """Return what the links of a backend's library carry over the bytes that busbw counts."""
        return dict(self.carried).get(library, 1)

    def crossing_share(self, nodes: Sequence[str]) -> Mapping[str, tuple[float, float]] | None:
        """Return `crossing` over the bytes that busbw counts: empty within a node.

        ``nodes`` has the node of each rank of a group. None where it is not known."""
        if self.crossing is None or not (factor := self.busbw_factor(len(nodes))):
            return None
        if len(set(nodes)) == 1:
            return {}
        return {node: (leaving / factor, entering / factor)
                for node, (leaving, entering) in self.crossing(nodes).items()}


def _around_once(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one_way(ranks: int) -> float:
    return 1.0


def _every_part(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """All parts go round the nodes: each enters every node but its own, and leaves all but one.

    Ranks of a node share what has come, or add up what goes: a node counts once."""
    count = len(set(nodes))
    return {node: ((count - 1) / count, 1 - ranks / len(nodes))
            for node, ranks in Counter(nodes).items()}


def _sums_of_parts(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """The same backwards: the nodes' sums of each part come together on one."""
    return {node: (entering, leaving) for node, (leaving, entering) in _every_part(nodes).items()}


def _sums_and_parts(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Each node adds up its ranks' data; nodes' sums then go round twice."""
    count = len(set(nodes))
    return {node: (2 * (count - 1) / count,) * 2 for node in set(nodes)}


def _each_pair(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Each rank has a part of its own for each rank of the other nodes."""
    return {node: (ranks * (1 - ranks / len(nodes)),) * 2 for node, ranks in Counter(nodes).items()}


def _all_once(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """All data leave the node of the root, or come there; the others may send them on in turn."""
    return dict.fromkeys(nodes, (1.0, 1.0))


def _all_but_own(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """The parts of other nodes pass the boundary of the root's: it is taken for the fullest one."""
    node, ranks = Counter(nodes).most_common(1)[0]
    return {node: (1 - ranks / len(nodes),) * 2}


def _to_the_next(nodes: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Every rank sends all of its data to the next one, the last one to the first."""
    pairs = [pair for pair in zip(nodes, [*nodes[1:], nodes[0]], strict=True) if pair[0] != pair[1]]
    leaving, entering = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    return {node: (float(leaving[node]), float(entering[node])) for node in set(nodes)}


_OURS = (
    CollectiveSpec(
        "all_reduce", ".run:AllReduce", aliases=("allreduce",), summary_key="allreduce",
        has_op=True, in_place=(True,), needs_all_ranks=True, crossing=_sums_and_parts,
        busbw=lambda ranks: 2 * _around_once(ranks), ring_rounds=2),
    CollectiveSpec(
        "all_gather", ".run:AllGather", ".run:UnevenAllGather",
        aliases=("allgather",), summary_key="allgather", split=True, source="part",
        needs_all_ranks=True, busbw=_around_once, crossing=_every_part),
    CollectiveSpec(
        "reduce_scatter", ".run:ReduceScatter", ".run:UnevenReduceScatter",
        aliases=("reducescatter",), summary_key="reduce_scatter", has_op=True, split=True,
        result="part", needs_all_ranks=True, busbw=_around_once, crossing=_sums_of_parts,
        carried=(("gloo", 2),)),
    CollectiveSpec(
        "all_to_all", ".run:AllToAll", ".run:UnevenAllToAll", aliases=("alltoall",),
        in_place=(False,), split=True, pairwise=True, needs_all_ranks=True, busbw=_around_once,
        crossing=_each_pair),
    CollectiveSpec(
        "broadcast", ".run:Broadcast", has_root=True, in_place=(True,), source="nothing",
        busbw=_one_way, crossing=_all_once),
    CollectiveSpec(
        "reduce", ".run:Reduce", has_op=True, has_root=True, in_place=(True,),
        busbw=_one_way, crossing=_all_once),
    CollectiveSpec(
        "gather", ".run:Gather", has_root=True, in_place=(False,), split=True,
        source="part", busbw=_around_once, crossing=_all_but_own),
    CollectiveSpec(
        "scatter", ".run:Scatter", has_root=True, in_place=(False,), split=True,
        result="part", busbw=_around_once, crossing=_all_but_own),
    CollectiveSpec(
        "send_recv", ".run:SendRecv", aliases=("sendrecv",), summary_key="p2p",
        in_place=(False,), min_world_size=2, busbw=_one_way, crossing=_to_the_next),
    CollectiveSpec("barrier", ".run:Barrier", in_place=None, needs_all_ranks=True),
)
"""A module that begins with a dot is one of `kinds.collective.run`. Source of the bus bandwidths:
nccl-tests, doc/PERFORMANCE.md. gloo's reduce_scatter is a whole all_reduce, of which each rank
keeps its part (torch 2.13, ProcessGroupGloo.cpp)."""


@cache
def collectives() -> Registry[CollectiveSpec]:
    """Return the collectives that are installed, by name: ours, then those of plug-ins."""
    return Registry("collective {}", _OURS, ENTRY_POINTS, (CollectiveSpec,), adopted=_tried)


def _tried(spec: CollectiveSpec) -> CollectiveSpec:
    """Return the row. Raises what its formula raises: later that would cost all collectives."""
    if (spec.busbw is None) is spec.moves_data:
        raise PluginError("a collective has both busbw and in_place, or neither where it moves no "
                          "data")
    spec.busbw_factor(2)
    return spec


def collective_spec(name: str) -> CollectiveSpec:
    """Return the row of a collective; one without traits, with a `problem`, if it is not installed.

    So results and plans of a plug-in's collective can be read where the plug-in is not installed.
    """
    try:
        return collectives()[name]
    except KeyError:
        pass
    problem = collectives().broken.get(name, "no plug-in that is installed offers it")
    return CollectiveSpec(name, "", problem=f"collective {name} cannot be used: {problem}")


def collective_names() -> tuple[str, ...]:
    """Return the names that a sweep file may use, also those of plug-ins that are broken."""
    return (*collectives(), *collectives().broken)


def summary_keys() -> dict[str, str]:
    """Return the key of each collective in summary.json; those that other tools have come first."""
    ordered = sorted(collectives().values(), key=lambda spec: not spec.summary_key)
    return {spec.name: spec.summary_key or spec.name for spec in ordered}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Rates in bytes/s; ``busbw`` is the rate that hardware peaks compare with."""

    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


def busbw_factor(collective: str, world_size: int) -> float | None:
    """Return busbw / algbw, of unequal parts as of equal ones; None where no data move."""
    return collective_spec(collective).busbw_factor(world_size)


@dataclass(frozen=True, slots=True)
class WireRate:
    """Bytes/s that a rank's links carry in one direction, which line rates compare with.

    ``name`` is the name of the number: ``bus bandwidth``, or another one."""

    bytes_per_s: float
    name: str = "bus bandwidth"


def wire_rate(
    collective: str, rates: Bandwidth | None, ranks: int, algorithm: str | None,
    library: str = "",
) -> WireRate | None:
    """Return the rate of the links: ``busbw``, unless the library sends more or a switch adds up.

    ``algorithm`` is from the log. In an all_reduce by NVLS (NVLink SHARP) each of n ranks
    sends its own data once and a part of the sum to all: S (n + 1) / n, less than 2 S (n - 1) / n
    from 4 ranks on (nccl-tests, pull request 239)."""
    if rates is None:
        return None
    if collective == "all_reduce" and algorithm == "NVLS" and ranks > 1:
        return WireRate(rates.algbw_bytes_per_s * (ranks + 1) / ranks,
                        "wire rate of NVLS, algbw x (n + 1) / n,")
    if (times := collective_spec(collective).carried_on(library)) != 1:
        return WireRate(times * rates.busbw_bytes_per_s,
                        f"wire rate of {library}, {times} x bus bandwidth,")
    return WireRate(rates.busbw_bytes_per_s)


COLD_BYTES = 2**27
"""Bytes of all sets of cold buffers at least: several times the last cache that ranks share."""
MOST_COLD_BYTES = 2**30
"""Their bytes at most, on a GPU: four times the 256 MB of an MI300X. A B200 has 126 MB."""
_TIMES_CACHE = 4
"""As STREAM has it of its arrays (www.cs.virginia.edu/stream/ref.html)."""
MOST_COLD_SETS = 1024
MAX_WORLD_SIZE = 2**17
"""Parts are planned rank by rank; the largest machines have some 10,000 nodes. No file makes more
ranks than these, whatever it claims."""
NUMBER_BYTES: Mapping[str, int] = MappingProxyType({
    "fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8, "uint8": 1,
})
"""Bytes per element of every dtype that can be asked of products and memory, too."""
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({
    **NUMBER_BYTES, "int8": 1, "bool": 1, "complex64": 8, "complex128": 16})
"""Bytes per element of every dtype of a collective."""
PART_BYTES = 16
"""A rank's part is a multiple of this."""


def weights(split: str, world_size: int) -> tuple[int, ...]:
    """Return the proportions of the ranks' parts.

    ``linear``: r + 1 for rank r; ``one_heavy``: n for rank 0, 1 for the others; ``zero``: nothing
    for the last rank, 1 for the others. Of a load the largest part alone counts."""
    n = world_size
    if split == "linear":
        return tuple(range(1, n + 1))
    if split == "one_heavy":
        return (n, *(1,) * (n - 1))
    return (*(1,) * (n - 1), 0 if split == "zero" and n > 1 else 1)


def part_counts(split: str, world_size: int, count: int, dtype: str = "uint8") -> list[int]:
    """Return the elements of every rank's part; ``count`` are those of the largest."""
    if is_load(split) and split != MATRIX:
        granule = PART_BYTES // DTYPE_BYTES[dtype]
        parts = popularity(Load.from_text(split), world_size)
        return [(2 * count * part + max(parts) * granule) // (2 * max(parts) * granule) * granule
                for part in parts]
    shares = weights(split, world_size)
    return [count // max(shares) * share for share in shares]


def rounded(
    collective: str, dtype: str, world_size: int, requested_bytes: int, split: str = "even",
) -> tuple[int, int]:
    """Return (size_bytes, count), at most what is requested; (0, 0) where nothing is left."""
    spec, element = collective_spec(collective), DTYPE_BYTES[dtype]
    if not spec.moves_data:
        return 0, 0
    if not spec.split:
        count = requested_bytes // element
        return count * element, count
    units = _units(collective, split, world_size)
    granule = PART_BYTES // element
    unit = requested_bytes // element // units // granule * granule
    return unit * units * element, unit * max(weights(split, world_size))


def smallest_bytes(collective: str, dtype: str, world_size: int, split: str = "even") -> int:
    if collective_spec(collective).split:
        return PART_BYTES * _units(collective, split, world_size)
    return DTYPE_BYTES[dtype]


def _units(collective: str, split: str, world_size: int) -> int:
    """Return S in units: of the sum of the parts, or n times the largest if it is pairwise."""
    shares = weights(split, world_size)
    return world_size * max(shares) if collective_spec(collective).pairwise else sum(shares)


def cold_bytes(cache_bytes: int | None) -> int:
    """Return the bytes of all sets of cold buffers for a device's last cache; None: unknown."""
    wanted = MOST_COLD_BYTES if cache_bytes is None else _TIMES_CACHE * cache_bytes
    return min(max(wanted, COLD_BYTES), MOST_COLD_BYTES)


def planned_cold_bytes(device: str) -> int:
    """Return the most that `cold_bytes` can be on a device of this type."""
    return COLD_BYTES if device in ("cpu", "mps") else MOST_COLD_BYTES


def cold_sets(size_bytes: int, together_bytes: int = COLD_BYTES) -> int:
    """Return how many sets of buffers it takes until a call finds none of its own in a cache."""
    return max(math.ceil(together_bytes / max(size_bytes, 1)), 2)


def too_many_cold_sets(size_bytes: int, together_bytes: int, where: str = "") -> str | None:
    """Return why buffers cannot be cold where all sets hold that together, or None."""
    if not size_bytes or (sets := cold_sets(size_bytes, together_bytes)) <= MOST_COLD_SETS:
        return None
    return (f"buffers cold: {size_bytes} B would need {sets} sets of buffers{where}; it begins at "
            f"{-(-together_bytes // MOST_COLD_SETS)} B")


def rank_bytes(
    collective: str, in_place: bool | None, world_size: int, size_bytes: int, split: str = "even",
) -> int:
    """Return the bytes of all buffers of the rank that holds most, for size ``size_bytes``.

    The kept input, the buffer the collective writes, and the expected result: in place the
    written buffer has the larger of the two sizes. Out of place, a collective that otherwise runs
    in place checks its input, too, and so makes it again."""
    spec, shares = collective_spec(collective), weights(split, world_size)
    units = _units(collective, split, world_size)
    part = size_bytes * max(shares) // units
    bytes_of = {"whole": size_bytes, "part": part, "nothing": 0}
    source = sum(part_counts(split, world_size, part)) if spec.pairwise else bytes_of[spec.source]
    result = bytes_of[spec.result]
    written = max(source, result) if in_place else result
    proof = source if in_place is False and spec.in_place == (True,) else 0
    return written + result + source + proof


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with its dtype, its reduction and how it divides the data.

    ``op`` is None where the collective reduces nothing. ``split`` is a value of the axis of that
    name (docs/method.md). ``in_place`` is None where the workload does not choose the form.
    ``is_case``: the case is this one call, which nothing else makes."""

    collective: str
    dtype: str
    op: str | None
    split: str = "even"
    in_place: bool | None = None
    is_case: bool = False


def calls_of(names: Iterable[str], dtype: str, split: str = "even") -> tuple[Call, ...]:
    """Return the calls, which sum; ``split`` is of pairwise ones, others have equal parts."""
    specs = [collective_spec(name) for name in names]
    return tuple(Call(spec.name, dtype, "sum" if spec.has_op else None,
                      split if spec.pairwise else "even") for spec in specs)
