"""One verdict of all watchdogs, also when some do not answer: one rank collects and judges.

Each rank sends its evidence to the collector, rank 0. The collector waits a limited time and
sends the verdict to the ranks that answered, so O(ranks) messages are sent. If no verdict comes,
the collector is silent itself, and the next rank takes its place. All messages are point-to-point:
a collective operation in which one rank is missing tells nobody who.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.waiting import Inbox
from hpcbench.launch.verdicts.verdict import EVIDENCE, Evidence, Outcome, Verdict, judge

EXCHANGE_S = 3.0
_COLLECTORS = 2
_NUMBER = 0  # one rank posts to another once
_NOBODY = -1
_SILENT = "process was stopped, gone or cut off"


class AgreedVerdict(NamedTuple):
    """The verdict, and the rank that prints it, or -1."""

    verdict: Verdict
    reporter: int


def agreed_verdict(
    comm: Communicator, evidence: Evidence, timeout_s: float, late_s: float,
    exchange_s: float = EXCHANGE_S, hosts: Sequence[str] = (),
) -> AgreedVerdict:
    """Return the one verdict of the watchdogs of all ranks that answer within ``exchange_s``.

    ``comm`` is the watchdogs' own: the main threads are inside calls on others. ``timeout_s`` is
    the case's, ``late_s`` how long after it this rank asks, ``hosts`` each rank's as messages name
    it. Takes up to 2 ``exchange_s`` for each collector that is silent and ``exchange_s`` more. If
    all collectors are silent they are blamed, on the own evidence alone.
    """
    if late_s > exchange_s:
        # This process was stopped and continued, as Open MPI does to end a job: it was silent.
        return AgreedVerdict(_verdict([], [comm.rank], timeout_s, hosts), _NOBODY)
    inbox = Inbox(comm.posted)
    collectors = range(min(_COLLECTORS, comm.size))
    for collector in collectors[:comm.rank]:
        comm.post([_NUMBER, EVIDENCE.dump_python(evidence, mode="json")], collector)
        # the collector may have begun to wait later, and takes exchange_s if a rank is silent
        if answer := inbox.take(_NUMBER, [collector], 2 * exchange_s):
            return AgreedVerdict(Verdict(**answer[collector]), collector)
    if comm.rank not in collectors:
        return AgreedVerdict(_verdict([evidence], collectors, timeout_s, hosts), comm.rank)
    # this rank collects the evidence of those above it; those below did not answer before
    answers = inbox.take(_NUMBER, range(comm.rank + 1, comm.size), exchange_s)
    answered = {comm.rank: evidence, **{rank: EVIDENCE.validate_python(answer)
                                        for rank, answer in answers.items()}}
    silent = [rank for rank in range(comm.size) if rank not in answered]
    verdict = _verdict(answered.values(), silent, timeout_s, hosts)
    for rank in answers:
        comm.post([_NUMBER, asdict(verdict)], rank)
    return AgreedVerdict(verdict, comm.rank)


def _verdict(
    answered: Iterable[Evidence], silent: Iterable[int], timeout_s: float, hosts: Sequence[str],
) -> Verdict:
    """Return the verdict on all ranks' evidence; that of a silent rank is its silence."""
    missing = [Evidence(rank, Outcome.STOPPED, _SILENT, expired=True,
                        host=hosts[rank] if hosts else "") for rank in silent]
    every = sorted([*answered, *missing], key=lambda item: item.rank)
    verdict = judge(every, timeout_s)
    if verdict.status in ("ok", "wrong"):
        return Verdict("timeout", f"the ranks were done, but had not agreed in {timeout_s:g} s", -1)
    if missing and verdict.blamed_rank not in silent:
        names = ", ".join(str(item.rank) for item in missing)
        return Verdict(verdict.status, f"{verdict.reason}; no answer from rank {names}",
                       verdict.blamed_rank)
    return verdict
