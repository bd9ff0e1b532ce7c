"""Rates of the machine: by the slowest rank's time, of each rank alone, and between two ranks.

Products and memory are measured on the device where it has a clock of its own (two events around
the call): the host's time also holds the wait for the device, 10 to 20 us of a call on a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.kinds.hardware.plan.pairs import Pairs, pairs_of, phase_name, rounds
from hpcbench.kinds.hardware.plan.test import storage_of, stream_of, work_of
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import (
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    MachineRate,
    PairRates,
    RankRates,
    ReadSamples,
    texts,
    whole_numbers,
)
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import (
    COMPUTE,
    MEASURED,
    ROOFLINE,
    Ceiling,
    Demand,
    Roofline,
    ceilings_of,
    declared_memory,
    device_of,
    link_key,
    machine_rates,
    roofline,
    roofline_values,
)
from hpcbench.reduce.stack import counts, pass_slices
from hpcbench.reduce.topology import ONE_BOARD, RankPlace, Topology, share_switch
from hpcbench.statistics.order import median
from hpcbench.trace.columns import PURE
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag
from hpcbench.units import grouped

_OF_WORK = (
    *texts(test="test of the machine", kernel="stream: what is done with the arrays",
           memory="stream: host memory of copies to and from a GPU: pinned or pageable",
           what="pairs: latency or bandwidth", direction="pairs: one way, or both at once",
           cache="pairs: whether messages lie in a cache: warm or cold",
           right="gemm: type of the second operand where it is another",
           access="storage: what is done with files"),
    *whole_numbers(fast_accumulation="gemm of fp8: 1 if sums stay in the matrix units alone",
                   numa_node="stream: NUMA node that threads and memory are bound to",
                   at_once="pairs: 1 if all of a round are measured at the same time",
                   message_bytes="pairs: bytes of a message",
                   messages="pairs: round trips, or messages under way together"))
_EXTENTS = whole_numbers(problem_m="rows of the result of a gemm", problem_n="columns of it",
                         problem_k="inner extent of the product")
COLUMNS = (
    *_OF_WORK, *_EXTENTS,
    CaseColumn("rank_flops_per_s", "FLOP/s",
               "2 m n k / device_s, / median_s where rate_clock is host"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "rank_flops_per_s times the ranks"),
    CaseColumn("longest_latency_s", "s", "pairs: the latency of the worst link"),
    CaseColumn("least_link_bytes_per_s", "bytes/s", "pairs: the bandwidth of the worst link",
               apart=True),
    *whole_numbers(threads="stream: threads of a rank; 0 on a device"),
    CaseColumn("array_bytes", "bytes", "stream: bytes of an array of a rank", int),
    CaseColumn("rank_bytes_per_s", "bytes/s",
               "bytes of a rank's call / device_s, / median_s where rate_clock is host or absent"),
    *texts(rate_clock="gemm, stream: whose time rates are by: device or host"),
    CaseColumn("all_ranks_bytes_per_s", "bytes/s", "rank_bytes_per_s times the ranks"),
    CaseColumn("of_declared_memory", PURE, "stream: share of the declared rate of memory"),
    CaseColumn("of_best_stream", PURE, "stream: share of the best of as many ranks in the run"),
    *ROOFLINE,
)


def column_values(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    work, known = work_of(item.case), record or NOTHING
    values: dict[str, Any] = {column.name: getattr(work, column.name, None) for column in _OF_WORK}
    values |= {column.name: getattr(work, column.name.removeprefix("problem_"), None)
               for column in _EXTENTS}
    rates = known.gemm or known.stream or known.storage
    values |= {name: getattr(rates, name, None) for name in (
        "rank_flops_per_s", "all_ranks_flops_per_s", "rank_bytes_per_s", "all_ranks_bytes_per_s",
        "threads", "array_bytes")}
    values["rate_clock"] = getattr(rates, "clock", None)
    values |= roofline_values(known.gemm.roofline if known.gemm else None)
    if known.stream:
        values |= {"of_declared_memory": known.stream.of_declared,
                   "of_best_stream": known.stream.of_best}
    if known.pairs and known.pairs.distances:
        links = known.pairs.distances
        values |= ({"longest_latency_s": max(one.greatest for one in links)}
                   if values["what"] == "latency" else
                   {"least_link_bytes_per_s": min(one.least for one in links)})
    return values


@dataclass(frozen=True, slots=True)
class GemmRecord:
    """The numbers of a product in COLUMNS, in ``time_s`` by the ``clock`` of `rate_seconds`.

    ``is_peak``: it is the best of its type, device and number of ranks in this run. ``roofline`` is
    by the rates that as many ranks reached.
    """

    rank_flops_per_s: float | None = None
    all_ranks_flops_per_s: float | None = None
    is_peak: bool = False
    roofline: Roofline | None = None
    clock: str | None = None
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The numbers of a kernel in COLUMNS, by the ``clock`` of `rate_seconds`.

    ``cache_bytes`` are of the node's last caches, 0 where the kernel reports none. ``is_peak``: it
    is the best of its device and number of ranks in this run. ``declared_bytes_per_s`` is
    ``hardware.memory_bandwidth_gb_per_s`` of all ranks.
    """

    array_bytes: int | None = None
    cache_bytes: int | None = None
    threads: int | None = None
    rank_bytes_per_s: float | None = None
    all_ranks_bytes_per_s: float | None = None
    is_peak: bool = False
    of_declared: float | None = None
    declared_bytes_per_s: float | None = None
    of_best: float | None = None
    clock: str | None = None


