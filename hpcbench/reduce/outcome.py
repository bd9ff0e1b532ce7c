"""The one outcome of a case, from the records of all its ranks in all passes.

A case fails as a whole: one rank without a record, or one rank that failed, and no number of the
case is used. Ranks are never left out of a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem, check_records, check_stamps, timer_problem
from hpcbench.reduce.intake import rank_list
from hpcbench.reduce.results import CaseResult, CaseSamples, Finding
from hpcbench.reduce.stack import (
    Pass,
    is_timed,
    iteration_times_s,
    stack_samples,
    summarise,
)
from hpcbench.trace.arena import Empty, new_array
from hpcbench.trace.schema import Record

_WORST_FIRST = ("timeout", "failed", "wrong", "not_run", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Context:
    """What a case is judged against.

    Attributes:
        passes: how often every case was planned.
        present: ranks with a usable trace.
        stopped: those of them that never came to their end, and lost nothing before it.
        clock_resolution_ns: the coarsest of the ranks' clocks, 0 where none was recorded.
    """

    passes: int
    present: frozenset[int]
    stopped: frozenset[int]
    clock_resolution_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result with its stacked samples and its findings."""

    result: CaseResult
    samples: CaseSamples | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _PassOutcome:
    status: str
    reason: str
    blamed_rank: int | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    records: Pass = field(default_factory=dict)
    samples: CaseSamples | None = None
    """Those of ``records``, where their stamps were checked."""


def judge(
    case: Case, records: Mapping[int, Sequence[Record]], context: Context,
    empty: Empty = new_array,
) -> Outcome:
    """Return the outcome of a case; ``records`` maps each present rank to its records of it.

    ``empty`` makes the arrays of the outcome's samples.
    """
    passes, problems, notes = _by_pass(case, records, context.passes)
    outcomes = {index: _judge_pass(case, index, passes.get(index, {}), context, empty)
                for index in range(context.passes)}
    if outcomes[0].status == "skipped":  # recorded once: what cannot run here never can
        outcomes |= {index: outcomes[0] for index in outcomes if index not in passes}
    decisive = min(outcomes.values(), key=lambda item: _WORST_FIRST.index(item.status))
    ran = {index: item for index, item in outcomes.items() if item.status == "ok"}
    if decisive.status in ("not_run", "skipped") and ran:
        decisive = outcomes[min(ran)]
        notes.append(_passes_not_run(outcomes))
    problems += _told_once({index: item.problems for index, item in outcomes.items()})
    notes += _told_once({index: item.notes for index, item in outcomes.items()})
    if problems and decisive.status == "ok":
        decisive = replace(decisive, status="failed",
                           reason=f"{problems[0].code}: {problems[0].message}")
    samples = _samples(ran, empty)
    if decisive.status == "ok" and samples is not None:
        notes += _sample_notes(case, samples, len(ran), context)
    else:
        samples = _samples(outcomes, empty) or samples
    findings = [_finding(case, item, "case") for item in problems]
    findings += [_finding(case, item, "note") for item in notes]
    return Outcome(_result(case, decisive, outcomes, samples), samples, tuple(findings))


def _samples(outcomes: Mapping[int, _PassOutcome], empty: Empty) -> CaseSamples | None:
    """Return the samples of all these passes."""
    stacked = [item.samples for item in outcomes.values()]
    if len(stacked) == 1 and stacked[0] is not None:
        return stacked[0]
    return stack_samples({index: item.records for index, item in outcomes.items()}, empty)


def _told_once(by_pass: Mapping[int, Sequence[Problem]]) -> Iterator[Problem]:
    """Yield each problem once, with the passes that have it if there are several."""
    found: dict[Problem, list[int]] = {}
    for index, problems in by_pass.items():
        for problem in problems:
            found.setdefault(problem, []).append(index)
    for problem, passes in found.items():
        prefix = f"pass {rank_list(passes)}: " if len(by_pass) > 1 else ""
        yield replace(problem, message=prefix + problem.message)


