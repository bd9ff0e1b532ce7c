"""Traces of torch.profiler (Kineto): the communication of NCCL and UCC on one rank.

A collective is a kernel, whose duration is the device's; without kernels it is the host's
note, which has none. The operator stands in the kernel's name alone, a root nowhere. gloo's calls
are not in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcbench.errors import FileError
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.traffic.calls import KnownGroup, RankCall, RankRecord, collective_of, dtype_of
from hpcbench.traffic.reading.flight import ranks_of
from hpcbench.traffic.reading.stream import StreamedList

PROGRAM = "Kineto"
MOST_CALLS = 2_000_000
"""Calls of a rank that are read: the order of more has no room in traffic.json."""
_OPERATOR = re.compile(r"_(Sum|Prod|Min|Max|Avg|PreMulSum|SumPostDiv)_")
_OPERATORS = {"PreMulSum": "avg", "SumPostDiv": "avg"}
"""How NCCL computes a mean."""
_HOST_NOTE = "record_param_comms"


def read(file: ForeignFile) -> RankRecord:
    """Return the record of a rank. Raises FileError for another kind of file."""
    events = StreamedList(file, "traceEvents")
    kernels, noted = list[RankCall](), list[RankCall]()
    groups: dict[str, KnownGroup] = {}
    for event in events:
        args = event.get("args") if isinstance(event, Mapping) else None
        if not isinstance(args, Mapping) or "Collective name" not in args:
            continue
        kept = kernels if event.get("cat") == "kernel" else noted
        if kept is noted and event.get("name") != _HOST_NOTE:
            continue
        try:
            call = _call(event, args, is_kernel=kept is kernels)
            if call is not None:
                kept.append(call)
                groups.setdefault(call.group, _group(args))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{file.name}: a collective without the arguments of Kineto: "
                            f"{type(error).__name__} {str(error)[:60]}") from error
        if len(kept) > MOST_CALLS:
            raise FileError(f"{file.name}: more than {MOST_CALLS} calls: profile fewer steps")
    return _record(file, kernels or noted, groups, events.others)


def _record(
    file: ForeignFile, calls: list[RankCall], groups: dict[str, KnownGroup],
    others: Mapping[str, Any],
) -> RankRecord:
    about = others.get("distributedInfo")
    about = about if isinstance(about, Mapping) else {}
    for name, ranks in _listed(about.get("pg_config")):
        if name in groups and groups[name].ranks is None:
            groups[name] = KnownGroup(groups[name].description, ranks, len(ranks))
    notes = [] if any(call.duration_ns is not None for call in calls) or not calls else [
        f"{file.name}: no kernels, so no durations: profile with CUDA activities"]
    if any(call.operator for call in calls):
        notes.append("operators are those in the names of NCCL's kernels")
    calls.sort(key=lambda call: call.start_ns or 0)
    return RankRecord(file.name, PROGRAM, "", _whole(about.get("rank")),
                      _whole(about.get("world_size")), calls, groups, notes=notes)


def _call(event: Mapping[str, Any], args: Mapping[str, Any], is_kernel: bool) -> RankCall | None:
    """Return a call; None for one that moves nothing."""
    name = str(args["Collective name"])
    collective = collective_of(name)
    if not collective:
        return None
    operator = _OPERATOR.search(str(event.get("name", ""))) if is_kernel else None
    word = operator[1] if operator else ""
    reduces = collective in ("all_reduce", "reduce_scatter", "reduce")
    sequence = args.get("Seq")
    n_in, n_out = int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0))
    return RankCall(
        collective, _name_of(args),
        None if collective == SEND_RECV or sequence is None else int(sequence),
        dtype=dtype_of(str(args["dtype"])) if args.get("dtype") else None,
        operator=_OPERATORS.get(word, word.lower()) if word and reduces else None,
        elements_in=n_in, elements_out=n_out,
        splits_in=ranks_of(args.get("In split size")) or None,
        splits_out=ranks_of(args.get("Out split size")) or None,
        backend="nccl" if "nccl" in str(event.get("name", "")) else None,
        pair=_pair(args) if collective == SEND_RECV else None,
        start_ns=round(float(event["ts"]) * 1e3),
        duration_ns=round(float(event["dur"]) * 1e3) if is_kernel else None)


def _name_of(args: Mapping[str, Any]) -> str:
    return str(args.get("Process Group Name", ""))


def _pair(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return sender and receiver in the group, of which the trace has ranks of the job."""
    source, destination = int(args["Src Rank"]), int(args["Dst Rank"])
    ranks = _group(args).ranks
    if ranks and source in ranks and destination in ranks:
        return ranks.index(source), ranks.index(destination)
    return source, destination


def _group(args: Mapping[str, Any]) -> KnownGroup:
    """Return the ranks of a group: listed, or by their start and stride; long lists are cut."""
    size = int(args.get("Group size", 0))
    ranks = ranks_of(args.get("Process Group Ranks"))
    if not ranks and size and int(args.get("Global rank stride", 0)):
        start, stride = int(args["Global rank start"]), int(args["Global rank stride"])
        ranks = tuple(range(start, start + size * stride, stride))
    return KnownGroup(str(args.get("Process Group Description", "")), ranks or None, size or None)


def _listed(config: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the groups of ``pg_config``, a list or an object by name."""
    rows = config.values() if isinstance(config, Mapping) else config
    return [(str(row.get("pg_name", "")), ranks_of(row.get("ranks")))
            for row in rows or () if isinstance(row, Mapping) and ranks_of(row.get("ranks"))]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
