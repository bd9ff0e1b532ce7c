"""Test ``pairs``: messages between every two ranks, in rounds of disjoint pairs (circle method).

One rank stays in its place while the others go round; opposite places are a pair. An odd number of
ranks leaves one place empty: the rank opposite sits the round out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.kinds.hardware.block import DIRECTIONS, WHAT, HardwareBlock
from hpcbench.kinds.hardware.plan.test import HardwareTest, HardwareWork, of_test
from hpcbench.operations.collectives import (
    MOST_COLD_BYTES,
    calls_of,
    cold_sets,
    planned_cold_bytes,
)
from hpcbench.plan.case import Case, PlanRequest
from hpcbench.plan.order import ALPHA_S, CASE_S, bytes_per_s, device_kind
from hpcbench.plan.points import CommonPoint, Draft, least_calls, too_large
from hpcbench.plan.support import resolve_device, unfit_world, unsupported
from hpcbench.plan.workload import Features, Label
from hpcbench.records import dataclass
from hpcbench.units import format_bytes, plural

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


class Slot(NamedTuple):
    """Pairs that are measured at the same time, and the round that they are of."""

    round: int
    pairs: tuple[Pair, ...]


def rounds(ranks: int) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of each round, disjoint within it; every pair is in exactly one round."""
    places = ranks + ranks % 2
    return tuple(tuple(sorted(
        pair for pair in _facing(places, number) if pair[1] < ranks))
        for number in range(places - 1)) if ranks > 1 else ()


