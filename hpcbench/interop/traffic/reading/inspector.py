"""NCCL Inspector's lines as calls: bytes and times of each rank, without types and roots.

A communicator numbers its own ranks. A process is known by host and process number; its rank in
the job is its rank in the largest communicator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hpcbench.errors import NOT_AS_WRITTEN
from hpcbench.interop.formats.reading import inspector
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import whole
from hpcbench.interop.traffic.calls import KnownGroup, RankCall, RankRecord, collective_of, strided
from hpcbench.operations.collectives import MAX_WORLD_SIZE
from hpcbench.operations.traffic import SEND_RECV

LOSSY = ("NCCL Inspector leaves out messages below 8192 bytes by default and keeps 1024 calls of a "
         "communicator: ranks may have fewer calls than they made")

_NAMELESS = "calls named Invalid, as NCCL Inspector names those that it does not know: all_to_all"


def _is_nameless(data: Any) -> bool:
    return isinstance(data, Mapping) and str(data.get("coll", "")).lower() == "invalid"


def read(file: ForeignFile) -> Iterator[RankRecord]:
    """Yield a record for each process. Raises FileError for another version."""
    heads = inspector.Heads()
    header: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    processes: dict[tuple[str, str], dict[str, tuple[int, int, str]]] = defaultdict(dict)
    calls: dict[tuple[str, str], list[tuple[float, RankCall]]] = defaultdict(list)
    for line, data in file.records(float):
        if not isinstance(data, Mapping) or not inspector.is_record(data):
            file.left_out.add("lines that are no record of NCCL Inspector", line)
            continue
        if not heads.take(data):
            file.left_out.add(heads.unknown(), line)
            continue
        for part in (data.get("dump_stats"), data):
            if isinstance(part, Mapping):
                header = part.get("header", header)
                metadata = part.get("metadata", metadata)
        try:
            for kind in inspector.RECORDS:
                if kind in data and _is_nameless(data[kind]):
                    file.left_out.add(_NAMELESS, line)
                elif kind in data:
                    process = str(metadata.get("hostname", "")), str(metadata.get("pid", file.name))
                    name = str(header["id"])
                    rank, size = whole(header["rank"]), whole(header["n_ranks"])
                    if not rank < size <= MAX_WORLD_SIZE:
                        raise ValueError("ranks that no machine has")
                    processes[process][name] = rank, size, str(header.get("comm_name", ""))
                    calls[process].append((float(metadata.get("dump_timestamp_us", 0)),
                                           _call(kind, data[kind], name, rank)))
        except NOT_AS_WRITTEN:
            file.left_out.add("calls without the keys of v4.x", line)
    for process, comms in processes.items():
        yield _record(file, heads.version, comms, calls[process])


def _call(kind: str, data: Mapping[str, Any], group: str, rank: int) -> RankCall:
    prefix = kind.partition("_")[0]
    trace = data.get("event_trace_ts")
    start = trace.get(f"{prefix}_start_ts") if isinstance(trace, Mapping) else None
    call = RankCall(
        collective_of(str(data[prefix])), group, whole(data[f"{prefix}_sn"]),
        size_bytes=whole(data[f"{prefix}_msg_size_bytes"]), backend="nccl",
        start_ns=None if start is None else round(float(start) * 1e3),
        duration_ns=round(float(data[f"{prefix}_exec_time_us"]) * 1e3))
    if kind == "p2p_perf":
        peer = whole(data["p2p_peer"])
        pair = (rank, peer) if str(data["p2p"]).lower().startswith("send") else (peer, rank)
        call = replace(call, collective=SEND_RECV, sequence=None, pair=pair)
    return call


def _record(
    file: ForeignFile, version: str, comms: Mapping[str, tuple[int, int, str]],
    calls: list[tuple[float, RankCall]],
) -> RankRecord:
    rank, size, _ = max(comms.values(), key=lambda one: one[1])
    groups = {name: KnownGroup(text, strided(0, 1, n) if n == size else None, n)
              for name, (_, n, text) in comms.items()}
    in_order = sorted(calls, key=lambda one: (
        one[1].start_ns or 0, one[0], one[1].group, one[1].sequence or 0))
    return RankRecord(file.name, inspector.PROGRAM, version, rank, size,
                      [call for _, call in in_order], groups, notes=[LOSSY])
