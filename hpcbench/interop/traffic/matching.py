"""Ranks' records as one: a call of a group is one call, its ranks' times transfer and waiting.

Calls match by group and sequence number, without clocks. The time of a call's quickest rank is
taken for the transfer; the additional time of others is waiting for ranks that came later."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hpcbench.errors import FileError
from hpcbench.interop.traffic.calls import OWN, RankCall, RankRecord, item_bytes, strided
from hpcbench.operations.collectives import MAX_WORLD_SIZE, collectives
from hpcbench.operations.traffic import CallGroup, Quantiles, RankOrder, Signature, TrafficRecord
from hpcbench.statistics.order import percentiles
from hpcbench.units import grouped, plural, rank_list

_ALIKE = ("all_reduce", "broadcast", "reduce")
"""Collectives of which all ranks have inputs of one size."""
_Key: TypeAlias = tuple[object, ...]
_Member: TypeAlias = tuple[int, int, RankCall]
"""Rank, place in its order, call."""


@dataclass(slots=True)
class _Times:
    """The times of a signature: each call's transfer, and each rank's wait and duration, in ns."""

    count: int = 0
    transfer: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Columns:
    """The signature, number and wait in ns of each call of a rank."""

    signature: list[int]
    sequence: list[int]
    wait: list[int | None]


def matched(
    records: Iterable[RankRecord], names: Sequence[str], skip_first: int = 0,
) -> TrafficRecord:
    """Return the traffic of a job, without the calls that are among the first ``skip_first`` of any
    rank. Raises FileError without a call, or for mixed programs."""
    by_rank, notes = _one_a_rank(records)
    source = tuple(dict.fromkeys(_program(one) for one in by_rank.values()))
    notes += _mixed(by_rank)
    if not any(one.calls for one in by_rank.values()):
        raise FileError(f"{', '.join(names[:3])}: no call of a collective is recorded")
    groups, group_of = _groups(by_rank)
    size = max([*(one.world_size or 0 for one in by_rank.values()), max(by_rank) + 1,
                *(max(group.ranks) + 1 for group in groups)])
    if size > MAX_WORLD_SIZE or any(min(group.ranks) < 0 for group in groups):
        raise FileError(f"{', '.join(names[:3])}: ranks up to {size - 1}, of 0 to "
                        f"{MAX_WORLD_SIZE - 1} at most: the records are damaged")
    if skip_first:
        by_rank, note = _without_first(by_rank, group_of, skip_first)
        notes.append(note)
    columns = _columns(by_rank)
    signatures = dict[Signature, int]()
    times = list[_Times]()
    differing = Counter[str]()
    placed = {rank: [_placed(call, groups[group_of[rank, call.group]].ranks, rank)
                     for call in one.calls] for rank, one in by_rank.items()}
    by_rank = {rank: replace(one, calls=placed[rank]) for rank, one in by_rank.items()}
    for key, members in _slots(by_rank, group_of, columns).items():
        for part in _agreeing(members, differing):
            form = _signature(part, groups, key[0])
            index = signatures.setdefault(form, len(signatures))
            if index == len(times):
                times.append(_Times())
            _take(times[index], part, columns, index)
    missing = tuple(rank for rank in range(size) if rank not in by_rank)
    notes += [f"{what}: {plural(count, 'call')} not matched" for what, count in differing.items()]
    if alone := sum(call.sequence is None for one in by_rank.values() if one.dropped
                    for call in one.calls):
        notes.append(f"{plural(alone, 'call')} without a number, of ranks that lost others, not "
                     "matched: each counts for its rank alone")
    timed = tuple(_with_times(form, times[index]) for form, index in signatures.items())
    notes += [*_unknown(timed, groups, missing), *_unproved(timed, groups)]
    return TrafficRecord(
        source, tuple(dict.fromkeys(names)), size, missing, tuple(groups), timed,
        tuple(_order(rank, by_rank[rank], columns[rank]) for rank in sorted(by_rank)),
        tuple(dict.fromkeys(notes)))


def _columns(by_rank: Mapping[int, RankRecord]) -> dict[int, _Columns]:
    return {rank: _Columns([0] * len(one.calls), [0] * len(one.calls), [None] * len(one.calls))
            for rank, one in by_rank.items()}


def _without_first(
    by_rank: Mapping[int, RankRecord], group_of: Mapping[tuple[int, str], int], skip_first: int,
) -> tuple[dict[int, RankRecord], str]:
    """Return the records without calls that are among the first of any of their ranks, and a note
    on them. Raises FileError where none is left.

    A call goes on all its ranks, as a part of it would match no other or the wrong one."""
    gone = defaultdict[int, set[int]](set)
    n_calls, time_ns = 0, 0
    for members in _slots(by_rank, group_of, _columns(by_rank)).values():
        if any(place < skip_first for _, place, _ in members):
            n_calls += 1
            time_ns += sum(call.duration_ns or 0 for _, _, call in members)
            for rank, place, _ in members:
                gone[rank].add(place)
    left = {rank: replace(one, calls=[call for place, call in enumerate(one.calls)
                                      if place not in gone[rank]])
            for rank, one in by_rank.items()}
    if not any(one.calls for one in left.values()):
        raise FileError(f"--skip-first {skip_first}: no call is left; the rank with most has "
                        f"{max(len(one.calls) for one in by_rank.values())}")
    all_ns = sum(call.duration_ns or 0 for one in by_rank.values() for call in one.calls)
    share = f", {100 * time_ns / all_ns:.0f} % of the recorded time" if all_ns else ""
    return left, (f"left out: the first {plural(n_calls, 'call')} (--skip-first {skip_first})"
                  f"{share}")


def _one_a_rank(records: Iterable[RankRecord]) -> tuple[dict[int, RankRecord], list[str]]:
    """Return the record of each rank: of several the one with the newest call."""
    of_rank = defaultdict[int, list[RankRecord]](list)
    notes = []
    for record in records:
        of_rank[record.rank or 0].append(record)
        notes += record.notes
    for rank, several in of_rank.items():
        several.sort(key=lambda one: (_newest(one), len(one.calls)), reverse=True)
        if len(several) > 1:
            notes.append(f"rank {rank} has {len(several)} records: {several[0].file} has the "
                         f"newest call and is used, "
                         f"{', '.join(other.file for other in several[1:])} is not")
    return {rank: several[0] for rank, several in sorted(of_rank.items())}, notes


def _newest(record: RankRecord) -> int:
    return max((call.start_ns or 0 for call in record.calls), default=0)


def _program(record: RankRecord) -> str:
    return f"{record.program} {record.version}".rstrip()


def _mixed(by_rank: Mapping[int, RankRecord]) -> list[str]:
    """Return a note on versions that differ. Raises FileError for programs that do."""
    versions = defaultdict[str, list[int]](list)
    for rank, record in by_rank.items():
        versions[_program(record)].append(rank)
    programs = {one.program for one in by_rank.values()}
    if len(programs) > 1:
        raise FileError(f"records of different programs: {' and '.join(sorted(programs))}; "
                        "import those of one at a time, each to its own file")
    if len(versions) < 2:
        return []
    return ["versions differ: " + "; ".join(
        f"{name} on rank {rank_list(ranks)}" for name, ranks in versions.items())]


def _groups(
    by_rank: Mapping[int, RankRecord],
) -> tuple[list[CallGroup], dict[tuple[int, str], int]]:
    """Return the groups, and the index of each rank's group of a name."""
    listed = defaultdict[str, list[tuple[int, ...]]](list)
    callers = defaultdict[str, list[int]](list)
    for rank, record in by_rank.items():
        for name, own in record.groups.items():
            ranks = own.ranks
            if ranks is None and own.size and own.size == record.world_size:
                ranks = strided(0, 1, own.size)
            if ranks and rank in ranks:
                listed[name].append(ranks)
            else:
                callers[name].append(rank)
    groups, index = dict[tuple[str, tuple[int, ...]], CallGroup](), dict[tuple[int, str], int]()
    for rank, record in by_rank.items():
        for name, own in record.groups.items():
            ranks = next((ranks for ranks in listed[name] if rank in ranks), None)
            members = ranks or tuple(callers[name])
            group = CallGroup(name, own.description, members, assumed=ranks is None)
            groups.setdefault((name, members), group)
            index[rank, name] = list(groups).index((name, members))
    return list(groups.values()), index


