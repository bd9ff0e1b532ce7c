"""The outcome of a case, from the records of all ranks in all passes of all launches. It fails as a
whole: one rank without a record, or one that failed, and no number of it is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import Case, status_of_case, status_of_run
from hpcbench.plan.order import INLINE_BACKENDS, turns
from hpcbench.records import dataclass
from hpcbench.reduce import checks
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.fold import Edges, RankClocks, edges, extreme_durations, joined, uses_of_failed
from hpcbench.reduce.kind_facts import deriver_of
from hpcbench.reduce.results import CaseResult, CaseSamples, Finding
from hpcbench.reduce.stack import Pass, PassKey, is_timed, stack_samples
from hpcbench.reduce.timing import Planned, measured
from hpcbench.registry import in_this_package
from hpcbench.trace.schema import LIBRARY, LibraryChoices, Record, merged
from hpcbench.units import by_value, grouped, on_ranks, plural, rank_list


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at the run. ``present``: ranks with a usable trace; ``stopped``: those that never
    ended, and lost nothing before it; ``nodes``: rank to machine; ``damaged``: ranks whose journal
    may have lost records."""

    present: frozenset[int]
    stopped: frozenset[int]
    clocks: RankClocks
    nodes: Mapping[int, str]
    damaged: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class OutcomeContext:
    """Facts to judge a case by; the newest attempt is the last. ``hardware`` is the config's
    section, ``clock_resolution_ns`` that of the coarsest clock, 0 if unknown. ``inline``: workers
    are the ranks' own processes in all launches. ``arriving``: ids of cases with late ranks, and of
    the same without."""

    launches: int
    passes: int
    attempts: tuple[Attempt, ...]
    hardware: Mapping[str, Any]
    clock_resolution_ns: float
    inline: bool = False
    arriving: frozenset[str] = frozenset()

    def attempt_of(self, records: Iterable[Record]) -> Attempt:
        number = max((record.attempt for record in records), default=len(self.attempts))
        return self.attempts[min(number, len(self.attempts) - 1)]

    @property
    def keys(self) -> list[PassKey]:
        return [PassKey(turn.launch, turn.pass_index) for turn in turns(self.launches, self.passes)]


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """The status of one pass, its reason, and its problems. ``lacking``: a trace that is lost or
    damaged may have held more of it."""

    status: str
    reason: str
    blamed_rank: int | None = None
    problems: tuple[Violation, ...] = ()
    lacking: bool = False
    records: Pass = field(default_factory=dict)
    samples: CaseSamples | None = None
    """The samples of ``records``, where their stamps were checked."""
    common: Edges | None = None
    """The edges on the global clock, where it is known."""


def judge_pass(case: Case, key: PassKey, by_rank: Pass, context: OutcomeContext) -> PassOutcome:
    records = {rank: by_rank[rank] for rank in range(case.world_size) if rank in by_rank}
    attempt = context.attempt_of(records.values())
    if case.skip is not None and not records:
        return PassOutcome("skipped", case.skip)
    if not records:
        return _without_records(case, attempt)
    status, problems = _agreed_status(records)
    blamed, blame_notes = _agreed_blame(records, status)
    absent = [rank for rank in range(case.world_size) if rank not in records]
    missing = list(_missing(absent, attempt))
    outcome = PassOutcome(status, _reason(records, status, blamed), blamed,
                          lacking=not attempt.stopped.issuperset(absent), records=records)
    if status == "ok" and absent and set(absent) <= attempt.stopped:
        return replace(outcome, status="not_run", blamed_rank=None, problems=_notes(missing),
                       reason=f"the run ended before rank {rank_list(absent)} recorded it")
    if status == "ok":
        samples = stack_samples({key: records})
        problems_of_records = () if problems else checks.check_records(case, records, samples)
        problems += [*missing, *problems_of_records]
        if samples is not None and not problems:
            problems += checks.check_samples(samples, records)
        noted = (*problems, *checks.check_replicas(records))
        outcome = replace(outcome, problems=noted, samples=samples)
        return outcome if problems else _on_global_clock(
            case, outcome, attempt.clocks, each=case.case_id in context.arriving)
    if status in ("timeout", "failed", "wrong"):
        problems += _notes([*blame_notes, *missing])
    return replace(outcome, problems=tuple(problems))


