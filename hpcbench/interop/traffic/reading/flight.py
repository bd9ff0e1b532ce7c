"""Flight records of torch as JSON: of `hpcbench record`, or of torch's own ``dump_json``.

Entries have order, sizes, types and groups, and durations where NCCL was timed, those of grouped
calls in another entry (`profiling.flight`). They have neither operator nor root. torch records no
messages of gloo, which `hpcbench record` notes itself, and none of its durations: those of
``record --durations`` come from torch's profiler."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcbench.errors import NOT_AS_WRITTEN, FileError
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import whole, whole_or_none
from hpcbench.interop.traffic import calls as recorded
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.profiling.flight import END, joined
from hpcbench.units import grouped

PROGRAM = "torch flight recorder"
FORMAT = "hpcbench.record"
AT_START, AT_EXIT = "start", "exit"
"""When a rank wrote; anything else is the signal that asked for the record meanwhile."""
_KNOWN = ((2, 4), (2, 10))
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_LOST = "after_loss"
_PARTS_OF = {"_broadcast_oop": "all_gather", "_reduce_oop": "reduce_scatter"}
"""What torch issues for each rank's part of a collective with parts of different sizes."""
_PAIR = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


def is_record(data: Mapping[str, Any]) -> bool:
    return data.get("format") == FORMAT or ("entries" in data and "version" in data)


def read(file: ForeignFile, data: Mapping[str, Any]) -> recorded.RankRecord:
    """Return the record of a rank. Raises FileError for another version or without its keys.

    Entries without their keys are left out and counted."""
    own = data if data.get("format") == FORMAT else {}
    if own.get("reason") == AT_START:
        raise FileError(f"{file.name}: the record of this rank is lost: a signal, exec or a "
                        "library ended its process, or it runs still; SIGURG has it write before")
    dumps = own.get("dumps", []) if own else [data]
    versions = [_version(file, dump) for dump in dumps]
    try:
        whole = [{"entries": [], **dump} for dump in dumps]  # a rank that called nothing has none
        return _record(file, own, [_readable(file, dump) for dump in whole],
                       max(versions, default=(0, 0)))
    except NOT_AS_WRITTEN as error:
        raise FileError(f"{file.name}: a flight record without the keys of version 2.4 to 2.10: "
                        f"{type(error).__name__} {str(error)[:60]}") from error