def _finding(case: Case, problem: Problem, scope: str) -> Finding:
    return Finding(problem.code, scope, f"case {case.label} ({case.case_id}): {problem.message}")


def _result(
    case: Case, decisive: _PassOutcome, outcomes: Mapping[int, _PassOutcome],
    samples: CaseSamples | None,
) -> CaseResult:
    every = [record for item in outcomes.values() for record in item.records.values()]
    checked = [record.n_wrong for record in every if record.n_wrong >= 0]
    devices = [record.device.partition(":")[0] for record in every if record.device]
    is_ok = decisive.status == "ok" and samples is not None
    return CaseResult(
        case=case, status=decisive.status, reason=decisive.reason,
        blamed_rank=decisive.blamed_rank, device=devices[0] if devices else "",
        n_wrong=sum(checked) if checked else None,
        statistics=summarise(iteration_times_s(samples)) if is_ok and samples else None,
        detail={str(rank): dict(record.detail)
                for rank, record in sorted(decisive.records.items()) if record.detail})


def _by_pass(
    case: Case, records: Mapping[int, Sequence[Record]], passes: int
) -> tuple[dict[int, dict[int, Record]], list[Problem], list[Problem]]:
    """Return the newest record of each rank by pass, problems, and notes about older ones."""
    found: dict[int, dict[tuple[int, int], dict[int, Record]]] = defaultdict(
        lambda: defaultdict(dict))
    problems: list[Problem] = []
    for rank, items in records.items():
        for record in items:
            same = found[record.pass_index][record.launch, record.attempt]
            problems += _misplaced(case, rank, record, passes, twice=rank in same)
            same[rank] = record
    notes = [_history(index, attempts) for index, attempts in sorted(found.items())
             if len(attempts) > 1]
    return {index: attempts[max(attempts)] for index, attempts in found.items()}, problems, notes


def _misplaced(
    case: Case, rank: int, record: Record, passes: int, *, twice: bool
) -> Iterator[Problem]:
    if twice:
        yield Problem("HB113", f"rank {rank}: two records of pass {record.pass_index}, launch "
                      f"{record.launch}, attempt {record.attempt}: which one holds is unknown; "
                      "run the case again")
    if not 0 <= record.pass_index < passes:
        yield Problem("HB116", f"rank {rank}: a record of pass {record.pass_index}, planned are "
                      f"{passes}; run the case again")
    if rank >= case.world_size and record.status not in ("skipped", "not_run"):
        yield Problem("HB112", f"rank {rank} took part, but the case is for ranks 0 to "
                      f"{case.world_size - 1}; run the case again")


def _history(index: int, attempts: Mapping[tuple[int, int], object]) -> Problem:
    launch, attempt = max(attempts)
    return Problem("HB139", f"pass {index}: {len(attempts)} attempts, the newest (launch {launch}, "
                   f"attempt {attempt}) is used, the traces keep the older ones")


def _passes_not_run(outcomes: Mapping[int, _PassOutcome]) -> Problem:
    left = [index for index, item in outcomes.items() if item.status != "ok"]
    return Problem("HB141", f"pass {rank_list(left)} of {len(outcomes)} was not run: its numbers "
                   "are of the other passes; resume the run")


