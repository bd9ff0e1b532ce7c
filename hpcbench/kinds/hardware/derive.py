"""Rates of the machine: by the slowest rank's time, of each rank alone, and between two ranks.

Products and memory are measured on the device where it has a clock of its own (two events around
the call): the host's time also holds the wait for the device, 10 to 20 us of a call on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.kinds.hardware.plan.pairs import Pairs, pairs_of, phase_name, rounds
from hpcbench.kinds.hardware.plan.test import storage_of, stream_of, work_of
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import (
    Deriver,
    Fact,
    MachineRate,
    PairRates,
    RankRates,
    ReadSamples,
)
from hpcbench.reduce.metric import (
    Records,
    Show,
    Values,
    document,
    metric,
    of_workload,
    planned,
    whole,
    word,
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
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag
from hpcbench.units import grouped

DEVICE, HOST = "device", "host"


def first_reported(item: CaseResult, test: str) -> Mapping[str, Any]:
    """Return the report of the first rank: all have the same arrays, and one folder."""
    return next(iter(_reported(item, test)), {})


def _reported(item: CaseResult, test: str) -> list[dict[str, Any]]:
    return [left[test] for left in item.detail.values() if test in left]


def _array(name: str) -> Callable[[CaseResult], Any]:
    return lambda item: first_reported(item, "stream").get(name)


def _page_cache(item: CaseResult) -> str | None:
    reported = _reported(item, "storage")
    if not reported or not storage_of(item.case).reads:
        return None
    cold, warm = any(one["cold"] for one in reported), any(one["warm"] for one in reported)
    return {(True, True): "mixed", (True, False): "cold", (False, True): "warm"}.get(
        (cold, warm), "unknown")


def _node(item: CaseResult) -> int | None:
    node: int = getattr(item.case.workload, "numa_node", -1)
    return node if node >= 0 else None


@dataclass(frozen=True, slots=True)
class Distance:
    """The figures of all links of one distance, each way by itself, in seconds or bytes/s.

    ``worst_from`` and ``worst_to`` are the ranks of the longest latency, or of the least bandwidth.
    ``first_ranks``: the fewest of the first ranks that have such a link."""

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
    ``distances`` are in the order of DISTANCES; there are none without samples that count."""

    matrix: tuple[tuple[float | None, ...], ...] = ()
    distances: tuple[Distance, ...] = ()


KERNEL, MEMORY, WHAT, DIRECTION, CACHE, ACCESS, AT_ONCE, SIZE, MESSAGES, *_OTHERS = planned(
    word("kernel", "stream: what is done with the arrays", title="kernel"),
    word("memory", "stream: host memory of copies to and from a GPU: pinned or pageable",
         title="memory", optional=True),
    word("what", "pairs: latency or bandwidth"),
    word("direction", "pairs: one way, or both at once", title="direction"),
    word("cache", "pairs: whether messages lie in a cache: warm or cold"),
    word("access", "storage: what is done with files", title="access"),
    whole("at_once", "pairs: 1 if all of a round are measured at the same time"),
    whole("message_bytes", "pairs: bytes of a message", title="size", show=Show.SIZE),
    whole("messages", "pairs: round trips, or messages under way together", title="messages",
          show=Show.COUNT),
    word("test", "test of the machine"),
    word("right", "gemm: type of the second operand where it is another"),
    whole("fast_accumulation", "gemm of fp8: 1 if sums stay in the matrix units alone"))
EXTENTS = (
    whole("problem_m", "rows of the result of a gemm", of=of_workload("m"), title="m",
          show=Show.COUNT),
    whole("problem_n", "columns of it", of=of_workload("n"), title="n", show=Show.COUNT),
    whole("problem_k", "inner extent of the product", of=of_workload("k"), title="k",
          show=Show.COUNT))
NUMA_NODE = whole("numa_node", "stream: NUMA node that threads and memory are bound to", of=_node,
                  title="NUMA node", show=Show.COUNT, optional=True)
THREADS = whole("threads", "stream: threads of a rank; 0 on a device", of=_array("threads"),
                title="threads", show=Show.COUNT, optional=True)
ARRAY = whole("array_bytes", "stream: bytes of an array of a rank", of=_array("array_bytes"),
              title="array", show=Show.SIZE, shown_unit="bytes")
LAST_CACHES = whole("cache_bytes", "stream: bytes of the node's last caches, 0 where the kernel "
                    "reports none", of=_array("cache_bytes"))
PAGE_CACHE = word(
    "page_cache", "storage, of reads: cold if none of them found its data in the page cache, warm "
    "if all did, mixed, or unknown where the kernel does not report it", of=_page_cache,
    title="cache", optional=True)
FLOPS = RANK_FLOPS, ALL_FLOPS = (
    metric("rank_flops_per_s", "2 m n k / device_s, / median_s where rate_clock is host",
           title="per rank", show=Show.TFLOP_PER_S, better="more"),
    metric("all_ranks_flops_per_s", "rank_flops_per_s times the ranks", title="all ranks",
           show=Show.TFLOP_PER_S, better="more"))
