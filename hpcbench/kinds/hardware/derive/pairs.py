"""What each pair of ranks reached: a matrix, and a summary by distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.hardware.plan.pairs import Pairs, pairs_of, phase_name, rounds
from hpcbench.reduce.kind_facts import PairRates
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import link_key
from hpcbench.reduce.stack import counts
from hpcbench.reduce.topology import ONE_BOARD, RankPlace, Topology, share_switch
from hpcbench.statistics.order import median
from hpcbench.units import grouped

MOST_STORED = 64
"""Ranks of which the whole matrix is stored; of more there is the summary."""
SAME_BOARD, SAME_NODE, SAME_SWITCH, OTHER_NODE, UNKNOWN = DISTANCES = (
    "same board", "same node", "same switch", "other node", "distance unknown")
"""A link has the first of these that is known to hold (docs/hardware.md)."""


@dataclass(frozen=True, slots=True)
class Distance:
    """The figures of all links of one distance, each way by itself, in seconds or bytes/s.

    ``worst_from`` and ``worst_to`` are the ranks of the longest latency, or of the least bandwidth.
    So many of the first ranks, ``first_ranks``, are the fewest that have such a link.
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
    """What every rank measured with every other one.

    ``matrix`` has a row for each rank that measured and a column for each peer: seconds of a
    message, or bytes/s; None of a rank with itself. It is empty of more than MOST_STORED ranks.
    ``distances`` are in the order of DISTANCES; there are none without samples that count.
    """

    matrix: tuple[tuple[float | None, ...], ...] = ()
    distances: tuple[Distance, ...] = ()


def records(items: Sequence[CaseResult]) -> dict[str, PairsRecord]:
    """Return an empty record of each case: all of it follows from samples."""
    return {item.case.case_id: PairsRecord() for item in items}


def peaks(
    items: Sequence[CaseResult], known: Mapping[str, PairsRecord], what: str,
) -> dict[str, float]:
    """Return the best rate between two ranks, by `reduce.ceilings.link_key`.

    ``what`` is ``bandwidth``, in bytes/s, or ``latency``, in messages/s. Of each distance the
    median link counts, of several cases the best one. The key has the fewest of the first ranks
    that are so far apart. A bandwidth of warm messages counts only where there is none of cold
    ones: it may be that of a cache.
    """
    found: dict[str, dict[str, float]] = {"cold": {}, "warm": {}}
    for item in items:
        work, record = pairs_of(item.case), known.get(item.case.case_id)
        if record is None or work.what != what:
            continue
        rates = found[work.cache if what == "bandwidth" else "warm"]
        for one in record.distances:
            key = link_key(item, one.first_ranks)
            rate = 1 / one.median if what == "latency" else one.median
            rates[key] = max(rates.get(key, rate), rate)
    return found["warm"] | found["cold"]


def rates_of(item: CaseResult, record: PairsRecord) -> PairRates | None:
    """Return the matrix as rates: bytes/s, or messages/s; None of one that is not stored.

    Links on boards and behind switches have no distance in the matrix, so they cannot be compared.
    """
    work = pairs_of(item.case)
    if not record.matrix:
        return None
    if mixed := {one.name for one in record.distances} - {SAME_NODE, OTHER_NODE}:
        return PairRates(missing=f"links of several distances are mixed ({', '.join(mixed)})")
    is_rate = work.what == "bandwidth"
    return PairRates(tuple(tuple(value if value is None or is_rate else 1 / value for value in row)
                           for row in record.matrix),
                     each_way=is_rate and work.direction == "one way")


def observed(item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
    """Return the record that follows from the times of the rounds."""
    work, ranks = pairs_of(item.case), item.case.world_size
    used = counts(samples.use) if samples.use is not None else None
    if used is None or not used.any() or len(samples.phases) != len(rounds(ranks)):
        return {}
    values = _matrix(work, ranks, item.case.batch, {
        name: np.median(times_ns[:, used], axis=1) for name, times_ns in samples.phases.items()})
    kept = () if ranks > MOST_STORED else tuple(tuple(
        None if np.isnan(value) else float(value) for value in row) for row in values)
    links = _by_distance(item, samples.topology, np.argwhere(~np.isnan(values)).tolist())
    worst_is_least = work.what == "bandwidth"
    return {"pairs": PairsRecord(kept, tuple(
        _summary(name, links[name], values, worst_is_least=worst_is_least)
        for name in DISTANCES if name in links))}


def _matrix(
    work: Pairs, ranks: int, calls: int, taken_ns: Mapping[str, npt.NDArray[np.float64]],
) -> npt.NDArray[np.float64]:
    """Return (rank, peer): seconds of a message, or bytes/s; NaN where nothing was measured."""
    values = np.full((ranks, ranks), np.nan)
    for number, pairs in enumerate(rounds(ranks)):
        times_ns = taken_ns[phase_name(number)]
        for low, high in pairs:
            for rank, peer in ((low, high), (high, low)):
                if times_ns[rank] > 0:
                    values[rank, peer] = _figure(work, float(times_ns[rank]) / calls / 1e9)
    return values


def _figure(work: Pairs, taken_s: float) -> float:
    """Return the latency or the bandwidth of messages that took this long together."""
    if work.what == "bandwidth":
        return work.messages * work.message_bytes / taken_s
    ways = 2 if work.direction == "one way" else 1  # of a round trip; both at once take one way
    return taken_s / (ways * work.messages)


def _by_distance(
    item: CaseResult, topology: Topology, links: Sequence[Sequence[int]],
) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Return the links of each distance. A place counts on the node that the rank itself told."""
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
    """Return how far two ranks are apart, each with the node that it told and its place there."""
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
