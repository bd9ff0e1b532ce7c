"""Messages between every two ranks of a group, in the rounds of a tournament.

Before each round, or before each pair where one is measured alone, all ranks meet in a barrier of
the group. Then one of the two asks whether the other is there; its clock starts with the answer.

Every message of a rank holds the same bytes, which identify its sender. Warm messages that are
under way at the same time leave from one place and arrive in one, as in osu_bw of the OSU
benchmarks: on CPUs that is the rate of a cache. Cold ones take the place that was used longest ago.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpcbench.backends.devices import cache_bytes
from hpcbench.kinds.hardware.plan.pairs import Pairs, peer_in, phase_name, slots
from hpcbench.operations.collectives import cold_bytes
from hpcbench.operations.data import Mismatch, compare
from hpcbench.operations.place import Place, finish, receiving, sending, start

_VALUES = 251
"""A prime, so that no two senders' patterns agree where lengths are powers of two."""
_POISON = 255
_PAGE_BYTES = 4096


class WrongMessages(NamedTuple):
    """Wrong bytes of all messages of a rank, and the first sender's of them."""

    n_wrong: int
    sender: int
    first: Mismatch

    @property
    def words(self) -> str:
        return f"message of rank {self.sender}: {self.first.words}"


class Places:
    """Where messages leave from, and where they arrive.

    A place is a row of bytes. The last message of each other rank is not overwritten until `wipe`,
    so that it can be compared."""

    def __init__(self, work: Pairs, ranks: int, own: torch.Tensor) -> None:
        """Allocate and touch all of it; ``own`` are the bytes that this rank sends."""
        self._size, self._is_warm = work.message_bytes, work.cache == "warm"
        n_out, n_into = work.places(ranks, cold_bytes(cache_bytes(own.device)))
        self._out, self._into = (torch.full(
            (count, work.place_bytes), _POISON, dtype=torch.uint8, device=own.device)
            for count in (n_out, n_into))
        self._out[:, :self._size] = own
        self._next_out, self._next_into = itertools.count(), itertools.count()
        self._last: dict[int, int] = {}
        self._used: list[int] = []

    def outgoing(self, count: int) -> list[torch.Tensor]:
        return [self._out[next(self._next_out) % len(self._out), :self._size]
                for _ in range(count)]

    def incoming(self, sender: int, count: int) -> list[torch.Tensor]:
        free = itertools.repeat(sender) if self._is_warm else self._free()
        numbers = list(itertools.islice(free, count))
        self._last[sender] = numbers[-1]
        self._used += numbers
        return [self._into[number, :self._size] for number in numbers]

    def last_of(self, sender: int) -> torch.Tensor:
        """Return the last message of a rank; poison if that was before `wipe`."""
        return self._into[self._last[sender], :self._size]

    def wipe(self) -> None:
        """Poison every place that was used since, so that a message that is lost is noticed: short
        ones, of longer ones a byte of each page and the ends. All of it would lie in the cache and
        have to leave it while the next messages are timed."""
        used = torch.tensor(sorted({*self._used}), dtype=torch.long)
        for part in (slice(_PAGE_BYTES), slice(None, self._size, _PAGE_BYTES), self._size - 1):
            self._into[:, part][used] = _POISON
        self._used.clear()

    def _free(self) -> Iterator[int]:
        kept = {*self._last.values()}
        turns = (turn % len(self._into) for turn in self._next_into)
        return (number for number in turns if number not in kept)


class _Peer(NamedTuple):
    """Another rank, and the messages that ask whether it is there."""

    rank: int
    send: dist.P2POp
    receive: dist.P2POp


def _peer(place: Place, rank: int) -> _Peer:
    token = torch.zeros(1, dtype=torch.uint8, device=place.device)
    return _Peer(rank, sending(place, rank, token), receiving(place, rank, token.clone()))