def _judge_pass(
    case: Case, index: int, found: Pass, context: Context, empty: Empty
) -> _PassOutcome:
    """Return what the members' records of one pass add up to."""
    records = {rank: found[rank] for rank in range(case.world_size) if rank in found}
    if case.skip is not None and not records:
        return _PassOutcome("skipped", case.skip)
    if not records:
        lost = set(range(case.world_size)) - context.present
        return _PassOutcome("not_run", f"no record of it: the trace of rank {rank_list(lost)} is "
                            "lost" if lost else "no rank recorded it: the run ended before it")
    status, problems = _agreed_status(records)
    blamed, blame_notes = _agreed_blame(records, status)
    absent = [rank for rank in range(case.world_size) if rank not in records]
    missing = tuple(_missing(absent, context)) if absent else ()
    outcome = _PassOutcome(status, _reason(records, status, blamed), blamed, records=records)
    if status == "ok" and absent and set(absent) <= context.stopped:
        return replace(outcome, status="not_run", blamed_rank=None, notes=missing,
                       reason=f"the run ended before rank {rank_list(absent)} recorded it")
    if status == "ok":
        samples = stack_samples({index: records}, empty)
        problems += [*missing] if problems else [*missing, *check_records(case, records, samples)]
        if samples is not None and not problems:
            problems += check_stamps(samples, records)
        return replace(outcome, problems=tuple(problems), samples=samples)
    notes = (*blame_notes, *missing) if status in ("timeout", "failed", "wrong") else ()
    return replace(outcome, problems=tuple(problems), notes=notes)


def _agreed_status(records: Pass) -> tuple[str, list[Problem]]:
    """Return the worst status of any rank. HB114 if they differ, HB126 if a check failed."""
    found = {rank: record.status for rank, record in records.items()}
    worst = min(found.values(), key=_WORST_FIRST.index)
    problems: list[Problem] = []
    if len(set(found.values())) > 1:
        text = ", ".join(f"{status} on rank {rank_list(r for r in found if found[r] == status)}"
                         for status in dict.fromkeys(found.values()))
        problems.append(Problem("HB114", f"the ranks disagree: {text}: the worst one holds; "
                                "run the case again"))
        worst = "ok" if worst == "skipped" else worst
    wrong = {rank: record.n_wrong for rank, record in records.items() if record.n_wrong > 0}
    if wrong and worst not in ("timeout", "failed"):
        worst = "wrong"
        first = min(wrong)
        problems.append(Problem("HB126", f"rank {rank_list(wrong)}: {sum(wrong.values())} wrong "
                                f"elements, {wrong[first]} of them on rank {first}: the time is "
                                "not used; see the case's detail"))
    return worst, problems


def _agreed_blame(records: Pass, status: str) -> tuple[int | None, list[Problem]]:
    found = {rank: record.blamed_rank for rank, record in records.items()
             if record.status == status and record.blamed_rank >= 0}
    if not found:
        return None, []
    blamed = [*found.values()]
    notes = [] if len(set(blamed)) == 1 else [
        Problem("HB114", f"the ranks blame different ranks: {rank_list(set(blamed))}; the lowest "
                "rank's word is kept")]
    return blamed[0], notes


def _reason(records: Pass, status: str, blamed: int | None) -> str:
    """Return the blamed rank's reason, or that of the lowest rank with this status."""
    reasons = {rank: record.reason for rank, record in records.items() if record.status == status}
    if status == "wrong" and not any(reasons.values()):
        total = sum(record.n_wrong for record in records.values() if record.n_wrong > 0)
        return f"{total} wrong elements"
    own = reasons.get(blamed, "") if blamed is not None else ""
    return own or next((reason for reason in reasons.values() if reason), "")


def _missing(absent: Sequence[int], context: Context) -> Iterator[Problem]:
    lost = [rank for rank in absent if rank not in context.present]
    silent = [rank for rank in absent if rank in context.present]
    if lost:
        yield Problem("HB112", f"no trace of rank {rank_list(lost)}: nothing is averaged without "
                      "it; bring the trace back or run the case again")
    if silent:
        yield Problem("HB112", f"no record of it on rank {rank_list(silent)}: nothing is averaged "
                      "without it; run the case again")


def _sample_notes(
    case: Case, samples: CaseSamples, passes: int, context: Context
) -> Iterator[Problem]:
    timed, planned = int(is_timed(samples).sum()), case.iterations * passes
    if timed < planned:
        yield Problem("HB134", f"{timed} timed iterations of {planned} planned: the case stopped "
                      "early; raise its time limit for all of them")
    if slow_clock := timer_problem(samples, context.clock_resolution_ns):
        yield slow_clock
