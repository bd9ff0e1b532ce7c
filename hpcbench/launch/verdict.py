"""Who is to blame when a case goes wrong: a pure function of all ranks' evidence.

Never the first reporter: the survivors' "connection closed by peer" comes before the victim's end
of file. A rank that called a wrong operation is the cause of whatever follows. Else the strongest
evidence counts: a process's own end, its own exception, an interface that is down, a stopped
process, the least progress, a communication error.

Watchdogs agree although some may not answer: each rank posts its evidence to the collector, rank 0,
which waits a limited time and answers; else the next rank takes its place. A collective with a
missing rank would name nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from enum import Enum

from hpcbench.launch.communicator import Communicator, Inbox
from hpcbench.plain import Plain
from hpcbench.plan.workload import Ended
from hpcbench.profiling.flight import in_flight
from hpcbench.records import dataclass
from hpcbench.units import by_value, rank_list


class RankOutcome(str, Enum):
    """How a rank's part of a case ended, strongest evidence first."""

    DIED = "died"
    EXCEPTION = "exception"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    STUCK = "stuck"
    COMMUNICATION = "communication"
    HALTED = "halted"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The knowledge of one rank's supervisor at the end of a case.

    Attributes:
        cause: one line.
        iteration, phase: the worker's last progress word.
        expired: whether the deadline passed here; else another rank's failure ended the case.
        stop: the signal that requested this rank to stop, or "".
        wrong_operation: the operation that the worker called in place of the planned one, or "".
        wrong_iteration: the iteration in which it did.
        host: the rank's host, "" where all ranks have the same.
        link: what is wrong with the rank's network interface, or "".
        step: which step within the sample, 0 for none; ``doing`` gives it in words.
        out_of_memory: whether memory was refused to the rank, and its worker reported it.
        left_behind: what the case has changed in the worker, in words, or "".
        current_collective: the one in which the rank hangs (`profiling.flight`), or ""."""

    rank: int
    outcome: RankOutcome
    cause: str = ""
    iteration: int = 0
    phase: int = 0
    n_wrong: int = -1
    wrong: str = ""
    expired: bool = False
    stop: str = ""
    wrong_operation: str = ""
    wrong_iteration: int = 0
    host: str = ""
    link: str = ""
    current_collective: str = ""
    step: int = 0
    doing: str = ""
    out_of_memory: bool = False
    left_behind: str = ""

    @property
    def who(self) -> str:
        """Return the rank, and where it is, as messages name it."""
        return f"rank {self.rank}{f' on {self.host}' if self.host else ''}"


EVIDENCE: Plain[Evidence] = Plain(Evidence)
"""Evidence as plain JSON values and back, for messages between supervisors."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one status of a case on all ranks, the reason, and the rank to blame or -1."""

    status: str
    reason: str
    blamed_rank: int


def judge(
    evidence: Sequence[Evidence], timeout_s: float, planned: str = "the planned operation",
) -> Verdict:
    """Return the verdict; every rank computes the same one from the same evidence."""
    verdict = _judged(evidence, timeout_s, planned)
    if verdict.status != "timeout":
        return verdict
    places = in_flight({item.rank: item.current_collective for item in evidence})
    return replace(verdict, reason="; ".join(filter(None, (
        verdict.reason, _first_steps(evidence), places))))


def how_ended(evidence: Sequence[Evidence], verdict: Verdict) -> Ended:
    """Return how a run ended on all ranks together, by the same evidence."""
    outcomes = {item.outcome for item in evidence}
    if verdict.status == "ok":
        return Ended.OK
    if RankOutcome.HALTED in outcomes or any(item.wrong_operation for item in evidence):
        return Ended.ERROR
    if RankOutcome.DIED in outcomes:
        return Ended.DIED
    refused = any(item.out_of_memory for item in evidence)
    return Ended.OUT_OF_MEMORY if refused else Ended.ERROR


def _first_steps(evidence: Sequence[Evidence]) -> str:
    """Name the ranks in the earliest step: those that others wait for, or that hang."""
    within = [item for item in evidence if item.doing and item.outcome is not RankOutcome.OK]
    if not within:
        return ""
    first = min((item.iteration, item.step) for item in within)
    doing = by_value({item.rank: item.doing for item in within
                      if (item.iteration, item.step) == first})
    return ", ".join(f"rank {rank_list(ranks)} {what}" for what, ranks in doing.items())