BYTES = RANK_BYTES, ALL_BYTES = (
    metric("rank_bytes_per_s", "bytes of a rank's call / device_s, / median_s where rate_clock is "
           "host or absent", title="per rank", show=Show.GB_PER_S, better="more"),
    metric("all_ranks_bytes_per_s", "rank_bytes_per_s times the ranks", title="all ranks",
           show=Show.GB_PER_S, better="more"))
RATE_CLOCK = word("rate_clock", "gemm, stream: whose time rates are by: device or host")
RANK_RATES = document(
    "rank_rates", "rates of each rank in the median of its own times: FLOP/s of a gemm, bytes/s of "
    "other tests", type=tuple[float, ...])
IS_PEAK = whole("is_peak", "gemm, stream: 1 if it is the best of its type, device and ranks in "
                "this run")
OF_DECLARED = metric(
    "of_declared_memory", "stream: share of hardware.memory_bandwidth_gb_per_s",
    title="of declared", show=Show.WHOLE_PERCENT, better="more", optional=True)
DECLARED = metric("declared_bytes_per_s", "stream: declared rate of memory of all ranks",
                  apart=True)
OF_BEST = metric("of_best_stream", "stream: share of the best of as many ranks in the run",
                 title="of best", show=Show.WHOLE_PERCENT, better="more", optional=True)
BOUND_OF = document("roofline", "gemm: its limit by the rates that as many ranks reached",
                    type=Roofline)
PAIRS = document("pairs", "rates between every two ranks", type=PairsRecord)
METRICS = (
    KERNEL, MEMORY, WHAT, DIRECTION, CACHE, ACCESS, AT_ONCE, SIZE, MESSAGES, *_OTHERS, *EXTENTS,
    NUMA_NODE, *FLOPS,
    metric("longest_latency_s", "pairs: the latency of the worst link"),
    metric("least_link_bytes_per_s", "pairs: the bandwidth of the worst link", apart=True),
    THREADS, ARRAY, LAST_CACHES, PAGE_CACHE, *BYTES, RATE_CLOCK, RANK_RATES, IS_PEAK, OF_DECLARED,
    DECLARED, OF_BEST, *ROOFLINE, BOUND_OF, PAIRS)
Own = dict[str, Any]