def _facing(places: int, number: int) -> list[Pair]:
    around = places - 1
    circle = [around, *((number + step) % around for step in range(around))]
    halves = zip(circle[:places // 2], reversed(circle[places // 2:]), strict=True)
    return [(min(pair), max(pair)) for pair in halves]


def slots(ranks: int, *, at_once: bool) -> tuple[Slot, ...]:
    """Return the pairs of a round together, or one by one, in the order they are measured."""
    numbered = enumerate(rounds(ranks))
    if at_once:
        return tuple(Slot(number, pairs) for number, pairs in numbered)
    return tuple(Slot(number, (pair,)) for number, pairs in numbered for pair in pairs)


def peer_in(pairs: tuple[Pair, ...], rank: int) -> int | None:
    return next((pair[pair[0] == rank] for pair in pairs if rank in pair), None)


def phase_name(number: int) -> str:
    return f"round_{number + 1}"


SIZES: Mapping[str, int] = MappingProxyType({"latency": 8, "bandwidth": 2**20})
"""Bytes of a message where no size is given."""
CACHE: Mapping[str, str] = MappingProxyType({"latency": "warm", "bandwidth": "cold"})
"""Where messages lie if the block does not state it: as in osu_latency, but the rate of a link is
not that of a cache."""
MESSAGES = 10
_LINE_BYTES = 128
"""No two cold messages share so many bytes: two lines of most CPUs, which fetch pairs, one of GPUs.
"""


@dataclass(frozen=True, slots=True)
class Pairs(HardwareWork):
    """Messages between all pairs of ranks; a call is the whole tournament.

    ``messages``: round trips of a latency, or concurrent messages of a bandwidth. ``at_once``: all
    pairs of a round concurrently, else one pair alone. ``cache``: ``warm`` messages all have one
    place to lie in, ``cold`` ones the place that was used longest ago, of so many that no cache
    holds them. Versions that stored no ``cache`` had warm ones."""

    what: str
    direction: str
    at_once: bool
    message_bytes: int
    messages: int
    dtype: str = "uint8"
    groups: int = 1
    test: str = "pairs"
    cache: str = "warm"

    def label(self, world_size: int) -> Label:
        size = f"{format_bytes(self.message_bytes).removesuffix('B')}B"
        cache = [] if self.cache == CACHE[self.what] else [f"cache={self.cache}"]
        return Label(self.test, [
            self.test, self.what, self.direction.replace(" ", "_"),
            "at_once" if self.at_once else "one_by_one", size, f"x{self.messages}",
            f"ranks={world_size}", *cache])

    @property
    def place_bytes(self) -> int:
        """Return the bytes from one message to the next in memory."""
        lines = max(1, -(-self.message_bytes // _LINE_BYTES))
        return self.message_bytes if self.cache == "warm" else lines * _LINE_BYTES

    def places(self, ranks: int, together_bytes: int) -> tuple[int, int]:
        """Return the numbers of places of a rank's outgoing and of its incoming messages.

        Those of each hold ``together_bytes`` where messages are cold, and have room for all
        messages under way, up to what no cache holds. The last message of each other rank stays
        until it is compared."""
        if self.cache == "warm":
            return 1, ranks
        distinct = min(self.messages, -(-MOST_COLD_BYTES // self.place_bytes))
        cold = max(cold_sets(self.place_bytes, together_bytes), distinct)
        return cold, cold + ranks - 1

    @property
    def features(self) -> Features:
        """Return messages, and the barrier before each round, where all ranks meet."""
        return Features(
            calls=calls_of(("send_recv", "barrier"), self.dtype),
            profiled_for=frozenset({"communication"}), has_phases=True, needs_all_ranks=True,
            not_captured="cuda_graph: the host reads the clock before and after each pair's "
                         "messages")

    def step_words(self, rank: int, world_size: int, step: int) -> str:
        """Return where a rank is in a tournament: before or in a round, and with whom."""
        if step < 1:
            return ""
        every = _slots(world_size, self.at_once)
        number, pairs = every[(step - 1) // 2]
        peer = peer_in(pairs, rank)
        place = f"round {number + 1} of {every[-1].round + 1}"
        if not self.at_once:
            place += f", pair of ranks {pairs[0][0]} and {pairs[0][1]}"
        if step % 2:
            return f"before {place}"
        return f"in {place}" + (f" with rank {peer}" if self.at_once else "")


@cache
def _slots(ranks: int, at_once: bool) -> tuple[Slot, ...]:  # noqa: FBT001  (a key of the cache)
    return slots(ranks, at_once=at_once)


def pairs_of(case: Case) -> Pairs:
    return of_test(case, Pairs)


def _axes(block: HardwareBlock) -> Mapping[str, Sequence[object]]:
    names = ("direction", "concurrent", "size", "messages", "cache")
    return {name: getattr(block, name) or (None,) for name in names} | {"what": block.what or WHAT}


def _drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    for what, direction, at_once, messages in product(
            block.what or WHAT, block.direction or DIRECTIONS[:1], block.concurrent or (True,),
            block.messages or (MESSAGES,)):
        for size, state in product(block.size or (SIZES[what],), block.cache or (CACHE[what],)):
            yield _draft(Pairs(what, direction, at_once, size, messages, cache=state), point, job)


def _draft(work: Pairs, point: CommonPoint, job: PlanRequest) -> Draft:
    device, ranks, config = (resolve_device(point.backend, point.device), point.world_size,
                             job.config)
    memory = work.place_bytes * (1 + sum(work.places(ranks, planned_cold_bytes(device))))
    skip = (unfit_world(point.backend, ranks, job.world_size) or _unfit(work, ranks)
            or unsupported(point.backend, device, work.features.calls)
            or too_large(memory, 0, device, config.hardware))
    kind = device_kind(device)
    one_s = work.messages * 2 * (
        ALPHA_S[kind] + work.message_bytes / bytes_per_s(kind, config.hardware, ranks))
    n_slots = 0 if skip else len(_slots(ranks, work.at_once))
    return Draft(
        workload=work, device=device, validate=point.validate, memory_bytes=memory, skip=skip,
        estimate_s=CASE_S + least_calls(point, config) * n_slots * (one_s + 2 * ALPHA_S[kind]),
        identity=work.identity())


def _unfit(work: Pairs, ranks: int) -> str | None:
    if ranks < 2:
        return f"pairs needs two ranks, not {plural(ranks, 'rank')}"
    if work.message_bytes < 1:
        return "pairs needs messages of at least one byte: give a larger size"
    return None


PAIRS = HardwareTest(
    "pairs", "messages between every two ranks: latency and bandwidth of each link", Pairs,
    "pairs:PairsOperation", _axes, _drafts)