def _judged(evidence: Sequence[Evidence], timeout_s: float, planned: str) -> Verdict:
    """Return the verdict from how far each rank came and how it ended."""
    if halted := [item for item in evidence if item.outcome is RankOutcome.HALTED]:
        return Verdict("not_run", halted[0].cause, -1)
    if any(item.wrong_operation for item in evidence):
        return _desync(evidence, timeout_s, planned)
    for outcome in (RankOutcome.DIED, RankOutcome.EXCEPTION):
        if guilty := _least_progress(evidence, outcome):
            return _failed(guilty, len(evidence))
    if skips := _least_progress(evidence, RankOutcome.SKIPPED):
        return _skipped(skips, len(evidence))
    expired = any(item.expired for item in evidence)
    if cut := [item for item in evidence if item.link and item.outcome is not RankOutcome.OK]:
        problems = ", ".join(f"{item.who}: {item.link}" for item in cut)  # nobody can go on
        waited = f"; no end in {timeout_s:g} s" if expired else ""
        return Verdict("timeout" if expired else "failed", problems + waited, cut[0].rank)
    if guilty := _least_progress(evidence, RankOutcome.STOPPED):
        waited = f", no answer in {timeout_s:g} s" if expired else ""
        return Verdict("timeout", f"{_alike(guilty)}: {guilty[0].cause}{waited}", guilty[0].rank)
    if not expired and (guilty := _least_progress(evidence, RankOutcome.COMMUNICATION)):
        return _failed(guilty, len(evidence))
    if any(item.outcome is RankOutcome.STUCK for item in evidence):
        return _timeout(evidence, timeout_s)
    if guilty := _least_progress(evidence, RankOutcome.COMMUNICATION):
        return _failed(guilty, len(evidence))
    return _checked(evidence)


def _desync(evidence: Sequence[Evidence], timeout_s: float, planned: str) -> Verdict:
    """Blame the first rank that called something else, and name the consequence."""
    diverged = sorted((item for item in evidence if item.wrong_operation),
                      key=lambda item: (item.wrong_iteration, item.rank))
    first = diverged[0]
    calls = [f"{item.who} called {item.wrong_operation} in iteration {item.wrong_iteration}"
             for item in diverged]
    left = len(evidence) - len(diverged)
    others = ("instead of" if not left else "while the other rank called" if left == 1
              else "while the others called")
    text = f"{', '.join(calls)} {others} {planned}"
    failures = [item
                for outcome in (RankOutcome.DIED, RankOutcome.EXCEPTION, RankOutcome.COMMUNICATION)
                for item in _least_progress(evidence, outcome)]
    if not failures and any(item.outcome is not RankOutcome.OK for item in evidence):
        return Verdict("timeout", f"{text}: no end in {timeout_s:g} s", first.rank)
    after = f"; then {failures[0].who}: {failures[0].cause}" if failures else ""
    return Verdict("failed", text + after, first.rank)


def _least_progress(evidence: Sequence[Evidence], outcome: RankOutcome) -> list[Evidence]:
    """Return the ranks with this outcome, least progress first."""
    matches = [item for item in evidence if item.outcome is outcome]
    return sorted(matches, key=lambda item: (item.iteration, item.phase, item.rank))


def _alike(guilty: Sequence[Evidence]) -> str:
    """Name the first rank and all that ended in the same way."""
    alike = [item for item in guilty if item.cause == guilty[0].cause]
    if any(item.host for item in alike):
        return ", ".join(item.who for item in alike)
    return f"rank{'s' if len(alike) > 1 else ''} {', '.join(str(item.rank) for item in alike)}"


def _failed(guilty: Sequence[Evidence], size: int) -> Verdict:
    first = guilty[0]
    alike = [item for item in guilty if item.cause == first.cause]
    where = f"all {size} ranks" if len(alike) == size > 1 else first.who
    return Verdict("failed", f"{where}: {first.cause}", first.rank)


