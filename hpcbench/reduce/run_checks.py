"""Checks of a run as a whole: its cases, their order, and what the machine did beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from hpcbench.plan.case import Case, Plan
from hpcbench.plan.order import Turn, generations, shuffled, turns
from hpcbench.reduce.conclusions import MOST_LATE
from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.reduce.stack import PassKey
from hpcbench.statistics.order import MIN_N_P5_P95
from hpcbench.statistics.standing_out import standing
from hpcbench.trace.schema import NOISE_NOTE, Header, Noise, Record
from hpcbench.trace.source import TEARDOWN_NOTE, TraceSource, noted
from hpcbench.trace.typed import from_values
from hpcbench.units import grouped, plural

NOISY_RANK = 0.005
"""A rank is noisy from 0.5 % stolen time on: half of the 1 % to which the median of a case is
measured by default (measure.precision). Chosen here; no standard says how much is too much."""
NOISY_RATIO = 3.0
"""... and only if it is more than so many times the median of the other ranks: two loops on one
idle machine can differ by a factor of two, and what all ranks suffer is the system's."""
NOISE_ALARMS = 0.001
"""... and only if equal ranks differ so in at most that share of runs: a tenth of what comparisons
of cases may take (`reduce.comparison`), because this one is made before all of them."""
NOISY_SYSTEM = 0.01
"""The whole system is noisy if every rank loses more than 1 %, all of measure.precision."""


def check_totals(plan: Plan, cases: Sequence[CaseResult]) -> Iterator[Finding]:
    """Yield HB140 unless every planned case has one outcome, and each id is planned once."""
    planned = Counter(case.case_id for case in plan.cases)
    reported = Counter(item.case.case_id for item in cases)
    lost = sorted((planned - reported) + (reported - planned))
    twice = sorted(case_id for case_id, count in planned.items() if count > 1)
    if lost or twice:
        yield Finding("HB140", "run", f"{len(plan.cases)} cases planned, {len(cases)} accounted "
                      f"for; lost or added: {lost}, planned twice: {twice}: plan.json was changed")


def sample_findings(
    cases: Sequence[CaseResult], headers: Sequence[Header],
) -> Iterator[Finding]:
    """Yield HB134 if cases have too few samples for p5 and p95, HB125 if ranks began many late."""
    few = [item for item in cases if item.statistics and item.statistics.n < MIN_N_P5_P95]
    if few:
        yield Finding("HB134", "note", f"{plural(len(few), 'case')} with fewer than {MIN_N_P5_P95} "
                      f"timed iterations, first {few[0].case.label}: no p5 or p95 is shown for "
                      "them; raise measure.iterations, or measure.budget_s where it is auto")
    shares = [(item.timing.n_late / item.statistics.n, item) for item in cases
              if item.timing and item.statistics and "late_starts" in item.timing.quality]
    if shares:
        share, worst = max(shares, key=lambda pair: pair[0])
        yield Finding("HB125", "note", f"{plural(len(shares), 'case')}: some rank "
                      f"began over 10 us late in more than {100 * MOST_LATE:.0f} % of the samples, "
                      f"and that moves the median by more than its interval; most often in "
                      f"{worst.case.label} ({100 * share:.0f} %){_crowding(headers)}")


