"""One pass of one case: its status and samples from the records of all member ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcbench.plan.case import Case
from hpcbench.plan.order import turns
from hpcbench.reduce.checks import AGAIN, Problem, check_causality, check_records, check_samples
from hpcbench.reduce.clocks import RankClocks
from hpcbench.reduce.fold import Edges, edges
from hpcbench.reduce.replicas import check_replicas
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Pass, PassKey, is_timed, stack_samples
from hpcbench.trace.arena import Empty
from hpcbench.trace.schema import Record
from hpcbench.units import by_value, on_ranks, plural, rank_list

WORST_FIRST = ("timeout", "failed", "wrong", "not_run", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at the run: a run that is resumed has several, maybe on other machines.

    ``present`` are the ranks with a usable trace, ``stopped`` those of them that never came to
    their end, and lost nothing before it. ``nodes`` maps each to the machine it ran on.
    """

    present: frozenset[int]
    stopped: frozenset[int]
    clocks: RankClocks
    nodes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Context:
    """What a case is judged against; the newest of the attempts is the last.

    ``hardware`` is the config's section, which may declare peaks; ``clock_resolution_ns`` that of
    the coarsest of the ranks' clocks, 0 where none was recorded. ``inline``: workers are the
    ranks' own processes, the same ones in all launches.
    """

    launches: int
    passes: int
    attempts: tuple[Attempt, ...]
    hardware: Mapping[str, Any]
    clock_resolution_ns: float
    inline: bool = False

    def attempt_of(self, records: Iterable[Record]) -> Attempt:
        """Return the attempt that these records are of; of none the newest."""
        number = max((record.attempt for record in records), default=len(self.attempts))
        return self.attempts[min(number, len(self.attempts) - 1)]

    @property
    def keys(self) -> list[PassKey]:
        """Return every planned pass of every planned launch, in order."""
        return [PassKey(turn.launch, turn.pass_index) for turn in turns(self.launches, self.passes)]


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """The status of one pass, its reason, and its problems."""

    status: str
    reason: str
    blamed_rank: int | None = None
    problems: tuple[Problem, ...] = ()
    records: Pass = field(default_factory=dict)
    samples: CaseSamples | None = None
    """Those of ``records``, where their stamps were checked."""
    common: Edges | None = None
    """Those on the global clock, where it is known."""


def judge_pass(
    case: Case, key: PassKey, by_rank: Pass, context: Context, empty: Empty
) -> PassOutcome:
    """Return what the members' records of one pass add up to; ``empty`` makes arrays."""
    records = {rank: by_rank[rank] for rank in range(case.world_size) if rank in by_rank}
    attempt = context.attempt_of(records.values())
    if case.skip is not None and not records:
        return PassOutcome("skipped", case.skip)
    if not records:
        lost = set(range(case.world_size)) - attempt.present
        return PassOutcome("not_run", f"no record of it: the trace of rank {rank_list(lost)} is "
                           "lost" if lost else "no rank recorded it: the run ended before it")
    status, problems = _agreed_status(records)
    blamed, blame_notes = _agreed_blame(records, status)
    absent = [rank for rank in range(case.world_size) if rank not in records]
    missing = list(_missing(absent, attempt))
    outcome = PassOutcome(status, _reason(records, status, blamed), blamed, records=records)
    if status == "ok" and absent and set(absent) <= attempt.stopped:
        return replace(outcome, status="not_run", blamed_rank=None, problems=_notes(missing),
                       reason=f"the run ended before rank {rank_list(absent)} recorded it")
    if status == "ok":
        samples = stack_samples({key: records}, empty)
        problems += missing if problems else [*missing, *check_records(case, records, samples)]
        if samples is not None and not problems:
            problems += check_samples(samples, records)
        noted = (*problems, *check_replicas(records))
        outcome = replace(outcome, problems=noted, samples=samples)
        return outcome if problems else _on_global_clock(case, outcome, attempt.clocks)
    if status in ("timeout", "failed", "wrong"):
        problems += _notes([*blame_notes, *missing])
    return replace(outcome, problems=tuple(problems))


def _on_global_clock(case: Case, outcome: PassOutcome, clocks: RankClocks) -> PassOutcome:
    """Add the stamps of a sound pass on the global clock, and what is wrong with them."""
    samples = outcome.samples
    stamps = None if samples is None else clocks.stamps(samples)
    if samples is None or stamps is None:
        return outcome
    timed = is_timed(samples)
    common = edges(stamps, case.workload.groups, case.workload.group_stride,
                   each=bool(samples.phases),
                   timed=timed if timed.any() else None)
    found = check_causality(case, samples, stamps, common, clocks)
    return replace(outcome, common=common, problems=(*outcome.problems, *found))


def _notes(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return what is wrong with a pass that is not ok anyway."""
    return tuple(replace(problem, rejects=False) for problem in problems)


def _agreed_status(records: Pass) -> tuple[str, list[Problem]]:
    """Return the worst status of any rank. HB114 if they differ, HB126 if a check failed."""
    groups = by_value({rank: record.status for rank, record in records.items()})
    worst = min(groups, key=WORST_FIRST.index)
    problems: list[Problem] = []
    if len(groups) > 1:
        problems.append(Problem("HB114", f"the ranks disagree: {on_ranks(groups)}: the worst one "
                                f"holds; {AGAIN}"))
        worst = "ok" if worst == "skipped" else worst
    wrong = {rank: record.n_wrong for rank, record in records.items() if record.n_wrong > 0}
    if wrong and worst not in ("timeout", "failed"):
        worst = "wrong"
        first = min(wrong)
        problems.append(Problem("HB126", f"rank {rank_list(wrong)}: "
                                f"{plural(sum(wrong.values()), 'wrong element')}, {wrong[first]} "
                                f"of them on rank {first}: the time is not used; see the case's "
                                "detail"))
    return worst, problems


def _agreed_blame(records: Pass, status: str) -> tuple[int | None, list[Problem]]:
    blamed = [record.blamed_rank for record in records.values()
              if record.status == status and record.blamed_rank >= 0]
    notes = [] if len(set(blamed)) < 2 else [
        Problem("HB114", f"the ranks blame different ranks: {rank_list(set(blamed))}; the lowest "
                "rank's word is kept")]
    return (blamed[0] if blamed else None), notes


def _reason(records: Pass, status: str, blamed: int | None) -> str:
    """Return the blamed rank's reason, or that of the lowest rank with this status.

    Ranks that blame another one are not used: a rank that is cut off may blame the others.
    """
    reasons = {rank: record.reason for rank, record in records.items()
               if record.status == status and (blamed is None or record.blamed_rank == blamed)}
    if status == "wrong" and not any(reasons.values()):
        total = sum(record.n_wrong for record in records.values() if record.n_wrong > 0)
        return plural(total, 'wrong element')
    own = reasons.get(blamed, "") if blamed is not None else ""
    return own or next((reason for reason in reasons.values() if reason), "")


def _missing(absent: Sequence[int], attempt: Attempt) -> Iterator[Problem]:
    lost = [rank for rank in absent if rank not in attempt.present]
    silent = [rank for rank in absent if rank in attempt.present]
    if lost:
        yield Problem("HB112", f"no trace of rank {rank_list(lost)}: nothing is averaged "
                      "without it; bring the trace back or run the case again", trace_missing=True)
    if silent:
        yield Problem("HB112", f"no record of it on rank {rank_list(silent)}: nothing is averaged "
                      "without it; run the case again")
