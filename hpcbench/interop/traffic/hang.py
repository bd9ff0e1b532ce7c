"""Which rank is at which collective, in a job that hung when its ranks wrote their records.

From the flight records of the ranks, and from NCCL's RAS where it answered: a thread of NCCL on
each rank that counts calls, and notices ranks that do not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.interop.traffic.calls import RankCall, RankRecord, exact
from hpcbench.texts import from_json
from hpcbench.units import by_value, plural, rank_list, size_text


def hang_lines(records: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line for each group in which ranks wait: where, and which ranks have not called it.

    A rank waits in its oldest call that had not ended. Calls of a group are numbered in its order,
    so a rank whose newest number is lower has not called the one that others wait in.
    """
    by_rank = {one.rank: one for one in records if one.rank is not None}
    for name in dict.fromkeys(name for one in by_rank.values() for name in one.groups):
        waiting = {rank: call for rank, one in by_rank.items()
                   if (call := _waiting_in(one, name)) is not None}
        if waiting:
            yield f"group {name}: {'; '.join(_of_group(name, waiting, by_rank))}"
    if answer := next((one.ras for one in records if one.ras), ""):
        yield from (f"NCCL RAS: {line}" for line in ras_lines(answer))


def _of_group(
    name: str, waiting: Mapping[int, RankCall], by_rank: Mapping[int, RankRecord],
) -> Iterator[str]:
    for call, ranks in by_value({rank: _called(one) for rank, one in waiting.items()}).items():
        several = len(ranks) > 1
        yield f"rank{'s' * several} {rank_list(ranks)} wait{'s' * (not several)} in {call}"
    first = max(call.sequence or 0 for call in waiting.values())
    for rank, one in by_rank.items():
        newest = max((call.sequence or 0 for call in one.calls if call.group == name), default=0)
        if name in one.groups and rank not in waiting and newest < first:
            yield f"rank {rank} has not called it, {_place(one)}"
    members = next((one.groups[name].ranks or () for one in by_rank.values()
                    if name in one.groups), ())
    if absent := [rank for rank in members if rank not in by_rank]:
        yield f"no record of rank {rank_list(absent)}"


def _place(record: RankRecord) -> str:
    """Return the place of a rank that does not wait in the group."""
    if elsewhere := next((call for call in record.calls if call.is_open), None):
        return f"it waits in {_called(elsewhere)} of group {elsewhere.group}"
    if not record.calls:
        return "nor anything else"
    return f"its newest call is {_called(record.calls[-1])} of group {record.calls[-1].group}"


def _waiting_in(record: RankRecord, group: str) -> RankCall | None:
    return next((call for call in record.calls if call.is_open and call.group == group), None)


def _called(call: RankCall) -> str:
    number = "" if call.sequence is None else f" #{call.sequence}"
    size = f" ({size_text(call.bytes)})" if call.bytes else ""
    return f"{call.collective}{number}{size}"


def ras_lines(answer: str) -> Iterator[str]:
    """Yield of each communicator which ranks are missing, and whose counts of calls are behind."""
    try:
        communicators = from_json(answer)["communicators"]
        lines = [line for one in communicators for line in _communicator_lines(one)]
    except (KeyError, TypeError, ValueError, AttributeError):
        yield "its answer has no known form"
        return
    yield from lines or [f"{plural(len(communicators), 'communicator')}, all ranks answer and have "
                         "called as much"]


def _communicator_lines(one: Mapping[str, Any]) -> Iterator[str]:
    name = f"communicator {one['hash']} of {plural(exact(one['size']), 'rank')}"
    for rank in one.get("missing_ranks") or ():
        yield f"{name}: rank {rank['rank']} on {rank.get('host', '?')} does not answer"
    counts = {exact(rank["rank"]): rank.get("collective_counts") or {} for rank in one["ranks"]}
    for called in dict.fromkeys(key for counted in counts.values() for key in counted):
        by_count = by_value({
            rank: exact(counted.get(called, 0)) for rank, counted in counts.items()})
        if len(by_count) > 1:
            most = max(by_count)
            behind = ", ".join(f"rank {rank_list(ranks)} {count}" for count, ranks
                               in sorted(by_count.items()) if count < most)
            yield f"{name}: calls of {called}: {behind}, others {most}"