@dataclass(frozen=True, slots=True)
class Distance:
    """The figures of all links of one distance, each way by itself, in seconds or bytes/s.

    ``worst_from`` and ``worst_to`` are the ranks of the longest latency, or of the least bandwidth.
    ``first_ranks``: the fewest of the first ranks that have such a link.
    """

    name: str
    links: int
    least: float
    median: float
    greatest: float
    worst_from: int
    worst_to: int
    first_ranks: int


@dataclass(frozen=True, slots=True)
class PairsRecord:
    """The measurements of every rank with every other one.

    ``matrix`` has a row for each rank that measured and a column for each peer: seconds of a
    message, or bytes/s; None of a rank with itself. It is empty for more than MOST_STORED ranks.
    ``distances`` are in the order of DISTANCES; there are none without samples that count.
    """

    matrix: tuple[tuple[float | None, ...], ...] = ()
    distances: tuple[Distance, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """The numbers of files in COLUMNS; ``folder`` and ``file_system`` are those of rank 0.

    ``cache``, of reads: cold if none of them found its data in the page cache, warm if all did,
    mixed, or unknown where the kernel does not report it.
    """

    rank_bytes_per_s: float | None = None
    all_ranks_bytes_per_s: float | None = None
    folder: str | None = None
    file_system: str | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True)