def _readable(file: ForeignFile, dump: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dump with the entries that can be read, those behind a loss marked.

    Raises as a broken entry does where there is no other."""
    numbered = [entry for entry in dump["entries"]
                if isinstance(entry, Mapping) and _is_number(entry.get("record_id"))]
    lost = {id(entry) for entry in _after_losses(numbered)}
    kept = list[Mapping[str, Any]]()
    for entry in dump["entries"]:
        try:
            _call(entry, str(entry["process_group"][0]))
            whole(entry["record_id"])
        except NOT_AS_WRITTEN:
            if entry is dump["entries"][-1] and not kept:
                raise
            is_any = isinstance(entry, Mapping) and "<-?" in str(entry.get("profiling_name"))
            file.left_out.add("messages from any rank" if is_any
                              else "entries without the keys of version 2.4 to 2.10")
        else:
            kept.append({**entry, _LOST: True} if id(entry) in lost else entry)
    return {**dump, "entries": kept, "lost": _lost(numbered)}


def _version(file: ForeignFile, dump: Any) -> tuple[int, int]:
    match = _VERSION.fullmatch(str(dump.get("version", "")) if isinstance(dump, Mapping) else "")
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version[0] != 2 or version < _KNOWN[0]:
        what = f"version {match[0]}" if match else "no known version"
        raise FileError(f"{file.name}: {what} of torch's flight recorder; known: 2.4 to 2.10")
    return version


def _record(
    file: ForeignFile, own: Mapping[str, Any], dumps: Sequence[Mapping[str, Any]],
    version: tuple[int, int],
) -> recorded.RankRecord:
    entries = sorted(joined(dumps, None)["entries"],
                     key=lambda entry: (entry["time_created_ns"], entry["record_id"]))
    messages = [_message(one) for one in own.get("messages", ())]
    names = _names(entries)
    groups = _groups(own, dumps, names.values(), [call.group for call in messages])
    calls = [(entry, call) for entry in _whole_calls(file, entries, names, groups)
             if (call := _call(entry, names[_group_key(entry)])) is not None]
    if ends := sum(_is_end(entry) for entry in entries):
        file.left_out.add("ends of grouped calls that the ring has lost", count=ends)
    notes = [f"{file.name}: version 2.{version[1]} is newer than 2.10, the newest known"] * (
        version > _KNOWN[1])
    notes += _own_notes(file, own, entries, len(messages))
    timed, note = _with_durations(calls, own.get("durations", []))
    notes += [f"{file.name}: {note}"] if note else []
    timed, cut = _with_scatters([entry for entry, _ in calls], timed, own.get("scatters") or ())
    timed = sorted([*timed, *messages], key=lambda call: call.start_ns or 0)
    about = own or dumps[0]
    return recorded.RankRecord(
        file.name, PROGRAM, f"2.{version[1]}",
        whole_or_none(about.get("rank")), whole_or_none(about.get("world_size")), timed, groups,
        sum(dump["lost"] for dump in dumps) + recorded.exact(own.get("messages_lost", 0)) + cut,
        str(own.get("ras") or ""), notes)


def _own_notes(
    file: ForeignFile, own: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], messages: int,
) -> Iterator[str]:
    """Yield what torch does not record, and what it records as something else."""
    if (reason := own.get("reason", AT_EXIT)) != AT_EXIT:
        yield (f"{file.name}: written on {str(reason)[:20]}, while the program ran: later calls "
               "are not in it")
    unknown = _unrecorded(entries) - messages
    if unknown > 0 and not own.get("messages_lost"):
        yield (f"{file.name}: {unknown} calls, such as gloo's send and recv, have a number but no "
               "entry: torch does not record them")
    if of_groups := sum("coalesced" in entry for entry in entries):
        yield (f"{file.name}: {of_groups} entries of grouped calls have the state and duration of "
               "their group")
    if endless := sum(_has_no_end(entry) and not _is_over(entry) for entry in entries):
        yield (f"{file.name}: {endless} entries of grouped calls of xccl have no end, as torch "
               "records none: whether they ended is not known")
    yield from (f"NCCL RAS diagnostics: {line[1]}" for line in re.finditer(
        r"(\[(?!OK\])[A-Z]+\] .{1,300})", str(own.get("ras_diagnostics") or "")))
    if own.get("scatters") is None and any(
            entry["profiling_name"] == "gloo:all_reduce" for entry in entries):
        yield "torch records a reduce_scatter of gloo as the all_reduce that gloo makes of it"


def _group_key(entry: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return what makes a group one: pg_id alone is another one for each backend of a group."""
    backend = str(entry["profiling_name"]).rpartition(":")[0]
    return backend, str(entry["process_group"][0]), entry.get("pg_id")


def _names(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, Any], str]:
    """Return a name for each group in order of creation: the last of a name has it itself.

    torch gives a name again after `destroy_process_group`, also to other ranks."""
    lives = defaultdict[tuple[str, str], list[tuple[str, str, Any]]](list)
    for key in dict.fromkeys(map(_group_key, entries)):
        lives[key[:2]].append(key)
    return {key: name if not later else f"{name} ({later} before)"
            for (_, name), keys in lives.items()
            for later, key in enumerate(reversed(keys))}


def _whole_calls(
    file: ForeignFile, entries: Iterable[Mapping[str, Any]],
    names: Mapping[tuple[str, str, Any], str], groups: Mapping[str, recorded.KnownGroup],
) -> Iterator[Mapping[str, Any]]:
    """Yield entries; an all_gather of different sizes is one, not a broadcast from each rank.

    Likewise a reduce_scatter, not a reduce to each: both have the elements of all ``parts``."""
    of_one = grouped((_of_whole(entry), entry) for entry in entries)
    for (collective, *key), of_call in of_one.items():
        if not collective:
            yield from of_call
            continue
        name = names[_group_key(of_call[0])]
        size = len(groups[name].ranks or of_call)
        for at in range(0, len(of_call), size):
            parts = [_elements(entry["input_sizes"]) for entry in of_call[at:at + size]]
            if len(of_call) % size or (of_call[0].get(_LOST) and groups[name].ranks is None):
                file.left_out.add(f"parts of {collective} whose others the ring has lost",
                                  count=len(parts))
                continue
            yield {**of_call[at], "parts": parts, "profiling_name": f"{key[0]}:{collective}"}


