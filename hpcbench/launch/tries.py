"""A case that is several runs: its workload says what is tried next, each try has new workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hpcbench.launch.verdicts.verdict import Verdict
from hpcbench.launch.workers.worker_group import CaseOutcome, WorkerGroup
from hpcbench.plan.case import Case
from hpcbench.plan.tries import MOST_TRIES, Ended, Tried
from hpcbench.trace.schema import Samples


class TriedCase(NamedTuple):
    """How a case ended, and its samples: those of the last try that was ok, if one was."""

    outcome: CaseOutcome
    rows: Samples


def run_tries(
    case: Case, workers: WorkerGroup, run: Callable[[Case], CaseOutcome], *, tells: bool,
) -> TriedCase:
    """Have the workers run all tries of a case. All members call it.

    ``run`` runs one on them. A lack of memory and a worker's death are ends of a try. What else
    goes wrong, or a stop, ends the case. ``tells``: the record of this rank keeps the tries.
    """
    tries: list[Tried] = []
    best: TriedCase | None = None
    last: TriedCase | None = None
    while len(tries) < MOST_TRIES and (work := case.workload.next_try(tries)) is not None:
        workers.dismiss()  # nothing of an earlier try is left, neither memory nor its limit
        one, began = replace(case, workload=work), time.monotonic()
        outcome = run(one)
        last = TriedCase(outcome, workers.rows)
        tries.append(Tried(work, outcome.ended, outcome.verdict.reason, time.monotonic() - began))
        if outcome.ended is Ended.OK:
            best = last
        if outcome.ended is Ended.ERROR or outcome.stop:
            break
    workers.dismiss()
    assert last is not None  # noqa: S101  (a case without tries is not run here)
    outcome, rows = _final(case, tries, best, last)
    if tells:
        detail = {**outcome.own.detail, **case.workload.told_of_tries(tries)}
        outcome = replace(outcome, own=replace(outcome.own, detail=detail))
    return TriedCase(outcome, rows)


def _final(
    case: Case, tries: list[Tried], best: TriedCase | None, last: TriedCase,
) -> TriedCase:
    """Return how the whole case ended: as its last try if that says no more than that it failed."""
    outcome, reason = last.outcome, last.outcome.verdict.reason
    if tries[-1].ended is Ended.ERROR:
        words = " ".join(tries[-1].workload.words(case.world_size))
        return _with_reason(last, f"try {len(tries)} ({words}): {reason}")
    if outcome.stop:
        return last._replace(outcome=replace(
            outcome, verdict=Verdict("not_run", f"stopped by {outcome.stop}", -1)))
    if best is None:
        return _with_reason(last, f"none of {len(tries)} tries was ok; the last one: {reason}")
    return best._replace(outcome=replace(best.outcome, due=outcome.due))


def _with_reason(ended: TriedCase, reason: str) -> TriedCase:
    outcome = ended.outcome
    return ended._replace(outcome=replace(
        outcome, verdict=replace(outcome.verdict, reason=reason)))