def _placed(call: RankCall, ranks: Sequence[int], rank: int) -> RankCall:
    """Return a call with this rank's place in the group for OWN, and its part of all ``parts``."""
    if call.parts:
        own = call.parts[ranks.index(rank)] if len(call.parts) == len(ranks) else None
        return (replace(call, elements_in=own) if call.collective == "all_gather"
                else replace(call, elements_out=own))
    if call.pair is None or OWN not in call.pair:
        return call
    sender, receiver = (ranks.index(rank) if one == OWN else one for one in call.pair)
    return replace(call, pair=(sender, receiver))


def _slots(
    by_rank: Mapping[int, RankRecord], group_of: Mapping[tuple[int, str], int],
    columns: Mapping[int, _Columns],
) -> dict[_Key, list[_Member]]:
    """Return the ranks' calls by their common group, kind and number."""
    slots = defaultdict[_Key, list[_Member]](list)
    for rank, record in by_rank.items():
        counts = Counter[_Key]()
        for place, call in enumerate(record.calls):
            group = group_of[rank, call.group]
            number = call.pair if call.sequence is None else call.sequence
            kind: _Key = (group, call.backend, number)
            nth = counts[kind]
            counts[kind] += 1
            counted = call.sequence is None
            key = (group, counted, *kind[1:], nth, rank if counted and record.dropped else None)
            columns[rank].sequence[place] = nth if call.sequence is None else call.sequence
            slots[key].append((rank, place, call))
    return slots