def _without_records(case: Case, newest: Attempt) -> PassOutcome:
    members = frozenset(range(case.world_size))
    if lost := members - newest.present:
        return PassOutcome("not_run", f"no record of it: the trace of rank {rank_list(lost)} is "
                           "lost", lacking=True)
    if members <= newest.damaged:
        return PassOutcome("not_run", "no record of it: the journal of each rank is damaged",
                           lacking=True)
    return PassOutcome("not_run", "no rank recorded it: the run ended before it")


def _on_global_clock(
    case: Case, outcome: PassOutcome, clocks: RankClocks, *, each: bool,
) -> PassOutcome:
    """Add the edges of a sound pass on the global clock, and their faults. ``each``: the delays of
    each rank are wanted, as they are where there are phases."""
    samples = outcome.samples
    stamps = None if samples is None else clocks.stamps(samples)
    if samples is None or stamps is None:
        return outcome
    timed = is_timed(samples)
    common = edges(stamps, case.workload.groups, case.workload.group_stride,
                   each=each or bool(samples.phases),
                   timed=timed if timed.any() else None)
    problems = checks.check_causality(case, samples, stamps, common, clocks)
    return replace(outcome, common=common, problems=(*outcome.problems, *problems))


def _notes(problems: Iterable[Violation]) -> tuple[Violation, ...]:
    return tuple(replace(problem, rejects=False) for problem in problems)


def _agreed_status(records: Pass) -> tuple[str, list[Violation]]:
    """Return the status of one run. HB114 if the ranks differ, HB126 if a check failed."""
    groups = by_value({rank: record.status for rank, record in records.items()})
    status = status_of_run(map(status_on, records.values()))
    problems: list[Violation] = []
    if len(groups) > 1:
        problems.append(Violation("HB114", f"the ranks disagree: {on_ranks(groups)}: the worst one "
                                f"holds; {checks.AGAIN}"))
    wrong = {rank: record.n_wrong for rank, record in records.items() if record.n_wrong > 0}
    if wrong and status == "wrong":
        first, count = min(wrong), plural(sum(wrong.values()), "wrong element")
        share = f", {wrong[first]} of them on rank {first}" if len(wrong) > 1 else ""
        problems.append(Violation("HB126", f"{count} on rank {rank_list(wrong)}{share}: the time "
                                "is not used; see the case's detail"))
    return status, problems


def status_on(record: Record) -> str:
    """Return the status of a run on one rank: what it recorded, unless its own check failed."""
    passed = record.status in ("timeout", "failed") or record.n_wrong <= 0
    return record.status if passed else "wrong"


def _agreed_blame(records: Pass, status: str) -> tuple[int | None, list[Violation]]:
    blamed = [record.blamed_rank for record in records.values()
              if record.status == status and record.blamed_rank >= 0]
    notes = [] if len(set(blamed)) < 2 else [
        Violation("HB114", f"the ranks blame different ranks: {rank_list(set(blamed))}; the lowest "
                "rank's word is kept")]
    return (blamed[0] if blamed else None), notes


def _reason(records: Pass, status: str, blamed: int | None) -> str:
    """Return the blamed rank's reason, else the lowest rank's; not of ranks that blame another
    one."""
    reasons = {rank: record.reason for rank, record in records.items()
               if record.status == status and (blamed is None or record.blamed_rank == blamed)}
    if status == "wrong" and not any(reasons.values()):
        total = sum(record.n_wrong for record in records.values() if record.n_wrong > 0)
        return plural(total, 'wrong element')
    own = reasons.get(blamed, "") if blamed is not None else ""
    return own or next((reason for reason in reasons.values() if reason), "")