class HardwareRecord:
    """The record of a case: the part of its own test; the others are None.

    ``rank_rates`` are the rates of each rank in the median of its own times: FLOP/s of gemm,
    bytes/s of other tests; empty where a test has none.
    """

    gemm: GemmRecord | None = None
    stream: StreamRecord | None = None
    pairs: PairsRecord | None = None
    storage: StorageRecord | None = None
    rank_rates: tuple[float, ...] = ()

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Return the rate of a rank and that of all ranks, in FLOP/s or bytes/s."""
        if self.gemm:
            return self.gemm.rank_flops_per_s, self.gemm.all_ranks_flops_per_s
        known = self.stream or self.storage
        return (known.rank_bytes_per_s, known.all_ranks_bytes_per_s) if known else (None, None)


NOTHING = HardwareRecord()
DEVICE, HOST = "device", "host"


class HardwareDeriver(Deriver):
    """Derives rates of the machine."""

    record = HardwareRecord
    version = 4
    columns = COLUMNS
    measures = True

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, HardwareRecord]:
        """Return the record of each case; rooflines are by the rates that as many ranks reached."""
        alone = {item.case.case_id: _record(item) for item in items}
        _mark_best(items, alone)
        return {item.case.case_id: _beside(
            alone[item.case.case_id], item,
            {**hardware, MEASURED: machine_rates(
                rate for one in same for rate in _machine_rates(one, alone[one.case.case_id]))})
            for same in grouped((item.case.world_size, item) for item in items).values()
            for item in same}

    def facts(
        self, item: CaseResult, record: HardwareRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        """Yield the matrix of pairs, or each rank's rate in its own times; rates of the machine.

        The rate of files is no fact of the node alone.
        """
        yield ColumnValues(lambda: column_values(item, record))
        yield from _machine_rates(item, record)
        if record and record.pairs and (found := _pair_rates(item, record.pairs, read())):
            yield found
        if record and work_of(item.case).test in ("gemm", "stream"):
            yield RankRates(record.rank_rates, tuple(_rates_of_passes(item, read())))

    def observe(self, item: CaseResult, samples: CaseSamples) -> Mapping[str, Any]:
        test = work_of(item.case).test
        if test == "pairs":
            return observed(item, samples)
        return {"rank_rates": _own_rates(item, samples)}


def _machine_rates(item: CaseResult, record: HardwareRecord | None) -> Iterator[MachineRate]:
    """Yield the rates of an ok case. Copies from or to a host are no rates of memory.

    For each distance of pairs the median link counts. The key has the fewest of the first ranks
    that are so far apart.
    """
    if record is None or item.status != "ok":
        return
    ranks, device = item.case.world_size, device_of(item)
    if record.gemm and (rate := record.gemm.rank_flops_per_s):
        yield MachineRate("flops", f"{device} {gemm_of(item.case).dtype}", ranks, rate)
    if (record.stream and (rate := record.stream.rank_bytes_per_s)
            and not stream_of(item.case).memory):
        yield MachineRate("memory", device, ranks, rate)
    for one in record.pairs.distances if record.pairs else ():
        work, key = pairs_of(item.case), link_key(item, one.first_ranks)
        yield (MachineRate("links", key, ranks, one.median, cached=work.cache != "cold")
               if work.what == "bandwidth" else MachineRate("messages", key, ranks, 1 / one.median))


def _amount(item: CaseResult) -> int | None:
    """Return the FLOPs or bytes of a rank's call; None if no rank reported array sizes."""
    test = work_of(item.case).test
    if test == "gemm":
        return gemm_of(item.case).flops
    if test == "storage":
        return storage_of(item.case).call_bytes
    array_bytes = _first_reported(item, "stream").get("array_bytes")
    return None if array_bytes is None else stream_of(item.case).moved_bytes(array_bytes)


def _reported(item: CaseResult, test: str) -> list[dict[str, Any]]:
    return [left[test] for left in item.detail.values() if test in left]


def _first_reported(item: CaseResult, test: str) -> dict[str, Any]:
    """Return the report of the first rank: all have the same arrays, and one folder."""
    return next(iter(_reported(item, test)), {})


def _record(item: CaseResult) -> HardwareRecord:
    """Return the record of a case alone; that of pairs follows from samples."""
    test = work_of(item.case).test
    if test == "gemm":
        return HardwareRecord(gemm=_gemm(item))
    if test == "stream":
        return HardwareRecord(stream=_stream(item))
    return HardwareRecord(storage=_storage(item)) if test == "storage" else HardwareRecord(
        pairs=PairsRecord())


def _gemm(item: CaseResult) -> GemmRecord:
    timed = rate_seconds(item)
    if timed is None:
        return GemmRecord()
    rate = gemm_of(item.case).flops / timed.time_s
    return GemmRecord(rate, rate * item.case.world_size, clock=timed.clock, time_s=timed.time_s)