class HardwareDeriver(Deriver):
    """Derives rates of the machine."""

    version = 5
    columns = METRICS
    measures = True

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        """Return the values of each case; rooflines are by the rates that as many ranks reached."""
        of_case = {item.case.case_id: _alone(item) for item in items}
        sound = [item for item in items if item.status == "ok"]
        for alike in grouped((_alike(item), item) for item in sound).values():
            _mark_best(alike, of_case)
        for alike in grouped((item.case.world_size, item) for item in items).values():
            rates = machine_rates(
                rate for item in alike for rate in _machine_rates(item, of_case[item.case.case_id]))
            for item in alike:
                own = of_case[item.case.case_id]
                own |= _beside(item, own, {**hardware, MEASURED: rates})
        return of_case

    def facts(
        self, item: CaseResult, record: Values | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        """Yield the matrix of pairs, or each rank's rate in its own times; rates of the machine.

        The rate of files is no fact of the node alone."""
        values = record or {}
        yield from _machine_rates(item, values)
        if (pairs := values.get(PAIRS.name)) and (rates := _pair_rates(item, pairs, read())):
            yield rates
        if record is not None and work_of(item.case).test in ("gemm", "stream"):
            yield RankRates(values.get(RANK_RATES.name) or (),
                            tuple(_rates_of_passes(item, read())))

    def observe(self, item: CaseResult, samples: CaseSamples) -> Values:
        test = work_of(item.case).test
        if test == "pairs":
            return observed(item, samples)
        return {RANK_RATES.name: _own_rates(item, samples)}


def _machine_rates(item: CaseResult, values: Values) -> Iterator[MachineRate]:
    """Yield the rates of an ok case. Copies from or to a host are no rates of memory.

    For each distance of pairs the median link counts. The key has the fewest of the first ranks
    that are so far apart."""
    if item.status != "ok":
        return
    test, ranks, device = work_of(item.case).test, item.case.world_size, device_of(item)
    if rate := values.get(RANK_FLOPS.name):
        yield MachineRate("flops", f"{device} {gemm_of(item.case).dtype}", ranks, rate)
    if test == "stream" and (rate := values.get(RANK_BYTES.name)) and (
            not stream_of(item.case).memory):
        yield MachineRate("memory", device, ranks, rate)
    for distance in (values.get(PAIRS.name) or PairsRecord()).distances:
        work, key = pairs_of(item.case), link_key(item, distance.first_ranks)
        yield (MachineRate("links", key, ranks, distance.median, cached=work.cache != "cold")
               if work.what == "bandwidth"
               else MachineRate("messages", key, ranks, 1 / distance.median))


def _amount(item: CaseResult) -> int | None:
    """Return the FLOPs or bytes of a rank's call; None if no rank reported array sizes."""
    test = work_of(item.case).test
    if test == "gemm":
        return gemm_of(item.case).flops
    if test == "storage":
        return storage_of(item.case).call_bytes
    array_bytes = ARRAY.value(item, None)
    return None if array_bytes is None else stream_of(item.case).moved_bytes(array_bytes)


def _alone(item: CaseResult) -> Own:
    """Return the rates of a case alone; those of pairs follow from samples."""
    test, timed = work_of(item.case).test, rate_seconds(item)
    if test == "pairs" or timed is None or (amount := _amount(item)) is None:
        return {}
    rate = amount / timed.time_s
    both = rate, rate * item.case.world_size
    return {RATE_CLOCK.name: timed.clock or None, **{one.name: value for one, value in zip(
        FLOPS if test == "gemm" else BYTES, both, strict=True)}}


def _mark_best(alike: Sequence[CaseResult], of_case: Mapping[str, Own]) -> None:
    """Mark the best of products of one type, or of kernels, on one device and number of ranks."""
    test = work_of(alike[0].case).test
    if test not in ("gemm", "stream"):
        return
    rate = RANK_FLOPS.name if test == "gemm" else RANK_BYTES.name
    each = [of_case[item.case.case_id] for item in alike]
    best = max(each, key=lambda own: own.get(rate) or 0)
    best[IS_PEAK.name] = True
    for own in each if test == "stream" and best.get(rate) else ():
        own[OF_BEST.name] = own[rate] / best[rate] if own.get(rate) else None


def _alike(item: CaseResult) -> Hashable:
    """Return the key that is equal for cases among which one is the best."""
    case, device = item.case, item.device or item.case.device
    if work_of(case).test == "gemm":
        return "gemm", gemm_of(case).dtype, device, case.backend, case.env, case.world_size
    if work_of(case).test == "stream":
        return "stream", device, stream_of(case).memory, case.world_size
    return case.case_id


def _beside(item: CaseResult, own: Values, hardware: Mapping[str, Any]) -> Own:
    """Return the values of a case beside its ceilings; ``hardware`` includes measured ones."""
    if rate := own.get(RANK_FLOPS.name):
        bound = _roofline(item, rate, hardware)
        return {BOUND_OF.name: bound, **roofline_values(bound)}
    rate = own.get(RANK_BYTES.name)
    if rate is None or work_of(item.case).test != "stream" or stream_of(item.case).memory:
        return {}  # copies to a host have no declared peak
    peak = declared_memory(item, hardware)
    return {} if peak is None else {
        OF_DECLARED.name: rate / peak, DECLARED.name: peak * item.case.world_size}


def _roofline(item: CaseResult, rate: float, hardware: Mapping[str, Any]) -> Roofline | None:
    work, timed = gemm_of(item.case), rate_seconds(item)
    ceilings, demand = ceilings_of(item, work.dtype, hardware), Demand(work.flops, work.moved_bytes)
    bound = roofline(demand, timed.time_s, ceilings) if timed else None
    if bound and bound.score_of and (bound.score_of.limit, bound.score_of.source) == (
            COMPUTE, MEASURED) and rate >= bound.score_of.rate:
        bound = _without_itself(bound, demand, ceilings)
    return bound


def _without_itself(
    bound: Roofline, demand: Demand, ceilings: Sequence[Ceiling],
) -> Roofline:
    """Return the roofline of the best product: beside what is declared, else without a score.

    It is the measured ceiling, so a score of it would be 100 % whatever it reached."""
    declared = [one for one in ceilings if (one.limit, one.source) != (COMPUTE, MEASURED)]
    if any(one.limit == COMPUTE for one in declared):
        return roofline(demand, bound.time_s, declared) or bound
    return replace(bound, score=None, evidence=(
        "it is the best product of its type here, so the measured ceiling is its own rate: "
        "declare hardware.peak_flops for a score"))


class RateTime(NamedTuple):
    """The seconds of a call that its rate is by, and whose clock that is."""

    time_s: float
    clock: str


def rate_seconds(item: CaseResult) -> RateTime | None:
    """Return the time that a rate is by; None: no rate.

    ``device``: the median over samples of the slowest rank's time between two events; ``host``, on
    devices without events and in older results: the median time. Files have no clock of their own.
    """
    if item.statistics is None or not item.statistics.median_s > 0:
        return None
    if work_of(item.case).test == "storage":
        return RateTime(item.statistics.median_s, "")
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
    without any. ``on_device``: by the device's clock, where all of them have one."""
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
    """Return the values that follow from the times of the rounds."""
    work, ranks = pairs_of(item.case), item.case.world_size
    values = _medians(item, samples, slice(None))
    if values is None:
        return {}
    kept = () if ranks > MOST_STORED else _stored(values)
    links = _by_distance(item, samples.topology, np.argwhere(~np.isnan(values)).tolist())
    worst_is_least = work.what == "bandwidth"
    distances = tuple(_summary(name, links[name], values, worst_is_least=worst_is_least)
                      for name in DISTANCES if name in links)
    return {PAIRS.name: PairsRecord(kept, distances), **(
        {} if not distances else
        {"least_link_bytes_per_s": min(one.least for one in distances)} if worst_is_least else
        {"longest_latency_s": max(one.greatest for one in distances)})}


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