def _missing(absent: Sequence[int], attempt: Attempt) -> Iterator[Violation]:
    lost = [rank for rank in absent if rank not in attempt.present]
    silent = [rank for rank in absent if rank in attempt.present]
    if lost:
        yield Violation("HB112", f"no trace of rank {rank_list(lost)}: nothing is averaged "
                      "without it; bring the trace back or run the case again", trace_missing=True)
    if silent:
        yield Violation("HB112", f"no record of it on rank {rank_list(silent)}: nothing is "
                      "averaged without it; run the case again")


_MEMORY = "memory"
"""The key of a record's detail for the rank's memory use."""
Outcomes = Mapping[PassKey, PassOutcome]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's result, stacked samples, findings, and ranks not synchronised before and after
    it. ``lacking``: a trace that is lost or damaged may have held more of it."""

    result: CaseResult
    samples: CaseSamples | None
    findings: tuple[Finding, ...]
    unbracketed: frozenset[int] = frozenset()
    lacking: bool = False


def judge(
    case: Case, records: Mapping[int, Sequence[Record]], context: OutcomeContext,
) -> Outcome:
    passes, problems = _by_pass(case, records, context)
    outcomes = {key: judge_pass(case, key, passes.get(key, {}), context)
                for key in context.keys}
    first = outcomes[context.keys[0]]
    if first.status == "skipped":  # recorded once: a case that cannot run here never can
        outcomes |= {key: first for key in outcomes if key not in passes}
    status = status_of_case(item.status for item in outcomes.values())
    decisive = next(item for item in outcomes.values() if item.status == status)
    ran = {key: item for key, item in outcomes.items() if item.status == "ok"}
    if status == "ok" and len(ran) < len(outcomes):
        left = [key for key in outcomes if key not in ran]
        problems.append(Violation(
            "HB141", f"{_pass_names(left, context)} of {context.passes} not run; resume with "
            f"{checks.RESUME}", rejects=False))
    problems += _distinct_problems(outcomes, context)
    trace_missing = False
    if decisive.status == "ok" and (why := _rejection(problems)):
        decisive = replace(decisive, status="failed", reason=why)
        trace_missing = all(problem.trace_missing for problem in problems if problem.rejects)
    samples = (None if decisive.status == "ok" else _samples(outcomes)) or _samples(ran)
    result = replace(_result(case, decisive, outcomes), trace_missing=trace_missing)
    if decisive.status == "ok" and samples is not None:
        result, use, notes = _with_numbers(result, samples, ran, context)
        samples, problems = replace(samples, use=use), [*problems, *notes]
    elif samples is not None:
        samples = replace(samples, use=uses_of_failed(samples))
    problems.sort(key=lambda problem: not problem.rejects)
    findings = (Finding(problem.code, "case" if problem.rejects else "note",
                        f"case {case.label} ({case.case_id}): {problem.message}")
                for problem in problems)
    return Outcome(result, samples, tuple(findings), _unbracketed(outcomes, context),
                   any(item.lacking for item in outcomes.values()))


def _rejection(problems: Iterable[Violation]) -> str | None:
    return next((f"{problem.code}: {problem.message}" for problem in problems if problem.rejects),
                None)


def _unbracketed(outcomes: Outcomes, context: OutcomeContext) -> frozenset[int]:
    several = {id(attempt): attempt.clocks for attempt in context.attempts
               if attempt.clocks.n_clocks > 1}
    records = ((several.get(id(context.attempt_of([record]))), rank, record)
               for item in outcomes.values() if several and item.status == "ok"
               for rank, record in item.records.items())
    return frozenset(rank for clocks, rank, record in records if clocks is not None
                     and not clocks.bracketed(rank, record.begin_ns, record.end_ns))


def _samples(outcomes: Outcomes) -> CaseSamples | None:
    stacked = [item.samples for item in outcomes.values()]
    if len(stacked) == 1 and stacked[0] is not None:
        return stacked[0]
    return stack_samples({key: item.records for key, item in outcomes.items()})


def _with_numbers(
    result: CaseResult, samples: CaseSamples, ran: Outcomes, context: OutcomeContext
) -> tuple[CaseResult, npt.NDArray[np.int64], list[Violation]]:
    """Return the result with its statistics, the samples' uses, and problems, which may reject
    it."""
    case = result.case
    waits = extreme_durations(samples)
    outcome = measured(
        case, samples, waits, {key: item.records for key, item in ran.items()},
        joined([item.common for item in ran.values()]),
        Planned(context.keys, context.inline or case.backend in INLINE_BACKENDS,
                case.case_id in context.arriving))
    timed = int(is_timed(samples).sum())
    planned = (case.min_iterations or case.iterations) * len(ran)
    problems = [*checks.timer_problem(samples, waits, context.clock_resolution_ns),
                *_kind_problems(result, outcome.statistics.median_s, context)]
    if timed < planned:
        problems.append(Violation("HB134", f"stopped after {timed} of {planned} timed iterations; "
                                "raise its timeout_s for all of them", rejects=False))
    if why := _rejection(problems):
        return (replace(result, status="failed", reason=why), uses_of_failed(samples), problems)
    peak = checks.declared_peak(case, context.attempts[-1].nodes, context.hardware)
    timing = replace(outcome.timing, link_bytes_per_s=None if peak is None else peak * 1e9)
    return replace(result, statistics=outcome.statistics, timing=timing), outcome.use, problems


def _kind_problems(item: CaseResult, time_s: float, context: OutcomeContext) -> Iterable[Violation]:
    """Return the problems that the case's kind finds. HB153: a plug-in raised."""
    spec = kinds().get(item.case.kind)
    if spec is None:
        return ()
    try:
        nodes = context.attempts[-1].nodes
        return [*deriver_of(spec).problems(item, time_s, nodes, context.hardware)]
    except Exception as error:
        if in_this_package(spec.deriver_path):
            raise
        return [Violation("HB153", f"the checks of kind {item.case.kind} raised "
                        f"{type(error).__name__}: {error}; fix the plug-in and reduce again",
                        rejects=False)]