def _agreeing(
    members: Sequence[_Member], differing: Counter[str],
) -> Iterable[Sequence[_Member]]:
    """Return the members by form: a single part if all ranks agree on the call."""
    forms = defaultdict[_Key, list[_Member]](list)
    for member in members:
        call = member[2]
        forms[call.collective, call.dtype,
              call.elements_in if call.collective in _ALIKE else None].append(member)
    if len(forms) > 1:
        differing["; ".join(sorted(
            f"{form[0]} of {form[2] or '?'} {form[1] or 'elements'} on rank "
            f"{rank_list(one[0] for one in part)}" for form, part in forms.items()))] += 1
    return forms.values()


def _signature(part: Sequence[_Member], groups: Sequence[CallGroup], group: object) -> Signature:
    """Return the form of a call, without its times and count."""
    index = int(str(group))
    ranks = groups[index].ranks
    by_rank = {rank: call for rank, _, call in part}
    first = part[0][2]
    calls = [by_rank.get(rank) for rank in ranks]
    made = [call for call in calls if call is not None]
    n_in = [None if call is None else call.elements_in for call in calls]
    n_out = [None if call is None else call.elements_out for call in calls]
    size_bytes = max(call.bytes for call in made)
    if first.collective == "all_gather" and first.elements_in and all(
            call.elements_in == first.elements_in and (
                call.backend == "gloo" or call.elements_out == call.elements_in)
            for call in made):
        # torch records one of a list of results on gloo, or all of the first of several tensors
        whole = len(ranks) * first.elements_in
        n_out = [count and whole for count in n_out]
        size_bytes = whole * item_bytes(first.dtype)
    if parts := next((call.parts for call in made if len(call.parts) == len(ranks)), ()):
        if first.collective == "all_gather":
            n_in = [*parts]
        else:
            n_out = [*parts]
    return Signature(
        collective=first.collective, dtype=first.dtype,
        operator=next((call.operator for call in made if call.operator), None),
        root=_root(first.collective, made, n_in, n_out), elements_in=_short(n_in),
        elements_out=_short(n_out),
        splits_in=_rows([call.splits_in if call else None for call in calls]),
        splits_out=_rows([call.splits_out if call else None for call in calls]), group=index,
        count=0,
        bytes=size_bytes, backend=first.backend, pair=first.pair)


def _root(
    collective: str, calls: Sequence[RankCall], n_in: Sequence[int | None],
    n_out: Sequence[int | None],
) -> int | None:
    """Return the root as a source names it, else the one rank with a result, or with an input."""
    named = next((call.root for call in calls if call.root is not None), None)
    counts = {"gather": n_out, "scatter": n_in}.get(collective)
    if named is not None or counts is None or None in counts:
        return named
    roots = [position for position, count in enumerate(counts) if count]
    return roots[0] if len(roots) == 1 else None


