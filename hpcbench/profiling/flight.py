"""Flight records of ranks that hang: which rank is at which collective.

An entry of torch's record is a collective that a rank has called: its group, its number there,
tensors and dtypes; ``retired`` once it is over, for NCCL also ``state``, by GPU events. torch 2.13
keeps the last 2000: NCCL's in one recorder, all others in another. A rank that waits in a
collective has released Python's lock, so a thread of the worker can read them. It sleeps in
sigwait(2) until its supervisor signals."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.units import by_value, rank_list, size_text

FLIGHT = "flight"
"""Key of a rank's record among the details of a case."""
MOST_ENTRIES = 32
"""Newest entries that are kept of a rank: enough to see where its order left the others'."""
ITEM_BYTES = {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4,
               "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
"""Names as torch records them; other dtypes have no size here."""
END = re.compile(r"(?:.*:)?([A-Z_]*?)_?coalesced")
"""Name of the entry behind operations of a group: ``coalesced``, ``nccl:ALLGATHER_coalesced``."""


_OF_END = ("state", "retired", "duration_ms", "time_discovered_started_ns",
           "time_discovered_completed_ns")


def joined(
    dumps: Sequence[Mapping[str, Any]], most: int | None = MOST_ENTRIES,
) -> dict[str, Any]:
    """Return one record of the dumps of torch's recorders (`FlightRecorder::dump_json`).

    ``version``, ``entries`` (the ``most`` newest, None: all) and ``groups`` (state by name). Each
    recorder numbers its groups itself, so names are those of entries; duplicates are dropped."""
    entries: dict[Any, Mapping[str, Any]] = {}
    groups: dict[str, Any] = {}
    for dump in dumps:
        for entry in _with_ends(dump.get("entries", [])):
            name = str(entry["process_group"][0])
            entries[name, entry["profiling_name"], entry["time_created_ns"],
                    entry.get("record_id")] = entry
            if status := dump.get("pg_status", {}).get(str(entry["pg_id"])):
                groups[name] = status
    in_order = sorted(entries.values(), key=lambda entry: entry["time_created_ns"])
    return {"version": next((dump["version"] for dump in dumps if "version" in dump), ""),
            "groups": groups, "entries": in_order[-most:] if most else in_order}


def _with_ends(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return entries, operations of a group with its state and duration, and without its end.

    torch keeps these operations as scheduled forever: the entry behind them, of the same group and
    numbers, ends and is timed (`batch_isend_irecv`, coalescing, all_gathers of different sizes). It
    stays where the ring has lost its operations. ``coalesced``: its id."""
    of_records: dict[int, Mapping[str, Any]] = {}
    pending: dict[Any, tuple[Any, list[int]]] = {}
    order = sorted(range(len(entries)), key=lambda at: int(entries[at].get("record_id", at)))
    for at in order:
        entry = entries[at]
        group = str(entry["process_group"][0]), entry.get("pg_id")
        numbers = entry.get("collective_seq_id"), entry.get("p2p_seq_id")
        before, operations = pending.pop(group, (numbers, []))
        operations = operations if before == numbers else []
        if END.fullmatch(str(entry["profiling_name"])) is None:
            operations.append(at)
            pending[group] = numbers, operations
            of_records[at] = entry
            continue
        end = {key: entry[key] for key in _OF_END if entry.get(key) is not None}
        of_records |= {one: {**entries[one], **end, "coalesced": entry.get("record_id", at)}
                       for one in operations}
        if not operations:
            of_records[at] = entry
    return [of_records[at] for at in sorted(of_records)]


def current_collective(record: Mapping[str, Any]) -> str:
    """Return the collective in which a rank waits (the oldest unfinished), else its last; ""
    without entries."""
    entries: Sequence[Mapping[str, Any]] = record.get("entries", [])
    if not entries:
        return ""
    waiting = next((entry for entry in entries if not is_over(entry)), None)
    entry = waiting or entries[-1]
    number = (f"p2p {entry['p2p_seq_id']}" if entry.get("is_p2p")
              else str(entry.get("collective_seq_id", "?")))
    name = str(entry.get("profiling_name", "?")).partition(":")
    return (f"{'in' if waiting else 'past'} {name[2] or name[0]} #{number}{_size(entry)} "
            f"of {_group(entry)}")


def is_over(entry: Mapping[str, Any]) -> bool:
    """Return whether the collective of an entry has ended on its rank."""
    return bool(entry.get("retired", False)) or entry.get("state") == "completed"


def _group(entry: Mapping[str, Any]) -> str:
    """Return the group of an entry; torch's default one only lines the ranks up."""
    number, *names = entry.get("process_group", ["?"])
    return "the control group" if "default_pg" in names else f"group {number}"


def _size(entry: Mapping[str, Any]) -> str:
    """Return the bytes of an entry's inputs in brackets, "" where they are not known."""
    shapes, dtypes = entry.get("input_sizes", []), entry.get("input_dtypes", [])
    if len(shapes) != len(dtypes) or not shapes or any(name not in ITEM_BYTES for name in dtypes):
        return ""
    n_bytes = sum(math.prod(shape) * ITEM_BYTES[name]
                  for shape, name in zip(shapes, dtypes, strict=True))
    return f" ({size_text(n_bytes)})"


def in_flight(standings: Mapping[int, str]) -> str:
    """Return which ranks are in which collective, equal ones together; "" if none is known."""
    known = {rank: place for rank, place in standings.items() if place}
    return "; ".join(f"rank {rank_list(ranks)} {place}"
                     for place, ranks in by_value(known).items())


_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""The writers of each recorder; the second is in builds with NCCL only."""


def answer_flight_requests(fd: int) -> None:
    """Write the flight record to ``fd`` as a line of JSON whenever SIGUSR2 comes.

    Call it while this process has one thread: later ones must not take the signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    threading.Thread(target=_answer, args=(fd,), daemon=True, name="flight record").start()


def _answer(fd: int) -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        text = json.dumps(flight_record()) + "\n"
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)


def flight_record() -> dict[str, Any]:
    """Return torch's record of this process, or ``unavailable``: the reason."""
    import torch  # the supervisors, which read these records, do without it

    module = torch._C._distributed_c10d
    try:
        dumps = [json.loads(getattr(module, name)()) for name in _DUMPS if hasattr(module, name)]
        record = joined(dumps)
    except (RuntimeError, ValueError, KeyError) as error:
        return {"unavailable": f"torch {torch.__version__} has no flight record: {error}"}
    if not dumps:
        return {"unavailable": f"torch {torch.__version__} has no flight recorder"}
    if not record["entries"]:
        return {"unavailable": "torch's flight recorder is empty (TORCH_FR_BUFFER_SIZE=0?)"}
    return record