def _stream(item: CaseResult) -> StreamRecord:
    arrays, moved, timed = _first_reported(item, "stream"), _amount(item), rate_seconds(item)
    record = StreamRecord(
        arrays.get("array_bytes"), arrays.get("cache_bytes"), arrays.get("threads"))
    if moved is None or timed is None:
        return record
    rate = moved / timed.time_s
    return replace(record, rank_bytes_per_s=rate, clock=timed.clock,
                   all_ranks_bytes_per_s=rate * item.case.world_size)


def _storage(item: CaseResult) -> StorageRecord:
    work, reported = storage_of(item.case), _reported(item, "storage")
    where = _first_reported(item, "storage")
    rate = (work.call_bytes / item.statistics.median_s
            if item.statistics and item.statistics.median_s > 0 else None)
    cache = None
    if work.reads and reported:
        cold, warm = any(one["cold"] for one in reported), any(one["warm"] for one in reported)
        cache = {(True, True): "mixed", (True, False): "cold", (False, True): "warm"}.get(
            (cold, warm), "unknown")
    return StorageRecord(rate, rate and rate * item.case.world_size, where.get("folder"),
                         where.get("file_system"), cache)


def _mark_best(items: Sequence[CaseResult], records: dict[str, HardwareRecord]) -> None:
    """Mark the best product of each type and the best kernel, of each device and ranks."""
    for same in grouped((_alike(item), item) for item in items if item.status == "ok").values():
        found = {item.case.case_id: records[item.case.case_id] for item in same}
        if gemms := {name: one.gemm for name, one in found.items() if one.gemm}:
            best = max(gemms, key=lambda name: gemms[name].rank_flops_per_s or 0)
            records[best] = HardwareRecord(gemm=replace(gemms[best], is_peak=True))
        if streams := {name: one.stream for name, one in found.items() if one.stream}:
            best = max(streams, key=lambda name: streams[name].rank_bytes_per_s or 0)
            most = streams[best].rank_bytes_per_s
            for name, one in streams.items():
                records[name] = HardwareRecord(stream=replace(
                    one, is_peak=name == best, of_best=one.rank_bytes_per_s / most
                    if one.rank_bytes_per_s and most else None))


def _alike(item: CaseResult) -> Hashable:
    """Return the key that is equal for cases among which one is the best."""
    case, device = item.case, item.device or item.case.device
    if work_of(case).test == "gemm":
        return "gemm", gemm_of(case).dtype, device, case.backend, case.env, case.world_size
    if work_of(case).test == "stream":
        return "stream", device, stream_of(case).memory, case.world_size
    return case.case_id