def _skipped(skips: Sequence[Evidence], size: int) -> Verdict:
    """Return the skip that all ranks want; if some go on, their functions do not agree."""
    first = skips[0]
    if len(skips) == size:
        return Verdict("skipped", first.cause, -1)
    return Verdict("failed", f"{_alike(skips)} of {size}: skipped the case ({first.cause}), and "
                             "the others did not; all ranks have to", first.rank)


def _timeout(evidence: Sequence[Evidence], timeout_s: float) -> Verdict:
    """Blame the one rank that has come least far; nobody if none stands out."""
    waiting = [item for item in evidence if item.outcome is not RankOutcome.OK]
    first = min(waiting, key=lambda item: (item.iteration, item.phase, item.rank))
    behind = sum((item.iteration, item.phase) == (first.iteration, first.phase)
                 for item in waiting)
    if behind == 1 or behind < len(evidence) - behind:
        return Verdict("timeout", f"{first.who}: least progress after {timeout_s:g} s "
                                  f"({first.cause})", first.rank)
    return Verdict("timeout", f"no end in {timeout_s:g} s; no rank is behind the others "
                              f"({waiting[0].cause})", -1)


def _checked(evidence: Sequence[Evidence]) -> Verdict:
    wrong = [item for item in evidence if item.n_wrong > 0]
    if not wrong:
        return Verdict("ok", "", -1)
    ranks = ", ".join(str(item.rank) for item in wrong[:8])
    total = sum(item.n_wrong for item in wrong)
    of_all = (f"{total} wrong results in all checked calls of ranks {ranks}; "
              if len(wrong) > 1 else "")
    return Verdict("wrong", f"{of_all}{wrong[0].who}: {wrong[0].wrong}", wrong[0].rank)


EXCHANGE_S = 3.0
_COLLECTORS = 2
_NUMBER = 0  # one rank posts to another once
_NOBODY = -1
_SILENT = "process was stopped, gone or cut off"


def agreed_verdict(
    comm: Communicator, evidence: Evidence, timeout_s: float, late_s: float,
    exchange_s: float = EXCHANGE_S, hosts: Sequence[str] = (),
) -> tuple[Verdict, int]:
    """Return the verdict of all watchdogs that answer within ``exchange_s``, and the rank that
    prints it or -1.

    ``comm`` is the watchdogs' own. ``timeout_s`` is the case's, ``late_s`` this rank's delay after
    it, ``hosts`` each rank's as messages name it. Takes up to 2 ``exchange_s`` for each silent
    collector and ``exchange_s`` more. If all are silent they are blamed."""
    if late_s > exchange_s:
        # This process was stopped and continued, as Open MPI does to end a job: it was silent.
        return _verdict([], [comm.rank], timeout_s, hosts), _NOBODY
    inbox = Inbox(comm.posted)
    collectors = range(min(_COLLECTORS, comm.size))
    for collector in collectors[:comm.rank]:
        comm.post([_NUMBER, EVIDENCE.write(evidence)], collector)
        # the collector may have begun to wait later, and takes exchange_s if a rank is silent
        if answer := inbox.collect(_NUMBER, [collector], 2 * exchange_s):
            return Verdict(**answer[collector]), collector
    if comm.rank not in collectors:
        return _verdict([evidence], collectors, timeout_s, hosts), comm.rank
    # this rank collects the evidence of those above it; those below did not answer before
    answers = inbox.collect(_NUMBER, range(comm.rank + 1, comm.size), exchange_s)
    answered = {comm.rank: evidence, **{rank: EVIDENCE.read(answer)
                                        for rank, answer in answers.items()}}
    silent = [rank for rank in range(comm.size) if rank not in answered]
    verdict = _verdict(answered.values(), silent, timeout_s, hosts)
    for rank in answers:
        comm.post([_NUMBER, asdict(verdict)], rank)
    return verdict, comm.rank


def _verdict(
    answered: Iterable[Evidence], silent: Iterable[int], timeout_s: float, hosts: Sequence[str],
) -> Verdict:
    """Return the verdict on all ranks' evidence; that of a silent rank is its silence."""
    missing = [Evidence(rank, RankOutcome.STOPPED, _SILENT, expired=True,
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
