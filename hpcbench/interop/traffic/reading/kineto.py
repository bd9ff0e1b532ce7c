"""Traces of torch.profiler (Kineto): the communication of NCCL and UCC on one rank.

A collective is a note of the host with its arguments, and one or more kernels, whose durations are
the device's. Kernels name their note by its ``External id``, or by that of their launch; some have
the arguments, too, all where the host was not profiled. The operator stands in the kernel's name
alone, a root nowhere. Calls of gloo have names, but no arguments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcbench.errors import NOT_AS_WRITTEN
from hpcbench.interop.formats.reading.source import ForeignFile, StreamedList
from hpcbench.interop.formats.tables import whole, whole_or_none
from hpcbench.interop.traffic import calls as recorded
from hpcbench.operations.traffic import MOST_NS, SEND_RECV
from hpcbench.units import grouped

PROGRAM = "Kineto"
_KERNEL = re.compile(r"(?:nccl|rccl|msccl)\w*kernel", re.IGNORECASE)
_OPERATOR = re.compile(r"_(Sum|Prod|Min|Max|Avg|PreMulSum|SumPostDiv)_")
_OPERATORS = {"PreMulSum": "avg", "SumPostDiv": "avg"}
"""How NCCL computes a mean."""
_HOST_NOTE = "record_param_comms"
_NO_SIZES = "calls or kernels of NCCL without sizes, as torch before 2.2 has them"
_NO_ARGUMENTS = "kernels of NCCL without arguments, which no call of the host names"
_GLOO = "calls of gloo, of which a profile has no arguments: `hpcbench record` has them"
_BROKEN = "calls without the arguments of Kineto"


@dataclass(slots=True)
class _Kernel:
    """A kernel: its name, times in ns, ids, and its call where it has arguments."""

    name: str
    start_ns: int
    end_ns: int
    note: int
    correlation: int
    call: recorded.RankCall | None


@dataclass(slots=True)
class _Events:
    """What a trace has of communication; calls of the host in its order, by their id."""

    noted: list[tuple[int, recorded.RankCall]] = field(default_factory=list)
    kernels: list[_Kernel] = field(default_factory=list)
    groups: dict[str, recorded.KnownGroup] = field(default_factory=dict)


def read(file: ForeignFile) -> recorded.RankRecord:
    """Return the record of a rank. Raises FileError for another kind of file."""
    events, found_events = StreamedList(file, "traceEvents"), _Events()
    for event in events:
        if isinstance(event, Mapping):
            try:
                _take(file, event, found_events)
            except NOT_AS_WRITTEN:
                file.left_out.add(_BROKEN)
        recorded.check_count(file.name, max(len(found_events.noted), len(found_events.kernels)))
    _follow_launches(file, found_events)
    return _record(file, _calls(file, found_events), found_events.groups, events.others)


def _take(file: ForeignFile, event: Mapping[str, Any], events: _Events) -> None:
    """Keep an event of communication. Raises as one without its arguments does."""
    name, args = str(event.get("name", "")), event.get("args")
    args = args if isinstance(args, Mapping) else {}
    if event.get("cat") == "kernel" and ("Collective name" in args or _KERNEL.search(name)):
        start, duration = _ns(event["ts"]), _ns(event["dur"])
        if duration < 0:
            raise ValueError("a kernel that ends before it starts")
        call = _call(event, args) if "Collective name" in args else None
        _take_group(call, args, events)
        events.kernels.append(_Kernel(name, start, start + duration, _note_id(args),
                                      recorded.exact(args.get("correlation", 0)), call))
    elif name == _HOST_NOTE and "Collective name" in args:
        call, number = _call(event, args), _note_id(args)
        if call is not None:
            _take_group(call, args, events)
            events.noted.append((number, call))
    elif name == _HOST_NOTE:
        file.left_out.add(_NO_SIZES)
    elif name.startswith("gloo:"):
        file.left_out.add(_GLOO)


def _take_group(call: recorded.RankCall | None, args: Mapping[str, Any], found: _Events) -> None:
    """Keep the group of a call, as its first one has it."""
    if call is not None and call.group not in found.groups:
        found.groups[call.group] = _group(args)


def _note_id(args: Mapping[str, Any]) -> int:
    return recorded.exact(args.get("External id", args.get("External Id", 0)))


def _ns(time_us: Any) -> int:
    time_ns = round(float(time_us) * 1e3)
    if abs(time_ns) > MOST_NS:
        raise ValueError("a time that no clock has")
    return time_ns


def _follow_launches(file: ForeignFile, events: _Events) -> None:
    """Give kernels that name no call the one of their launch: read the file once more for these."""
    noted = {number for number, _ in events.noted}
    unknown = grouped((one.correlation, one) for one in events.kernels
                      if one.note not in noted and one.correlation)
    if not unknown or not noted:
        return
    for event in StreamedList(file, "traceEvents"):
        args = event.get("args") if isinstance(event, Mapping) else None
        if isinstance(args, Mapping) and event.get("cat") != "kernel" and (
                args.get("correlation") in unknown and _note_id(args) in noted):
            for kernel in unknown[args["correlation"]]:
                kernel.note = _note_id(args)


def _calls(file: ForeignFile, events: _Events) -> list[recorded.RankCall]:
    """Return the calls in their order: of each the time from its first kernel to its last."""
    events.noted.sort(key=lambda one: one[1].start_ns or 0)
    number_of = {number: at for at, (number, _) in enumerate(events.noted) if number}
    of_note = defaultdict[int, list[_Kernel]](list)
    alone = list[_Kernel]()
    for kernel in events.kernels:
        at = number_of.get(kernel.note)
        (alone if at is None else of_note[at]).append(kernel)
    free = grouped((_form(call), at) for at, (_, call) in reversed([*enumerate(events.noted)])
                   if at not in of_note)
    calls = list[recorded.RankCall]()
    for kernels in _of_one_call(alone):
        call, first = kernels[0].call, min(one.start_ns for one in kernels)
        if call is None:
            file.left_out.add(_NO_ARGUMENTS if events.noted or any(
                one.call for one in events.kernels) else _NO_SIZES, count=len(kernels))
        elif ((alike := free.get(_form(call)))
              and (events.noted[alike[-1]][1].start_ns or 0) <= first):
            of_note[alike.pop()] = kernels
        else:
            calls.append(_with_kernels(call, kernels))
    if not calls and not of_note:
        return [call for _, call in events.noted]
    return [*_placed(calls, events, of_note)]


def _form(call: recorded.RankCall) -> tuple[object, ...]:
    return call.collective, call.group, call.dtype, call.elements_in, call.elements_out, call.pair


def _of_one_call(kernels: list[_Kernel]) -> Iterator[list[_Kernel]]:
    """Yield kernels together that name the same call, which the trace has not."""
    of_one = grouped((
        (one.note, _form(one.call)) if one.call and one.note else (at,), one)
        for at, one in enumerate(kernels))
    yield from of_one.values()


def _with_kernels(call: recorded.RankCall, kernels: list[_Kernel]) -> recorded.RankCall:
    start = min(one.start_ns for one in kernels)
    word = next((match[1] for one in kernels if (match := _OPERATOR.search(one.name))), "")
    reduces = call.collective in ("all_reduce", "reduce_scatter", "reduce")
    return replace(
        call, start_ns=start, duration_ns=max(one.end_ns for one in kernels) - start,
        operator=_OPERATORS.get(word, word.lower()) if word and reduces else None,
        backend="nccl" if any(_KERNEL.search(one.name) for one in kernels) else None)


def _placed(
    calls: list[recorded.RankCall], events: _Events, of_note: Mapping[int, list[_Kernel]],
) -> Iterator[recorded.RankCall]:
    """Yield calls by the start of their kernels; those without behind the one before in the group.

    These have no start: times of the host and of the device are not compared."""
    placed = [(call.start_ns or 0, -1, call) for call in calls]
    before = defaultdict[str, int](int)
    for at, (_, noted) in enumerate(events.noted):
        kernels = of_note.get(at)
        call = _with_kernels(noted, kernels) if kernels else replace(noted, start_ns=None)
        before[call.group] = call.start_ns or before[call.group]
        placed.append((before[call.group], at, call))
    yield from (call for *_, call in sorted(placed, key=lambda one: one[:2]))


def _record(
    file: ForeignFile, calls: list[recorded.RankCall], groups: dict[str, recorded.KnownGroup],
    others: Mapping[str, Any],
) -> recorded.RankRecord:
    about = others.get("distributedInfo")
    about = about if isinstance(about, Mapping) else {}
    backends = {"": _backend(about.get("backend"))}
    for row in _listed(about.get("pg_config")):
        name, ranks = str(row.get("pg_name", "")), recorded.ranks_of(row.get("ranks"))
        backends[name] = _backend(row.get("backend_config"))
        if ranks and name in groups and groups[name].ranks is None:
            groups[name] = recorded.KnownGroup(groups[name].description, ranks, len(ranks))
    calls = [call if call.backend else replace(
        call, backend=backends.get(call.group) or backends[""]) for call in calls]
    untimed = sum(call.duration_ns is None for call in calls)
    notes = [] if not untimed else [
        f"{file.name}: no kernels, so no durations: profile with CUDA activities"
        if untimed == len(calls) else
        f"{file.name}: {untimed} calls without a kernel, so without a duration"]
    if any(call.operator for call in calls):
        notes.append("operators are those in the names of NCCL's kernels")
    return recorded.RankRecord(file.name, PROGRAM, "", whole_or_none(about.get("rank")),
                               whole_or_none(about.get("world_size")), calls, groups, notes=notes)


def _backend(config: Any) -> str | None:
    """Return the backend of devices that are not the CPU, whose calls alone are in a trace."""
    text = str(config or "")
    return recorded.backend_of(text, "cuda") or recorded.backend_of(text, "")


def _call(event: Mapping[str, Any], args: Mapping[str, Any]) -> recorded.RankCall | None:
    """Return a call without what its kernels say; None for one that moves nothing."""
    name = str(args["Collective name"])
    collective = recorded.collective_of(name)
    if not collective:
        return None
    sequence = args.get("Seq")
    sizes = {"In msg nelems": 0, "Out msg nelems": 0, **args} if collective == "barrier" else args
    n_in, n_out = recorded.exact(sizes["In msg nelems"]), recorded.exact(sizes["Out msg nelems"])
    return recorded.RankCall(
        collective, _name_of(args),
        None if collective == SEND_RECV or sequence is None else recorded.exact(sequence),
        dtype=recorded.dtype_of(str(args["dtype"])) if args.get("dtype") else None,
        elements_in=n_in, elements_out=n_out,
        splits_in=recorded.splits_of(args.get("In split size"), n_in),
        splits_out=recorded.splits_of(args.get("Out split size"), n_out),
        pair=_pair(args) if collective == SEND_RECV else None, start_ns=_ns(event["ts"]))


def _name_of(args: Mapping[str, Any]) -> str:
    return str(args.get("Process Group Name", ""))


def _pair(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return sender and receiver in the group, of which the trace has ranks of the job."""
    source, destination = whole(args["Src Rank"]), whole(args["Dst Rank"])
    ranks = _group(args).ranks
    if ranks and source in ranks and destination in ranks:
        return ranks.index(source), ranks.index(destination)
    return source, destination


def _group(args: Mapping[str, Any]) -> recorded.KnownGroup:
    """Return the ranks of a group: listed, or by their start and stride; long lists are cut."""
    size = recorded.exact(args.get("Group size", 0))
    ranks = recorded.ranks_of(args.get("Process Group Ranks"))
    if not ranks:
        ranks = recorded.strided(recorded.exact(args.get("Global rank start", 0)),
                                 recorded.exact(args.get("Global rank stride", 0)), size)
    return recorded.KnownGroup(str(args.get("Process Group Description", "")), ranks or None,
                               size or None)


def _listed(config: Any) -> list[Mapping[str, Any]]:
    """Return the groups of ``pg_config``, a list or an object by name."""
    rows = config.values() if isinstance(config, Mapping) else config
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(
        rows, Iterable) else []