def _distinct_problems(outcomes: Outcomes, context: OutcomeContext) -> Iterator[Violation]:
    """Yield each problem once, with the passes that have it if there are several."""
    keys_by_problem = grouped(
        (problem, key) for key, outcome in outcomes.items() for problem in outcome.problems)
    for problem, keys in keys_by_problem.items():
        each = "each of " if len(keys) > 1 else ""  # its numbers are of one pass
        prefix = f"{each}{_pass_names(keys, context)}: " if len(outcomes) > 1 else ""
        yield replace(problem, message=prefix + problem.message)


def _pass_names(keys: Iterable[PassKey], context: OutcomeContext) -> str:
    """Return ``pass 1-2``, or ``launch 2 pass 1-2`` where there are several launches; from 1, as
    progress has them."""
    return ", ".join((f"launch {launch + 1} " if context.launches > 1 else "")
                     + f"pass {rank_list(index + 1 for index in indices)}"
                     for launch, indices in grouped(keys).items())


def _result(case: Case, decisive: PassOutcome, outcomes: Outcomes) -> CaseResult:
    every = [record for item in outcomes.values() for record in item.records.values()]
    checked = [record.n_wrong for record in every if record.n_wrong >= 0]
    devices = [record.device.partition(":")[0] for record in every if record.device]
    distinct = {tuple(record.detail[LIBRARY].items()): record.detail[LIBRARY]
                for record in every if LIBRARY in record.detail}  # most are equal
    return CaseResult(
        case=case, status=decisive.status, reason=decisive.reason,
        blamed_rank=decisive.blamed_rank, device=devices[0] if devices else "",
        n_wrong=sum(checked) if checked else None, statistics=None,
        detail={str(rank): detail for rank, record in sorted(decisive.records.items())
                if (detail := {key: value for key, value in record.detail.items()
                               if key not in (LIBRARY, _MEMORY)})},
        library=None if decisive.status in ("skipped", "not_run") else merged(
            map(LibraryChoices.from_json, distinct.values())).to_json(),
        memory=_most_memory((rank, record) for item in outcomes.values()
                           for rank, record in item.records.items()))