@dataclass(slots=True)
class ExecutedOrder:
    """Where rank 0 ran each case: its position among the cases of its workers.

    ``skipped`` are ids of the cases that this machine could not run.
    """

    positions: dict[tuple[str, PassKey], int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    def add(self, records: Iterable[Record]) -> None:
        """Take in records of rank 0, a member of every case; later attempts have no position."""
        for record in records:
            if (record.begin_ns, record.end_ns) == (0, 0):
                self.skipped.add(record.case_id)
            elif record.position >= 0 and record.attempt == 0:
                key = PassKey(record.launch, record.pass_index)
                self.positions[record.case_id, key] = record.position

    def update(self, other: ExecutedOrder) -> None:
        """Take in what another one knows of other cases."""
        self.positions.update(other.positions)
        self.skipped.update(other.skipped)


def order_findings(plan: Plan, executed: ExecutedOrder) -> Iterator[Finding]:
    """Yield HB135 if cases were not run in the order that the seed says.

    A note: the order guards against drift of the machine that meets some cases only; each time is
    right all the same. Cases that were not run or have no position (schema version 1) say nothing.
    """
    measure = plan.config.get("measure", {})
    if not executed.positions or "seed" not in measure:
        return
    out_of_order = [*_misplaced(plan, executed, measure)]
    if out_of_order:
        turn, label, position, expected = out_of_order[0]
        yield Finding("HB135", "note", f"{len(out_of_order)} times a case was not run in its "
                      f"place, first {label} in launch {turn.launch}, pass {turn.pass_index}: as "
                      f"number {position} of its workers instead of {expected}: drift of the "
                      "machine may meet some cases only; run again, or set measure.order=planned "
                      "to say so")


def _misplaced(
    plan: Plan, executed: ExecutedOrder, measure: Mapping[str, Any]
) -> Iterator[tuple[Turn, str, int, int]]:
    """Yield (turn, label, position, expected position) of every case that was run out of order."""
    todo = generations(case for case in plan.cases if case.case_id not in executed.skipped)
    for turn, generation in product(turns(plan.launches, plan.passes), todo):
        key = PassKey(turn.launch, turn.pass_index)
        order = shuffled(generation.cases, measure["order"], measure["seed"], turn.number)
        for expected, case in enumerate(order):
            position = executed.positions.get((case.case_id, key), expected)
            if position != expected:
                yield turn, case.label, position, expected


def noise_by_rank(sources: Mapping[int, TraceSource]) -> dict[int, Noise]:
    """Return each rank's first noise check, of the ranks that made one."""
    notes = {rank: noted(source, NOISE_NOTE) for rank, source in sources.items()}
    return {rank: from_values(Noise, data[0]["detours"])
            for rank, data in notes.items() if data and data[0]}


def noise_findings(by_rank: Mapping[int, Noise], headers: Sequence[Header]) -> Iterator[Finding]:
    """Yield a note for each noisy rank (HB143), and one if the whole system is noisy (HB144).

    What ranks of one job take from one another, because they share cores, is no other process's.
    """
    of = {header.rank: header for header in headers}
    crowded = [group for group in sharing_ranks([of[rank] for rank in by_rank if rank in of])
               if len(group.ranks) > group.cores]
    lost = {**by_rank, **{rank: noise for group in crowded
                          for rank, noise in _taken_by_others(group, by_rank).items()}}
    for rank, noise in sorted(lost.items()):
        others = [other.stolen_share for number, other in lost.items() if number != rank]
        usual = float(np.median(others)) if others else None
        if (usual is not None and noise.stolen_share > max(NOISY_RATIO * usual, NOISY_RANK)
                and _stands_out(rank, lost)):
            where = f" on {of[rank].hostname}" if rank in of else ""
            yield Finding("HB143", "note", f"rank {rank}{where}: other processes "
                          f"used {_percent(noise.stolen_share)} of its core before the sweep "
                          f"({noise.n_detours} times, longest {noise.longest_ns / 1000:g} us), of "
                          f"the other ranks' {_percent(usual)}: every collective waits for it; see "
                          "what else runs there, or pin the ranks to other cores")
    shares = [noise.stolen_share for noise in by_rank.values()]
    if shares and min(shares) > NOISY_SYSTEM:
        waited = [by_rank[rank].stolen_share for group in crowded for rank in group.ranks]
        taken = [noise.stolen_share for noise in lost.values()]
        who = [f"ranks of this job waited {_from_to(waited)} of the time before the sweep for "
               "cores that they share" if waited else "",
               f"other processes used about {_from_to(taken)} of each rank's core before the sweep"
               if max(taken) > NOISY_SYSTEM else ""]
        yield Finding("HB144", "note", f"{', and '.join(filter(None, who))}: times have long tails"
                      f"{_crowding(headers)}")


def _taken_by_others(
    group: SharingRanks, by_rank: Mapping[int, Noise],
) -> dict[int, Noise]:
    """Return what others than the job had of the cores that its ranks share, for each of them.

    Ranks that are more than their cores keep all of these busy; what they did not get of them,
    others got. Which of the ranks lost it cannot be told: their scheduler need not be fair.
    """
    noises = [by_rank[rank] for rank in group.ranks]

    def taken(shares: Iterable[float]) -> float:
        return max(0.0, 1 - sum(1 - share for share in shares) / group.cores)

    parts = {len(noise.part_shares) for noise in noises}
    each = zip(*(noise.part_shares for noise in noises), strict=True) if len(parts) == 1 else ()
    share, of_parts = taken(noise.stolen_share for noise in noises), tuple(map(taken, each))
    return {rank: replace(by_rank[rank], stolen_share=share, part_shares=of_parts)
            for rank in group.ranks}


def _stands_out(rank: int, by_rank: Mapping[int, Noise]) -> bool:
    """Return whether a rank is surely noisier than any other; not of traces without parts."""
    shares = [noise.part_shares for noise in by_rank.values()]
    if min(map(len, shares)) < 2 or len({*map(len, shares)}) > 1:
        return False
    found = standing(np.array(shares), 0.0)
    return [*by_rank][found.row] == rank and found.chance <= NOISE_ALARMS


@dataclass(frozen=True, slots=True)
class SharingRanks:
    """Ranks of a node that may run on the same cores, and how many of these they have together.

    ``cores`` is a fraction where a cgroup grants less than all of them.
    """

    hostname: str
    ranks: tuple[int, ...]
    cores: float


def sharing_ranks(headers: Iterable[Header]) -> list[SharingRanks]:
    """Return the ranks that share cores, by their masks and their cgroup's quota of each node.

    Ranks of which no mask is known are left out.
    """
    found = []
    for same in grouped((header.node, header) for header in headers).values():
        process = {header.rank: header.environment.get("process", {}) for header in same}
        joined: list[tuple[set[int], list[int]]] = []
        for rank, told in process.items():
            mask = set(told.get("affinity", ()))
            near = [group for group in joined if group[0] & mask]
            joined = [*(group for group in joined if not group[0] & mask),
                      (mask.union(*(cores for cores, _ in near)),
                       [*(other for _, ranks in near for other in ranks), rank])]
        joined = [group for group in joined if group[0]]
        quotas = [quota for told in process.values()
                  if isinstance(quota := told.get("cgroup", {}).get("cpus"), (int, float))]
        groups = [SharingRanks(same[0].hostname, tuple(sorted(ranks)), len(cores))
                  for cores, ranks in joined]
        wanted = sum(min(group.cores, len(group.ranks)) for group in groups)
        if quotas and min(quotas) < wanted:  # then it is the quota that all of them share
            groups = [SharingRanks(same[0].hostname, tuple(process), min(quotas))]
        found += groups
    return found


def _crowding(headers: Sequence[Header]) -> str:
    """Say how many ranks share how many cores on the fullest node, and what to do."""
    groups = sharing_ranks(headers)
    if not groups:
        return "; see what else runs there"
    fullest = max(groups, key=lambda group: len(group.ranks) / group.cores)
    n_ranks, host = len(fullest.ranks), fullest.hostname
    if n_ranks > fullest.cores:
        cores = f"{fullest.cores:.3g} {'core' if fullest.cores == 1 else 'cores'}"
        return f"; on {host} {plural(n_ranks, 'rank')} share {cores}: start fewer ranks a node"
    return f"; each rank on {host} has a core of its own: see what else runs there"


def _from_to(shares: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((_percent(min(shares)), _percent(max(shares)))))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def other_backend(
    backend: str, choices: Mapping[str, str], headers: Sequence[Header],
) -> str | None:
    """Return what carried the case instead of its backend; None if no log shows any.

    ``choices`` is `trace.library_choices.LibraryChoices.to_json`.
    """
    used = choices["transport"].split(" + ")
    if layer := backend.partition("ucc/tl/")[2]:
        layers = [text for text in used if "TL_" in text]
        if layers and not any(f"TL_{layer.upper()}" in text for text in layers):
            return f"{backend} was asked for, UCC used {', '.join(layers)}"
    if backend == "nccl" and any(text.startswith("NET/Socket") for text in used):
        ports = sorted({name for header in headers for name, port in header.environment.get(
            "network", {}).get("infiniband", {}).items() if "ACTIVE" in str(port.get("state"))})
        if ports:
            return (f"NCCL used NET/Socket, although InfiniBand or RoCE is up ({', '.join(ports)}"
                    "): a fallback; NCCL_DEBUG=INFO tells why")
    return None


def backend_findings(
    choices_by_case: Iterable[tuple[Case, Mapping[str, str]]], headers: Sequence[Header],
) -> Iterator[Finding]:
    """Yield one note (HB131) for each way in which cases did not use the requested backend."""
    labels = grouped((other_backend(case.backend, choices, headers), case.label)
                     for case, choices in choices_by_case)
    for text, cases in labels.items():
        if text is not None:
            yield Finding("HB131", "note", f"{text} ({plural(len(cases), 'case')}, "
                          f"first {cases[0]}): their times are of "
                          "what was used")


def teardown_findings(sources: Iterable[TraceSource]) -> Iterator[Finding]:
    """Yield a note for each way in which workers of a rank ended while leaving (HB152)."""
    crashes = Counter((source.header.rank, source.header.hostname, str(data.get("ended")))
                      for source in sources for data in noted(source, TEARDOWN_NOTE))
    for (rank, hostname, ended), times in sorted(crashes.items()):
        again = f" ({times} times)" if times > 1 else ""
        yield Finding("HB152", "note", f"rank {rank} on {hostname}: {ended} when it left the "
                      f"process group{again}: its cases had been recorded before, and stand; see "
                      "that rank's libraries")
