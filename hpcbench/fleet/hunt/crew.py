"""The ranks that have signed in, as their host sees them: trials of groups, each with a time limit.

Whoever does not answer in time, or whose connection ends, is lost and is asked no more; the other
members of its group are told, and are free again."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcbench import __version__
from hpcbench.errors import RankLostError
from hpcbench.fleet.hunt.agent import RANK_TASK, RankTask
from hpcbench.fleet.hunt.rendezvous import MeetingHost, Message, Wire
from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome

_TICK_S = 0.5
GRACE_S = 20.0
"""Beyond all limits of a trial: a rank that is silent for so much longer does not answer."""
_AFTER_END_S = 15.0
"""For members of a group that has failed, to end their workers and report."""


@dataclass(frozen=True)
class SignedIn:
    """A rank that has signed in: its node, and the switch that this hangs on, "" if unknown."""

    rank: int
    node: str
    switch: str
    line: Wire


@dataclass(frozen=True)
class Finished:
    """How a trial ended.

    ``results`` are those of the ranks that reported: of each case its id, evidence and durations.
    ``lost`` are the ranks that did not, and why. ``readings``: what was read of their machines."""

    ranks: tuple[int, ...]
    results: Mapping[int, Sequence[Message]]
    readings: Mapping[int, Mapping[str, Any]]
    lost: Mapping[int, str]
    at_s: float

    def evidence(self, case_id: str) -> list[Evidence]:
        """Return what the ranks know of a case; [] if none has come to it.

        What happened before the first case counts as of each case."""
        found = []
        for rank in self.ranks:
            told = [EVIDENCE.read(result["evidence"])
                    for result in self.results.get(rank, ())
                    if result["case"] in (case_id, "")]
            if told:
                found.append(told[-1])
            elif rank in self.lost:
                found.append(Evidence(rank, RankOutcome.DIED, self.lost[rank]))
        return found

    def durations_ns(self, case_id: str) -> list[Sequence[int]]:
        """Return the durations of each rank that has measured the case."""
        return [result["durations_ns"] for rank in self.ranks
                for result in self.results.get(rank, ()) if result["case"] == case_id]


@dataclass
class _Running:
    """A trial that goes on, or a question to one rank."""

    ranks: tuple[int, ...]
    deadline: float
    answers: dict[int, Message] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    is_ended: bool = False

    @property
    def waits_for(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.answers and rank not in self.lost]


class Crew:
    """A context manager around the connections to all ranks that signed in.

    ``now_s``: seconds since the hunt began."""

    def __init__(self, size: int, on_tick: Callable[[], None]) -> None:
        """``on_tick`` is called again and again while something is waited for; it may raise."""
        self.members: dict[int, SignedIn] = {}
        self.lost: dict[int, str] = {}
        """Ranks that had signed in and do not answer any more, and why."""
        self.refused: dict[int, str] = {}
        """Ranks that were not taken in, and why."""
        self._size, self._on_tick = size, on_tick
        self._selector = selectors.DefaultSelector()
        self._began_s = time.monotonic()
        self._number = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            member.line.close()
        self._selector.close()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def living(self) -> frozenset[int]:
        return frozenset(self.members.keys() - self.lost.keys())

    def sign_in(self, host: MeetingHost, limit_s: float) -> None:
        """Take in the ranks that come within ``limit_s``, or all; then close the door."""
        deadline = time.monotonic() + limit_s
        while len(self.members) < self._size and time.monotonic() < deadline:
            self._on_tick()
            for line, hello in host.guests(min(_TICK_S, deadline - time.monotonic())):
                self._admit(line, hello)
                if len(self.members) == self._size:
                    break
        host.close_door()

    def _admit(self, line: Wire, hello: Message) -> None:
        rank: Any = hello.get("rank")
        size, version = hello.get("size"), hello.get("version")
        who = f"rank {rank} on {hello.get('node')}"
        why = (f"{who} is one of {size} ranks, others of {self._size}" if size != self._size else
               f"{who} is no rank of {size}" if rank not in range(self._size) else
               f"two processes are rank {rank}: on {self.members[rank].node} and on "
               f"{hello.get('node')}" if rank in self.members else
               f"{who} has hpcbench {version}, others {__version__}: install one version on all "
               "nodes" if version != __version__ else "")
        with contextlib.suppress(RankLostError):
            line.send({"refused": why})
            if not why:
                self.members[rank] = SignedIn(
                    rank, str(hello["node"]), str(hello.get("switch", "")), line)
                self._selector.register(line, selectors.EVENT_READ, rank)
                return
        if why and rank in range(self._size) and rank not in self.members:
            self.refused[rank] = why
        line.close()

    def ask(self, ranks: Iterable[int], do: str, limit_s: float) -> dict[int, Message]:
        """Return the answers of the living ones of these ranks to a question; who does not answer
        in time is lost."""
        asked = {rank: _Running((rank,), time.monotonic() + limit_s)
                 for rank in ranks if rank in self.living}
        numbers = {self._next(): rank for rank in asked}
        for number, rank in numbers.items():
            self._send(rank, {"do": do, "number": number}, [asked[rank]])
        self._await({number: asked[rank] for number, rank in numbers.items()})
        return {rank: running.answers[rank][do] for rank, running in asked.items()
                if rank in running.answers}

    def run(self, trials: Sequence[Mapping[int, RankTask]]) -> list[Finished]:
        """Carry out trials at the same time, each a mapping rank -> task without a number."""
        running: dict[int, _Running] = {}
        for tasks in trials:
            one = next(iter(tasks.values()))
            limit_s = (2 * one.join_s + one.open_s + GRACE_S
                       + sum(case.timeout_s for case in one.cases))
            number = self._next()
            running[number] = _Running(tuple(tasks), time.monotonic() + limit_s)
            for rank, task in tasks.items():
                plain = RANK_TASK.write(task)
                self._send(rank, {"do": "trial", "task": {**plain, "number": number}},
                           [running[number]])
        ended_s = self._await(running)
        return [Finished(
            one.ranks, {rank: answer["results"] for rank, answer in one.answers.items()},
            {rank: answer["readings"] for rank, answer in one.answers.items()}, one.lost,
            ended_s[number]) for number, one in running.items()]

    def leave(self, code: int) -> None:
        """Have all ranks end with this exit code."""
        for rank in self.living:
            self._send(rank, {"do": "leave", "code": code}, [])

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _await(self, running: Mapping[int, _Running]) -> dict[int, float]:
        """Return when each has ended: all of its ranks have answered, or are lost."""
        ended_s: dict[int, float] = {}
        left = dict(running)
        while left:
            self._on_tick()
            for rank, message in self._arrived():
                number = message.get("failed", message.get("number"))
                if type(number) is int and (one := left.get(number)) is not None:
                    self._take(rank, message, one)
            for number, one in tuple(left.items()):
                late = one.waits_for if time.monotonic() > one.deadline else []
                for rank in late:
                    self._lose(rank, "its process does not answer")
                for rank in [rank for rank in one.waits_for if rank in self.lost]:
                    one.lost[rank] = self.lost[rank]
                    self._end(number, one)
                if not one.waits_for:
                    ended_s[number] = self.now_s
                    del left[number]
        return ended_s

    def _take(self, rank: int, message: Message, one: _Running) -> None:
        """Act on a message of a member of a trial."""
        if "failed" in message:
            self._end(int(message["failed"]), one)
        elif "store" in message:
            for other in one.ranks:
                if other != rank:
                    self._send(other, {**message, "do": "store"}, [one])
        else:
            one.answers[rank] = message

    def _end(self, number: int, one: _Running) -> None:
        """Tell the members of a trial that one of them has failed, once."""
        if not one.is_ended:
            one.is_ended = True
            one.deadline = min(one.deadline, time.monotonic() + _AFTER_END_S)
            for rank in one.waits_for:
                self._send(rank, {"do": "end", "number": number}, [one])

    def _arrived(self) -> Iterator[tuple[int, Message]]:
        for key, _ in self._selector.select(_TICK_S):
            rank: int = key.data
            try:
                message = self.members[rank].line.receive()
            except RankLostError:
                self._lose(rank, "its process has ended")
                continue
            if message is not None:
                yield rank, message

    def _send(self, rank: int, message: Message, running: Sequence[_Running]) -> None:
        if rank in self.lost:
            return
        try:
            self.members[rank].line.send(message)
        except RankLostError:
            self._lose(rank, "its process takes no message")
            for one in running:
                one.lost[rank] = self.lost[rank]

    def _lose(self, rank: int, why: str) -> None:
        if rank not in self.lost:
            self.lost[rank] = why
            self._selector.unregister(self.members[rank].line)