class PairsOperation:
    """All pairs once. ``on_step`` is called with where this rank is (`Pairs.step_words`)."""

    def __init__(self, work: Pairs, place: Place, *, validate: bool) -> None:
        """Allocate the places of messages; the check needs no further memory."""
        self.name, self.place, self._work = work.name, place, work
        self.on_step: Callable[[int], None] = _ignore_step
        size, ranks = work.message_bytes, place.world_size
        table = torch.arange(_VALUES, dtype=torch.uint8, device=place.device)
        self._pattern = table.repeat(size // _VALUES + 2)
        self._places = Places(work, ranks, self._of(place.number))
        self._slots = [(slot.round, None if peer is None else _peer(place, peer))
                       for slot in slots(ranks, at_once=work.at_once)
                       for peer in (peer_in(slot.pairs, place.rank),)]
        self._rounds = self._slots[-1][0] + 1
        self._rows: list[list[int]] = []
        both = work.direction == "both at once"
        self._meet = self._both if both else self._in_turn

    def prepare(self) -> None:
        self._places.wipe()
        self._rows.append([0] * self._rounds)

    def run(self) -> None:
        times_ns = self._rows[-1]
        for number, (of_round, peer) in enumerate(self._slots):
            self.on_step(2 * number + 1)
            dist.barrier(group=self.place.group, device_ids=self.place.device_ids)
            if peer is not None:
                self.on_step(2 * number + 2)
                times_ns[of_round] += self._meet(peer)
        self.on_step(0)

    def corrupt_output(self) -> None:
        others = [rank for rank in range(self.place.world_size) if rank != self.place.rank]
        self._places.last_of(others[-1])[-1] = _POISON

    def check(self) -> WrongMessages | None:
        place = self.place
        wrong_ranks = [(rank, wrong) for rank in range(place.world_size) if rank != place.rank
                       for wrong in (compare(self._places.last_of(rank),
                                             self._of(place.global_rank(rank))),)
                       if wrong is not None]
        if not wrong_ranks:
            return None
        return WrongMessages(sum(wrong.n_wrong for _, wrong in wrong_ranks), *wrong_ranks[0])

    def answer(self) -> dict[str, Any]:
        """Return this rank's times of each round, a value for each row, and its node."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * self._rounds
        return {"node": platform.node(), "phases": {
            "names": [phase_name(number) for number in range(self._rounds)],
            "ns": [list(column) for column in columns]}}

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def _of(self, sender: int) -> torch.Tensor:
        first = 37 * sender % _VALUES
        return self._pattern[first:first + self._work.message_bytes]

    def _out(self, peer: _Peer) -> list[dist.P2POp]:
        """Return the messages to a rank. They are made before the clock starts."""
        return [sending(self.place, peer.rank, tensor)
                for tensor in self._places.outgoing(self._work.messages)]

    def _into(self, peer: _Peer) -> list[dist.P2POp]:
        return [receiving(self.place, peer.rank, tensor)
                for tensor in self._places.incoming(peer.rank, self._work.messages)]

    def _in_turn(self, peer: _Peer) -> int:
        """Measure towards the other rank, and answer while it does; the lower rank is first."""
        of_one = self._rally if self._work.what == "latency" else self._stream
        if self.place.rank < peer.rank:
            elapsed_ns = of_one(peer, leads=True)
            of_one(peer, leads=False)
            return elapsed_ns
        of_one(peer, leads=False)
        return of_one(peer, leads=True)

    def _rally(self, peer: _Peer, *, leads: bool) -> int:
        """Send each message when the one before has been answered; return the time of it."""
        ways = (self._out(peer), self._into(peer)) if leads else (self._into(peer), self._out(peer))
        self._ready(peer, leads=leads)
        return self._timed(lambda: _in_order(ways), leads=leads)

    def _stream(self, peer: _Peer, *, leads: bool) -> int:
        """Have the messages of the rank that leads under way together; the other acknowledges."""
        messages = self._out(peer) if leads else self._into(peer)
        self._ready(peer, leads=leads)

        def acknowledged() -> None:
            finish(start(messages))
            _one(peer.receive if leads else peer.send)
        return self._timed(acknowledged, leads=leads)

    def _ready(self, peer: _Peer, *, leads: bool) -> None:
        """Wait until both ranks have made their messages; the rank that leads asks."""
        for message in (peer.send, peer.receive) if leads else (peer.receive, peer.send):
            _one(message)

    def _both(self, peer: _Peer) -> int:
        into, out = self._into(peer), self._out(peer)
        exchange(peer.receive, peer.send)
        if self._work.what == "latency":
            return self._timed(lambda: _exchanges(into, out))

        def acknowledged() -> None:
            finish(start([*into, *out]))
            exchange(peer.receive, peer.send)
        return self._timed(acknowledged)

    def _timed(self, call: Callable[[], object], *, leads: bool = True) -> int:
        """Return how long a call takes, in ns, its work on the device included.

        0 of the rank that answers: it must not keep the other one waiting for its device."""
        if not leads:
            call()
            return 0
        self._synchronize()
        began_ns = time.perf_counter_ns()
        call()
        self._synchronize()
        return time.perf_counter_ns() - began_ns

    def _synchronize(self) -> None:
        if self.place.device.type == "cuda":
            torch.cuda.synchronize(self.place.device)


def exchange(into: dist.P2POp, out: dist.P2POp) -> None:
    """Send and receive. The receive is first: gloo sends its permission to send with it."""
    finish(start([into, out]))


def _exchanges(into: Sequence[dist.P2POp], out: Sequence[dist.P2POp]) -> None:
    for one_in, one_out in zip(into, out, strict=True):
        exchange(one_in, one_out)


def _in_order(ways: tuple[Sequence[dist.P2POp], Sequence[dist.P2POp]]) -> None:
    for first, second in zip(*ways, strict=True):
        _one(first)
        _one(second)


def _one(message: dist.P2POp) -> None:
    finish(start((message,)))


def _ignore_step(step: int) -> None:
    """Do nothing: outside a worker no step is recorded."""