def _short(counts: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return one number for ranks that have the same; those without a record are taken so, too."""
    different = {count for count in counts if count is not None}
    return tuple(counts) if len(different) > 1 else (different.pop() if different else None,)


def _rows(rows: Sequence[tuple[int, ...] | None]) -> tuple[tuple[int, ...] | None, ...] | None:
    """Return what each rank sends to each, None of a rank of which it is not known; None: even."""
    given = [row for row in rows if row is not None]
    whole = all(len(row) == len(rows) for row in given)
    if not given or (whole and len({count for row in given for count in row}) == 1):
        return None
    return tuple(row if row and len(row) == len(rows) else None for row in rows)


def _take(
    times: _Times, part: Sequence[_Member], columns: Mapping[int, _Columns], index: int,
) -> None:
    """Add a call to the times of its signature, and to its ranks' columns."""
    durations = [call.duration_ns for _, _, call in part if call.duration_ns is not None]
    times.count += 1
    times.duration += durations
    transfer = min(durations) if len(durations) > 1 else None
    if transfer is not None:
        times.transfer.append(transfer)
        times.wait += [duration - transfer for duration in durations]
    for rank, place, call in part:
        columns[rank].signature[place] = index
        if transfer is not None and call.duration_ns is not None:
            columns[rank].wait[place] = call.duration_ns - transfer


def _with_times(form: Signature, times: _Times) -> Signature:
    return replace(form, count=times.count, transfer=_quantiles(times.transfer),
                   wait=_quantiles(times.wait), duration=_quantiles(times.duration))


def _quantiles(values: Sequence[int]) -> Quantiles | None:
    if not values:
        return None
    import numpy as np

    quantiles = percentiles(np.array(values, dtype=np.float64), (0, 25, 50, 75, 95, 100))
    return Quantiles(len(values), *map(round, quantiles))


def _order(rank: int, record: RankRecord, columns: _Columns) -> RankOrder:
    gaps: list[int | None] = []
    before: int | None = None
    for call in record.calls:
        is_known = call.start_ns is not None and before is not None and not call.after_loss
        gaps.append((call.start_ns or 0) - (before or 0) if is_known else None)
        before = call.start_ns
    return RankOrder(
        rank, tuple(columns.signature), tuple(columns.sequence), tuple(gaps),
        tuple(call.duration_ns for call in record.calls), tuple(columns.wait), record.dropped,
        sum(call.is_open for call in record.calls))


def _unknown(
    forms: Iterable[Signature], groups: Sequence[CallGroup], missing: Sequence[int],
) -> list[str]:
    """Return notes on facts that no source has, and on assumptions."""
    unknown = []
    specs = [(one, spec) for one in forms if (spec := collectives().get(one.collective))]
    reducing = {one.collective for one, spec in specs if spec.has_op and one.operator is None}
    rooted = {one.collective for one, spec in specs if spec.has_root and one.root is None}
    if reducing:
        unknown.append(f"the operator of {', '.join(sorted(reducing))} is not recorded")
    if rooted:
        unknown.append(f"the root of {', '.join(sorted(rooted))} is not recorded")
    if any(one.collective == "all_to_all" and one.splits_in is None for one in forms):
        unknown.append("splits of all_to_all are not recorded, or even")
    if assumed := [group.name for group in groups if group.assumed]:
        unknown.append(f"the ranks of {plural(len(assumed), 'group')} are not listed: those that "
                       "called something are taken for all")
    if missing:
        unknown.append(f"rank {rank_list(missing)} has no record: its calls are taken to be like "
                       "the others'")
    return unknown


def _unproved(forms: Iterable[Signature], groups: Sequence[CallGroup]) -> Iterator[str]:
    """Yield notes on calls whose bytes are 0 for want of a size, or whose sizes disagree."""
    for dtype, calls in grouped((one.dtype, one.count) for one in forms if not one.bytes and any(
            (*one.elements_in, *one.elements_out))).items():
        yield (f"{plural(sum(calls), 'call')} of type {dtype or 'unknown'}, whose elements have "
               "no known size, count 0 bytes")
    for collective, calls in grouped((one.collective, one.count) for one in forms
                                     if not _agree(one, len(groups[one.group].ranks))).items():
        yield (f"{plural(sum(calls), 'call')} of {collective}: the recorded whole is not the sum "
               "of the ranks' parts, so sizes are not proved")


def _agree(signature: Signature, ranks: int) -> bool:
    whole = {"all_gather": signature.elements_out,
             "reduce_scatter": signature.elements_in}.get(signature.collective)
    if whole is None or None in whole or None in signature.parts:
        return True
    parts = [part or 0 for part in signature.parts]
    return {*whole} == {sum(parts) * (ranks if len(parts) == 1 else 1)}