def _of_whole(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return collective, backend, group and number of a part of one; ("",) for others."""
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    collective = _PARTS_OF.get(name, "")
    return (collective, *_group_key(entry), entry["collective_seq_id"]) if collective else ("",)


def _is_end(entry: Mapping[str, Any]) -> bool:
    return END.fullmatch(str(entry["profiling_name"])) is not None


def _after_losses(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of a recorder before which some are gone: its numbers leave gaps."""
    expected, gaps = 0, []
    for entry in sorted(entries, key=lambda entry: recorded.exact(entry["record_id"])):
        if entry["record_id"] > expected:
            gaps.append(entry)
        expected = entry["record_id"] + 1
    return gaps


def _lost(entries: Sequence[Mapping[str, Any]]) -> int:
    numbers = {recorded.exact(entry["record_id"]) for entry in entries}
    return max(numbers) + 1 - len(numbers) if numbers else 0


def _unrecorded(entries: Iterable[Mapping[str, Any]]) -> int:
    """Return how many operations of gloo's groups were counted between entries, not recorded."""
    numbers = defaultdict(list)
    for entry in entries:
        if str(entry["profiling_name"]).startswith("gloo:"):
            numbers[_group_key(entry)].append(
                (entry.get("op_id", 0), entry["collective_seq_id"]))
    return sum(max(0, (found[-1][0] - found[0][0]) - (found[-1][1] - found[0][1]))
               for found in numbers.values())


def _call(entry: Mapping[str, Any], group: str) -> recorded.RankCall | None:
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    is_p2p = bool(entry.get("is_p2p"))
    words = name.split()
    collective = SEND_RECV if is_p2p else recorded.collective_of(words[0] if words else "")
    if _is_end(entry) or not collective:
        return None
    types = [one for one in (*entry.get("input_dtypes", ()), *entry.get("output_dtypes", ()))
             if one != "Undefined"]
    duration = entry.get("duration_ms")
    sizes = entry["input_sizes"], entry["output_sizes"]
    splits = [tuple(_elements([shape]) for shape in one)
              if collective == "all_to_all" and len(one) > 1 else None for one in sizes]
    parts = tuple(entry.get("parts", ()))
    return recorded.RankCall(
        collective, group, None if is_p2p else recorded.exact(entry["collective_seq_id"]),
        dtype=recorded.dtype_of(str(types[0])) if types else None,
        elements_in=sum(parts) or _elements(sizes[0]),
        elements_out=sum(parts) or _elements(sizes[1]), splits_in=splits[0], splits_out=splits[1],
        backend=backend or None, pair=_pair(name) if is_p2p else None,
        start_ns=recorded.exact(entry["time_created_ns"]),
        duration_ns=None if duration is None else round(float(duration) * 1e6),
        after_loss=bool(entry.get(_LOST)), parts=parts,
        is_open=not _is_over(entry) and not _has_no_end(entry))


def _is_over(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _has_no_end(entry: Mapping[str, Any]) -> bool:
    """Return whether torch may not have recorded the end of an entry's group: never that of xccl.
    """
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    return backend == "xccl" and (bool(entry.get("is_p2p")) or "parts" in entry
                                  or name in _PARTS_OF)


def _message(noted: Sequence[Any]) -> recorded.RankCall:
    """Return a message of gloo as `hpcbench record` notes it."""
    began, is_send, group, peer, elements, dtype = noted
    pair = (recorded.OWN, recorded.exact(peer)) if is_send else (recorded.exact(peer), recorded.OWN)
    return recorded.RankCall(SEND_RECV, str(group), dtype=recorded.dtype_of(str(dtype)),
                             elements_in=recorded.exact(elements),
                             elements_out=recorded.exact(elements), backend="gloo", pair=pair,
                             start_ns=recorded.exact(began))


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(map(int, shape)) for shape in shapes)


def _pair(name: str) -> tuple[int, int]:
    """Return sender and receiver of ``send 0->1`` and ``recv 1<-0``. Raises ValueError."""
    match = _PAIR.search(name)
    if match is None:
        raise ValueError(f"no ranks in {name[:40]}")
    left, right = int(match[1]), int(match[3])
    return (left, right) if match[2] == "->" else (right, left)


def _groups(
    own: Mapping[str, Any], dumps: Sequence[Mapping[str, Any]], names: Iterable[str],
    of_messages: Iterable[str],
) -> dict[str, recorded.KnownGroup]:
    """Return the groups by name: as the job listed them, else as the recorder did."""
    groups = {name: recorded.KnownGroup() for name in (*names, *of_messages)}
    for dump in dumps:
        for entry in dump["entries"]:
            if (name := str(entry["process_group"][0])) in groups:
                groups[name] = recorded.KnownGroup(str(entry["process_group"][-1]))
    for dump in dumps:
        for group in dump.get("pg_config", {}).values():
            ranks = recorded.ranks_of(group.get("ranks"))
            if ranks and str(group.get("name")) in groups:
                groups[str(group["name"])] = recorded.KnownGroup(str(group.get("desc", "")), ranks)
    for name, group in own.get("groups", {}).items():
        if name in groups:
            groups[name] = recorded.KnownGroup(str(group["description"]),
                                               recorded.ranks_of(group["ranks"]) or None)
    return groups


def _with_durations(
    calls: Sequence[tuple[Mapping[str, Any], recorded.RankCall]], listed: Sequence[Sequence[Any]],
) -> tuple[list[recorded.RankCall], str]:
    """Return the calls with the profiler's durations, and a note on those not matched.

    Both are in the order of issue and have the same names; the profiler may begin earlier."""
    timed = [call for _, call in calls]
    by_name = defaultdict(list)
    for name, start, duration in sorted(listed, key=lambda one: recorded.exact(one[1])):
        by_name[str(name)].append((recorded.exact(start), recorded.exact(duration)))
    unmatched: Counter[str] = Counter()
    for name, events in by_name.items():
        places = [at for at, (entry, _) in enumerate(calls) if entry["profiling_name"] == name]
        for at, event in zip(places, _aligned([timed[at].start_ns or 0 for at in places], events),
                             strict=True):
            if event is None:
                unmatched[name] += 1
            else:
                timed[at] = replace(timed[at], duration_ns=event[1])
    return timed, "; ".join(f"{count} {name} without a duration"
                            for name, count in unmatched.items())


def _with_scatters(
    entries: Sequence[Mapping[str, Any]], calls: Sequence[recorded.RankCall],
    noted: Iterable[tuple[int, int, str, Sequence[tuple[int, int, int]]]],
) -> tuple[list[recorded.RankCall], int]:
    """Return the calls, gloo's all_reduces of a reduce_scatter as that, and how many are cut.

    `hpcbench record` notes begin and end of torch's function that enqueued them, the group, and of
    each call how many there are and its elements. One whose first entries are lost is left out."""
    whole, n_cut = list[recorded.RankCall | None](calls), 0
    sums = [at for at, entry in enumerate(entries) if entry["profiling_name"] == "gloo:all_reduce"]
    created = [recorded.exact(entries[at]["time_created_ns"]) for at in sums]
    for began, ended, group, made in noted:
        within = [at for at in sums[bisect_left(created, began):bisect_right(created, ended)]
                  if str(entries[at]["process_group"][0]) == group]
        is_cut = len(within) < sum(count for count, _, _ in made)
        n_cut += len(made) if within and is_cut else 0
        for at in within:
            whole[at] = None
        for count, n_in, n_out in () if is_cut else made:
            first = calls[within[0]]
            whole[within[0]] = replace(
                first, collective="reduce_scatter", elements_in=n_in, elements_out=n_out,
                duration_ns=first.duration_ns if count == 1 else None)
            del within[:count]
    return [call for call in whole if call is not None], n_cut


def _aligned(
    created: Sequence[int], events: Sequence[tuple[int, int]],
) -> list[tuple[int, int] | None]:
    """Return for each time of creation the event that began then or later, in order.

    Those before the first event, or after the last, have none."""
    aligned: list[tuple[int, int] | None] = [None] * len(created)
    following = len(created)
    for event in reversed(events):
        following = min(bisect_right(created, event[0]), following) - 1
        if following < 0:
            break
        aligned[following] = event
    return aligned


def _is_number(value: Any) -> bool:
    with suppress(ValueError):
        return bool(whole(value) == value)
    return False
