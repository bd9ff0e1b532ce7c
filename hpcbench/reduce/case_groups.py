"""Groups of cases whose records are read together, and how they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.history import Attempts
from hpcbench.trace.arena import Arena
from hpcbench.trace.schema import SAMPLE_COLUMNS, Record

GROUP_BYTES = 64 << 20
"""Records read at a time; a single case larger than this is a group of its own."""
_RECORD_BYTES = 1024
"""About what a record takes beside its samples."""
RecordsByRank = dict[int, list[Record]]
Group = Sequence[Case]


def case_groups(
    plan: Plan, counts: Mapping[str, int], limit_bytes: int,
) -> Iterator[Group]:
    """Yield the cases in order, in groups whose records fit into ``limit_bytes``.

    ``counts`` says how many samples a rank has of each case.
    """
    group: list[Case] = []
    group_bytes = 0
    for case in plan.cases:
        size_bytes = _records_bytes(case, plan, counts)
        if group and group_bytes + size_bytes > limit_bytes:
            yield group
            group, group_bytes = [], 0
        group.append(case)
        group_bytes += size_bytes
    if group:
        yield group


def case_bytes(plan: Plan, counts: Mapping[str, int]) -> Sequence[int]:
    """Return the size of the records of each case."""
    return [_records_bytes(case, plan, counts) for case in plan.cases]


def _records_bytes(case: Case, plan: Plan, counts: Mapping[str, int]) -> int:
    """Return the size of the records that all ranks have of a case."""
    row_bytes = 8 * len(SAMPLE_COLUMNS) * (1 + case.workload.has_phases)
    rows_bytes = counts.get(case.case_id, 0) * row_bytes
    return (rows_bytes + _RECORD_BYTES * plan.passes * plan.launches) * case.world_size


def sample_counts(plan: Plan, attempts: Attempts) -> Mapping[str, int]:
    """Return the samples that a rank, the first that has the case, has of it over all attempts.

    The plan does not show it, because a case that stops by itself takes far fewer than it may.
    """
    counts: Counter[str] = Counter()
    wanted = {case.case_id for case in plan.cases if case.skip is None}
    for intake in attempts.intakes:
        of_rank: dict[str, int] = {}
        for source in intake.sources.values():
            of_rank = {**source.sample_counts(), **of_rank}
            if wanted <= of_rank.keys():
                break
        counts.update(of_rank)
    return counts


def usual_rows(plan: Plan, counts: Mapping[str, int]) -> int:
    """Return how many samples of all ranks most cases have; 0 of no case."""
    rows = Counter(rows for case in plan.cases
                   if (rows := counts.get(case.case_id, 0) * case.world_size))
    return rows.most_common(1)[0][0] if rows else 0


def read_group(
    group: Group, attempts: Attempts, memory: Arena,
) -> Iterator[tuple[Case, RecordsByRank]]:
    """Yield the cases with the records of every rank that has some.

    Samples lie in ``memory``, which is cleared before. Each trace is opened once for the group.
    """
    memory.clear()
    records: dict[str, RecordsByRank] = {case.case_id: {} for case in group}
    for source in attempts.sources:
        for record in source.records(records.keys(), empty=memory.empty):
            records[record.case_id].setdefault(source.header.rank, []).append(record)
    yield from ((case, records[case.case_id]) for case in group)
