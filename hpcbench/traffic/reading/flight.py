"""Flight records of torch as JSON: of `hpcbench record`, or of torch's own ``dump_json``.

Entries have order, sizes, types and groups, and durations where NCCL was timed. They have neither
operator nor root. torch records no messages of gloo, which `hpcbench record` notes itself, and none
of its durations: those of ``record --durations`` come from torch's profiler.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.errors import FileError
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.profiling.flight import joined
from hpcbench.traffic.calls import (
    OWN,
    KnownGroup,
    RankCall,
    RankRecord,
    collective_of,
    dtype_of,
)

PROGRAM = "torch flight recorder"
FORMAT = "hpcbench.record"
_KNOWN = ((2, 4), (2, 10))
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_PAIR = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


def is_record(data: Mapping[str, Any]) -> bool:
    return data.get("format") == FORMAT or ("entries" in data and "version" in data)


def read(file: ForeignFile, data: Mapping[str, Any]) -> RankRecord:
    """Return the record of a rank. Raises FileError for another version or without its keys."""
    own = data if data.get("format") == FORMAT else {}
    dumps = own.get("dumps", []) if own else [data]
    versions = [_version(file, dump) for dump in dumps]
    try:
        whole = [{"entries": [], **dump} for dump in dumps]  # a rank that called nothing has none
        return _record(file, own, whole, max(versions, default=(0, 0)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(f"{file.name}: a flight record without the keys of version 2.4 to 2.10: "
                        f"{type(error).__name__} {str(error)[:60]}") from error


def _version(file: ForeignFile, dump: Any) -> tuple[int, int]:
    found = _VERSION.fullmatch(str(dump.get("version", "")) if isinstance(dump, Mapping) else "")
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version[0] != 2 or version < _KNOWN[0]:
        what = f"version {found[0]}" if found else "no known version"
        raise FileError(f"{file.name}: {what} of torch's flight recorder; known: 2.4 to 2.10")
    return version


def _record(
    file: ForeignFile, own: Mapping[str, Any], dumps: Sequence[Mapping[str, Any]],
    version: tuple[int, int],
) -> RankRecord:
    entries = sorted(joined(dumps, None)["entries"],
                     key=lambda entry: (entry["time_created_ns"], entry["record_id"]))
    lost = {id(entry) for dump in dumps for entry in _after_losses(dump["entries"])}
    calls = [(entry, call) for entry in entries if (call := _call(entry, id(entry) in lost))]
    notes = [f"{file.name}: version 2.{version[1]} is newer than 2.10, the newest known"] * (
        version > _KNOWN[1])
    messages = [_message(one) for one in own.get("messages", ())]
    unknown = _unrecorded(entries) - len(messages)
    if unknown > 0 and not own.get("messages_lost"):
        notes.append(f"{file.name}: {unknown} calls, such as gloo's send and recv, have a number "
                     "but no entry: torch does not record them")
    timed, note = _with_durations(calls, own.get("durations", []))
    notes += [f"{file.name}: {note}"] if note else []
    timed = sorted([*timed, *messages], key=lambda call: call.start_ns or 0)
    names = [*(str(entry["process_group"][0]) for entry in entries), *(
        call.group for call in messages)]
    return RankRecord(
        file.name, PROGRAM, f"2.{version[1]}",
        _whole(own.get("rank")), _whole(own.get("world_size")), timed,
        _groups(own, dumps, entries, names),
        sum(_lost(dump["entries"]) for dump in dumps) + int(own.get("messages_lost", 0)),
        str(own.get("ras") or ""), notes)


def _after_losses(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of a recorder before which some are gone: its numbers leave gaps."""
    expected, found = 0, []
    for entry in sorted(entries, key=lambda entry: int(entry["record_id"])):
        if entry["record_id"] > expected:
            found.append(entry)
        expected = entry["record_id"] + 1
    return found


def _lost(entries: Sequence[Mapping[str, Any]]) -> int:
    numbers = {int(entry["record_id"]) for entry in entries}
    return max(numbers) + 1 - len(numbers) if numbers else 0


def _unrecorded(entries: Iterable[Mapping[str, Any]]) -> int:
    """Return how many operations of gloo's groups were counted between entries, not recorded."""
    numbers = defaultdict(list)
    for entry in entries:
        if str(entry["profiling_name"]).startswith("gloo:"):
            numbers[str(entry["process_group"][0])].append(
                (entry["op_id"], entry["collective_seq_id"]))
    return sum(max(0, (found[-1][0] - found[0][0]) - (found[-1][1] - found[0][1]))
               for found in numbers.values())


