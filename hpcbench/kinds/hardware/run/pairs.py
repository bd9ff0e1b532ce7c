"""Messages between every two ranks of a group, in the rounds of a tournament.

Before each round, or before each pair where one is measured alone, all ranks meet in a barrier of
the group. Then one of the two asks whether the other is there; its clock starts with the answer.

Every message of a rank holds the same bytes, which tell its sender. A rank has a place for what
each other one sends; messages that are under way at the same time arrive in the same place, as in
osu_bw of the OSU benchmarks.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpcbench.kinds.hardware.plan.pairs import Pairs
from hpcbench.kinds.hardware.plan.tournament import peer_in, phase_name, slots
from hpcbench.operations.check import Mismatch, compare
from hpcbench.operations.messages import finish, receiving, sending, start
from hpcbench.operations.place import Place

_VALUES = 251
"""A prime, so that no two senders' patterns agree where lengths are powers of two."""
_POISON = 255


class WrongMessages(NamedTuple):
    """Wrong bytes of all messages of a rank, and the first sender's of them."""

    n_wrong: int
    sender: int
    first: Mismatch

    @property
    def words(self) -> str:
        """Return it for people."""
        return f"message of rank {self.sender}: {self.first.words}"


class _Peer:
    """The messages to and from one rank, made once."""

    def __init__(self, place: Place, rank: int, sent: torch.Tensor, got: torch.Tensor) -> None:
        token = torch.zeros(1, dtype=torch.uint8, device=place.device)
        self.rank = rank
        self.out, self.into = sending(place, rank, sent), receiving(place, rank, got)
        self.ask, self.hear = sending(place, rank, token), receiving(place, rank, token.clone())


class PairsOperation:
    """All pairs once. ``tell_step`` is told where this rank is (`Pairs.step_words`)."""

    def __init__(self, work: Pairs, place: Place, *, validate: bool, local_size: int) -> None:
        """Allocate a message, and a place for that of each other rank.

        What is expected needs no memory, so ``validate`` changes nothing.
        """
        self.name, self.place, self._work = work.name, place, work
        self.tell_step: Callable[[int], None] = _untold
        size, ranks = work.message_bytes, place.world_size
        self._pattern = (torch.arange(size + _VALUES) % _VALUES).to(torch.uint8).to(place.device)
        self._got = torch.empty(ranks, size, dtype=torch.uint8, device=place.device)
        mine = self._of(place.number).clone()
        self._slots = [(slot.round, None if peer is None else _Peer(
            place, peer, mine, self._got[peer])) for slot in slots(ranks, at_once=work.at_once)
            for peer in (peer_in(slot.pairs, place.rank),)]
        self._rounds = self._slots[-1][0] + 1
        self._rows: list[list[int]] = []
        both = work.direction == "both at once"
        self._meet = self._both if both else self._in_turn

    def prepare(self) -> None:
        """Wipe what arrived, and begin a row of times."""
        self._got.fill_(_POISON)
        self._rows.append([0] * self._rounds)

    def run(self) -> None:
        """Have every two ranks meet once."""
        times_ns = self._rows[-1]
        for number, (of_round, peer) in enumerate(self._slots):
            self.tell_step(2 * number + 1)
            dist.barrier(group=self.place.group, device_ids=self.place.device_ids)
            if peer is not None:
                self.tell_step(2 * number + 2)
                times_ns[of_round] += self._meet(peer)
        self.tell_step(0)

    def spoil(self) -> None:
        """Make the last byte of the last other rank's message wrong."""
        others = [rank for rank in range(self.place.world_size) if rank != self.place.rank]
        self._got[others[-1], -1] = _POISON

    def check(self) -> WrongMessages | None:
        """Compare every byte of what each other rank sent last."""
        found = [(rank, wrong) for rank in range(self.place.world_size) if rank != self.place.rank
                 for wrong in (compare(self._got[rank], self._of(self.place.global_rank(rank))),)
                 if wrong is not None]
        if not found:
            return None
        return WrongMessages(sum(wrong.n_wrong for _, wrong in found), *found[0])

    def answer(self) -> dict[str, Any]:
        """Return this rank's times of each round, a value for each row, and its node."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * self._rounds
        return {"node": platform.node(), "phases": {
            "names": [phase_name(number) for number in range(self._rounds)],
            "ns": [list(column) for column in columns]}}

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def _of(self, sender: int) -> torch.Tensor:
        """Return the bytes that a rank sends."""
        first = 37 * sender % _VALUES
        return self._pattern[first:first + self._work.message_bytes]

    def _in_turn(self, peer: _Peer) -> int:
        """Measure towards the other rank, and answer while it does; the lower rank is first."""
        if self.place.rank < peer.rank:
            taken_ns = self._lead(peer)
            self._follow(peer)
            return taken_ns
        self._follow(peer)
        return self._lead(peer)

    def _lead(self, peer: _Peer) -> int:
        _one(peer.ask)
        _one(peer.hear)
        if self._work.what == "latency":
            return self._timed(lambda: self._rally(peer.out, peer.into))
        return self._timed(lambda: self._acknowledged(peer))

    def _follow(self, peer: _Peer) -> None:
        _one(peer.hear)
        _one(peer.ask)
        if self._work.what == "latency":
            self._rally(peer.into, peer.out)
        else:
            self._window(peer.into)
            _one(peer.ask)

    def _both(self, peer: _Peer) -> int:
        """Send and receive at the same time."""
        exchange(peer.hear, peer.ask)
        if self._work.what == "latency":
            return self._timed(lambda: self._exchanges(peer))
        return self._timed(lambda: self._windows(peer))

    def _exchanges(self, peer: _Peer) -> None:
        for _ in range(self._work.messages):
            exchange(peer.into, peer.out)

    def _windows(self, peer: _Peer) -> None:
        """Have the messages of both ranks under way together, and acknowledge them."""
        count = self._work.messages
        finish(start([*[peer.into] * count, *[peer.out] * count]))
        exchange(peer.hear, peer.ask)

    def _acknowledged(self, peer: _Peer) -> None:
        self._window(peer.out)
        _one(peer.hear)

    def _rally(self, *messages: dist.P2POp) -> None:
        for _ in range(self._work.messages):
            for message in messages:
                _one(message)

    def _window(self, message: dist.P2POp) -> None:
        finish(start([message] * self._work.messages))

    def _timed(self, call: Callable[[], object]) -> int:
        """Return how long a call takes, in ns, its work on the device included."""
        self._synchronize()
        began_ns = time.perf_counter_ns()
        call()
        self._synchronize()
        return time.perf_counter_ns() - began_ns

    def _synchronize(self) -> None:
        if self.place.device.type == "cuda":
            torch.cuda.synchronize(self.place.device)


def exchange(into: dist.P2POp, out: dist.P2POp) -> None:
    """Send and receive at once. The receive is first: gloo sends its permission to send with it."""
    finish(start([into, out]))


def _one(message: dist.P2POp) -> None:
    finish(start((message,)))


def _untold(step: int) -> None:
    """Tell nobody: outside a worker nobody asks."""