def _by_pass(
    case: Case, records: Mapping[int, Sequence[Record]], context: OutcomeContext
) -> tuple[dict[PassKey, dict[int, Record]], list[Violation]]:
    """Return the records of each pass that count, by rank, and the problems of all records."""
    attempts: dict[PassKey, dict[int, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    problems: list[Violation] = []
    for rank, items in records.items():
        for record in items:
            of_attempt = attempts[PassKey(record.launch, record.pass_index)][record.attempt]
            problems += _misplaced(case, rank, record, context, twice=rank in of_attempt)
            of_attempt[rank] = record
    used = {key: _newest_whole(case, numbers, context) for key, numbers in attempts.items()}
    problems += [
        Violation("HB139", f"{_pass_names([key], context)}: {len(numbers)} attempts, "
                f"{'the newest ' * (used[key] == max(numbers))}({used[key] + 1}) is used, the "
                "traces keep the others", rejects=False)
        for key, numbers in sorted(attempts.items()) if len(numbers) > 1]
    return {key: numbers[used[key]] for key, numbers in attempts.items()}, problems


def _newest_whole(
    case: Case, by_attempt: Mapping[int, Mapping[int, Record]], context: OutcomeContext,
) -> int:
    """Return the attempt that holds: the newest, unless it ended before the record; then the newest
    one before it with a record of every rank."""
    newest = max(by_attempt)
    for number in sorted(by_attempt, reverse=True):
        records = by_attempt[number]
        statuses = {record.status for record in records.values()}
        absent = set(range(case.world_size)) - set(records)
        stopped = context.attempts[min(number, len(context.attempts) - 1)].stopped
        was_cut = "not_run" in statuses or (absent and absent <= stopped)
        if not was_cut and (number == newest or "skipped" not in statuses):
            return number
    return newest


def _misplaced(
    case: Case, rank: int, record: Record, context: OutcomeContext, *, twice: bool
) -> Iterator[Violation]:
    if twice:
        yield Violation("HB113", f"rank {rank}: two records of pass {record.pass_index + 1}, "
                      f"launch {record.launch + 1}, attempt {record.attempt + 1}: which one "
                      "holds is unknown; run the case again")
    if not (0 <= record.pass_index < context.passes and 0 <= record.launch < context.launches):
        yield Violation("HB116", f"rank {rank}: a record of launch {record.launch + 1}, pass "
                      f"{record.pass_index + 1}, planned are {plural(context.launches, 'launch')} "
                      f"of {plural(context.passes, 'pass')}; run the case again")
    if rank >= case.world_size and record.status not in ("skipped", "not_run"):
        yield Violation("HB112", f"rank {rank} took part, but the case is for ranks 0 to "
                      f"{case.world_size - 1}; run the case again")


def _most_memory(records: Iterable[tuple[int, Record]]) -> dict[str, dict[str, int | str]] | None:
    most: dict[str, dict[str, int | str]] = defaultdict(dict)
    for rank, record in sorted(records, key=lambda item: item[0]):
        peaks, reported = most[str(rank)], record.detail.get(_MEMORY, {})
        for name, value in reported.items():
            before = peaks.get(name, value)
            peaks[name] = max(value, before) if isinstance(value, int) else value
    return {rank: peaks for rank, peaks in most.items() if peaks} or None