def _call(entry: Mapping[str, Any], after_loss: bool) -> RankCall | None:
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    is_p2p = bool(entry.get("is_p2p"))
    words = name.split()
    collective = SEND_RECV if is_p2p else collective_of(words[0] if words else "")
    if not collective:
        return None
    types = [*entry.get("input_dtypes", ()), *entry.get("output_dtypes", ())]
    duration = entry.get("duration_ms")
    return RankCall(
        collective, str(entry["process_group"][0]),
        None if is_p2p else int(entry["collective_seq_id"]),
        dtype=dtype_of(str(types[0])) if types else None,
        elements_in=_elements(entry["input_sizes"]), elements_out=_elements(entry["output_sizes"]),
        backend=backend or None, pair=_pair(name) if is_p2p else None,
        start_ns=int(entry["time_created_ns"]),
        duration_ns=None if duration is None else round(float(duration) * 1e6),
        after_loss=after_loss,
        is_open=not (entry.get("retired") or entry.get("state") == "completed"))


def _message(noted: Sequence[Any]) -> RankCall:
    """Return a message of gloo as `hpcbench record` notes it."""
    began, is_send, group, peer, elements, dtype = noted
    pair = (OWN, int(peer)) if is_send else (int(peer), OWN)
    return RankCall(SEND_RECV, str(group), dtype=dtype_of(str(dtype)), elements_in=int(elements),
                    elements_out=int(elements), backend="gloo", pair=pair, start_ns=int(began))


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(map(int, shape)) for shape in shapes)


def _pair(name: str) -> tuple[int, int]:
    """Return sender and receiver of ``send 0->1`` and ``recv 1<-0``. Raises ValueError."""
    found = _PAIR.search(name)
    if found is None:
        raise ValueError(f"no ranks in {name[:40]}")
    left, right = int(found[1]), int(found[3])
    return (left, right) if found[2] == "->" else (right, left)


def _groups(
    own: Mapping[str, Any], dumps: Sequence[Mapping[str, Any]],
    entries: Iterable[Mapping[str, Any]], names: Iterable[str],
) -> dict[str, KnownGroup]:
    """Return the groups by name: as the job listed them, else as the recorder did."""
    found = {name: KnownGroup() for name in names}
    found |= {str(entry["process_group"][0]): KnownGroup(str(entry["process_group"][-1]))
              for entry in entries}
    for dump in dumps:
        for one in dump.get("pg_config", {}).values():
            ranks = ranks_of(one.get("ranks"))
            if ranks and str(one.get("name")) in found:
                found[str(one["name"])] = KnownGroup(str(one.get("desc", "")), ranks)
    for name, one in own.get("groups", {}).items():
        if name in found:
            found[name] = KnownGroup(str(one["description"]), ranks_of(one["ranks"]) or None)
    return found


def ranks_of(listed: Any) -> tuple[int, ...]:
    """Return ranks of a list or of its text; () where it is neither or was cut off."""
    if isinstance(listed, str):
        if "..." in listed or not re.fullmatch(r"\[[\d,\s]*\]", listed):
            return ()
        listed = re.findall(r"\d+", listed)
    return tuple(map(int, listed)) if isinstance(listed, (list, tuple)) else ()


def _with_durations(
    calls: Sequence[tuple[Mapping[str, Any], RankCall]], listed: Sequence[Sequence[Any]],
) -> tuple[list[RankCall], str]:
    """Return the calls with the profiler's durations, and a note on those not matched.

    Both are in the order of issue and have the same names; the profiler may begin earlier.
    """
    found = [call for _, call in calls]
    by_name = defaultdict(list)
    for name, start, duration in sorted(listed, key=lambda one: int(one[1])):
        by_name[str(name)].append((int(start), int(duration)))
    unmatched: Counter[str] = Counter()
    for name, events in by_name.items():
        places = [at for at, (entry, _) in enumerate(calls) if entry["profiling_name"] == name]
        for at, event in zip(places, _aligned([found[at].start_ns or 0 for at in places], events),
                             strict=True):
            if event is None:
                unmatched[name] += 1
            else:
                found[at] = replace(found[at], duration_ns=event[1])
    return found, "; ".join(f"{count} {name} without a duration"
                            for name, count in unmatched.items())


def _aligned(
    created: Sequence[int], events: Sequence[tuple[int, int]],
) -> list[tuple[int, int] | None]:
    """Return for each time of creation the event that began then or later, in order.

    Those before the first event, or after the last, have none.
    """
    found: list[tuple[int, int] | None] = [None] * len(created)
    following = len(created)
    for event in reversed(events):
        following = min(bisect_right(created, event[0]), following) - 1
        if following < 0:
            break
        found[following] = event
    return found


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None