def _beside(
    record: HardwareRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> HardwareRecord:
    """Return the record beside its ceilings; ``hardware`` includes the measured ones."""
    if record.gemm is not None:
        return HardwareRecord(gemm=_with_roofline(record.gemm, item, hardware))
    known = record.stream
    if known is None or known.rank_bytes_per_s is None or stream_of(item.case).memory:
        return record  # copies to a host have no declared peak
    peak = declared_memory(item, hardware)
    return record if peak is None else HardwareRecord(stream=replace(
        known, of_declared=known.rank_bytes_per_s / peak,
        declared_bytes_per_s=peak * item.case.world_size))


def _with_roofline(
    record: GemmRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> GemmRecord:
    work, rate = gemm_of(item.case), record.rank_flops_per_s
    if record.time_s is None or rate is None:
        return record
    ceilings, demand = ceilings_of(item, work.dtype, hardware), Demand(work.flops, work.moved_bytes)
    found = roofline(demand, record.time_s, ceilings)
    if found and found.score_of and (found.score_of.limit, found.score_of.source) == (
            COMPUTE, MEASURED) and rate >= found.score_of.rate:
        found = _without_itself(found, demand, ceilings)
    return replace(record, roofline=found)


def _without_itself(
    found: Roofline, demand: Demand, ceilings: Sequence[Ceiling],
) -> Roofline:
    """Return the roofline of the best product: beside what is declared, else without a score.

    It is the measured ceiling, so a score of it would be 100 % whatever it reached.
    """
    declared = [one for one in ceilings if (one.limit, one.source) != (COMPUTE, MEASURED)]
    if any(one.limit == COMPUTE for one in declared):
        return roofline(demand, found.time_s, declared) or found
    return replace(found, score=None, evidence=(
        "it is the best product of its type here, so the measured ceiling is its own rate: "
        "declare hardware.peak_flops for a score"))


class RateTime(NamedTuple):
    """The seconds of a call that its rate is by, and whose clock that is."""

    time_s: float
    clock: str


def rate_seconds(item: CaseResult) -> RateTime | None:
    """Return the time that a rate is by; None: no rate.

    ``device``: the median over samples of the slowest rank's time between two events; ``host``, on
    devices without events and in older results: the median time.
    """
    if item.statistics is None or not item.statistics.median_s > 0:
        return None
    if item.timing is not None and item.timing.device_s:
        return RateTime(item.timing.device_s, DEVICE)
    return RateTime(item.statistics.median_s, HOST)


def _own_rates(
    item: CaseResult, samples: CaseSamples, part: slice = slice(None),
) -> tuple[float, ...]:
    amount, on_device = _amount(item), work_of(item.case).test != "storage"
    return own_rates(amount, samples, item.case.batch, part,
                     on_device=on_device) if amount else ()


def _rates_of_passes(
    item: CaseResult, samples: CaseSamples | None,
) -> Iterator[tuple[float, ...]]:
    parts = [] if samples is None else [
        _own_rates(item, samples, part) for part in pass_slices(samples)]
    yield from (rates for rates in parts if len(rates) == item.case.world_size)


def own_rates(
    amount: float, samples: CaseSamples, calls: int = 1, part: slice = slice(None), *,
    on_device: bool = False,
) -> tuple[float, ...]:
    """Return ``amount`` of a call over the median seconds of each rank's own samples.

    A sample is so many ``calls``. Only samples of ``part`` that count are used; nothing is returned
    without any. ``on_device``: by the device's clock, where all of them have one.
    """
    used = (counts(samples.use) if samples.use is not None
            else ~np.any(samples.flags & Flag.WARMUP, axis=0))[part]
    if not used.any():
        return ()
    times_ns = samples.device_ns[:, part][:, used]
    if not on_device or (times_ns == NO_DEVICE_TIME).any():
        times_ns = (samples.end_ns - samples.start_ns)[:, part][:, used]
    own_s = np.median(times_ns, axis=1) / 1e9 / calls
    return tuple(amount / float(time_s) for time_s in own_s if time_s > 0)


MOST_STORED = 64
"""The most ranks whose whole matrix is stored; more have the summary only."""
SAME_BOARD, SAME_NODE, SAME_SWITCH, OTHER_NODE, UNKNOWN = DISTANCES = (
    "same board", "same node", "same switch", "other node", "distance unknown")
"""A link has the first of these that is known to hold (docs/hardware.md)."""


def _pair_rates(
    item: CaseResult, record: PairsRecord, samples: CaseSamples | None,
) -> PairRates | None:
    """Return the matrix as rates: bytes/s, or messages/s; None if it is not stored.

    Links on boards and behind switches have no distance in the matrix, so they cannot be compared.
    """
    work = pairs_of(item.case)
    if not record.matrix:
        return None
    if mixed := {one.name for one in record.distances} - {SAME_NODE, OTHER_NODE}:
        return PairRates(missing=f"links of several distances are mixed ({', '.join(mixed)})")
    is_rate = work.what == "bandwidth"

    def rates(matrix: Matrix) -> Matrix:
        return tuple(tuple(value if value is None or is_rate else 1 / value for value in row)
                     for row in matrix)

    passes = [] if samples is None else [
        _stored(values) for part in pass_slices(samples)
        if (values := _medians(item, samples, part)) is not None]
    return PairRates(rates(record.matrix), tuple(map(rates, passes)),
                     each_way=is_rate and work.direction == "one way")


def observed(item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
    """Return the record that follows from the times of the rounds."""
    work, ranks = pairs_of(item.case), item.case.world_size
    values = _medians(item, samples, slice(None))
    if values is None:
        return {}
    kept = () if ranks > MOST_STORED else _stored(values)
    links = _by_distance(item, samples.topology, np.argwhere(~np.isnan(values)).tolist())
    worst_is_least = work.what == "bandwidth"
    return {"pairs": PairsRecord(kept, tuple(
        _summary(name, links[name], values, worst_is_least=worst_is_least)
        for name in DISTANCES if name in links))}


Matrix = tuple[tuple[float | None, ...], ...]


def _medians(
    item: CaseResult, samples: CaseSamples, part: slice,
) -> npt.NDArray[np.float64] | None:
    """Return the matrix of the median samples of a part; None where none of it counts."""
    work, ranks = pairs_of(item.case), item.case.world_size
    used = None if samples.use is None else counts(samples.use[part])
    if used is None or not used.any() or len(samples.phases) != len(rounds(ranks)):
        return None
    return _matrix(work, ranks, item.case.batch, {
        name: np.median(times_ns[:, part][:, used], axis=1)
        for name, times_ns in samples.phases.items()})


def _stored(values: npt.NDArray[np.float64]) -> Matrix:
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row)
                 for row in values)


def _matrix(
    work: Pairs, ranks: int, calls: int, elapsed_ns: Mapping[str, npt.NDArray[np.float64]],
) -> npt.NDArray[np.float64]:
    """Return (rank, peer): seconds of a message, or bytes/s; NaN where nothing was measured."""
    values = np.full((ranks, ranks), np.nan)
    for number, pairs in enumerate(rounds(ranks)):
        times_ns = elapsed_ns[phase_name(number)]
        for low, high in pairs:
            for rank, peer in ((low, high), (high, low)):
                if times_ns[rank] > 0:
                    values[rank, peer] = _figure(work, float(times_ns[rank]) / calls / 1e9)
    return values


def _figure(work: Pairs, elapsed_s: float) -> float:
    """Return the latency or the bandwidth of messages that took this long together."""
    if work.what == "bandwidth":
        return work.messages * work.message_bytes / elapsed_s
    ways = 2 if work.direction == "one way" else 1  # of a round trip; both at once take one way
    return elapsed_s / (ways * work.messages)


def _by_distance(
    item: CaseResult, topology: Topology, links: Sequence[Sequence[int]],
) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Return the links of each distance. A place counts on the node that the rank reported."""
    placed = {one.rank: one for one in topology.ranks}
    where: list[tuple[str | None, RankPlace | None]] = []
    for rank in range(item.case.world_size):
        node, place = item.detail.get(str(rank), {}).get("node"), placed.get(rank)
        where.append((node, place if place and place.hostname == node else None))
    on_gpus = item.device.startswith("cuda")
    return grouped((_distance(where[rank], where[peer], topology, on_gpus=on_gpus), (rank, peer))
                   for rank, peer in links)


def _distance(
    here: tuple[str | None, RankPlace | None], there: tuple[str | None, RankPlace | None],
    topology: Topology, *, on_gpus: bool,
) -> str:
    """Return how far two ranks are apart, each with its reported node and its place there."""
    if here[0] is None or there[0] is None:
        return UNKNOWN
    on_one_node = here[0] == there[0]
    if here[1] is not None and there[1] is not None:
        link = topology.gpu_link(here[1], there[1]) if on_gpus and on_one_node else None
        if link and link.startswith(ONE_BOARD):
            return SAME_BOARD
        if not on_one_node and share_switch(here[1], there[1], on_gpus=on_gpus):
            return SAME_SWITCH
    return SAME_NODE if on_one_node else OTHER_NODE


def _summary(
    name: str, links: Sequence[tuple[int, int]], values: npt.NDArray[np.float64], *,
    worst_is_least: bool,
) -> Distance:
    figures = np.array([values[rank, peer] for rank, peer in links])
    worst = links[int(figures.argmin() if worst_is_least else figures.argmax())]
    return Distance(name, len(links), float(figures.min()), median(figures), float(figures.max()),
                    *worst, min(max(link) + 1 for link in links))
