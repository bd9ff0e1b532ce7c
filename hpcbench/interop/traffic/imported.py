"""Files of recorders and profilers as traffic.json: the content decides how each is read.

Of a job that hung when its ranks wrote their records, also which rank is at which collective: by
the flight records, and by NCCL's RAS where it answered, a thread of NCCL on each rank that counts
calls, and notices ranks that do not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcbench.errors import FileError
from hpcbench.interop.formats.reading import inspector as inspector_lines
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.traffic.calls import RankCall, RankRecord, exact
from hpcbench.interop.traffic.matching import matched
from hpcbench.interop.traffic.reading import execution, flight, inspector, kineto
from hpcbench.operations.traffic import TrafficRecord, problem_of, traffic_text
from hpcbench.texts import from_json
from hpcbench.trace.container import whole_file
from hpcbench.units import by_value, plural, rank_list, size_text

KNOWN = ("flight records of torch (JSON)", "Kineto", "PyTorch execution traces", "NCCL Inspector")
_OF_RANK = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,7})|^(\d{1,7})(?=\.)", re.IGNORECASE)
"""``trace_rank_3.json``, ``3.json``: any other number may be a process, a model or a time."""
_MOST_RANKS_SHOWN = 8
FEWEST_REPEATS = 3
"""Calls of a form, on average, that show a loop, beside which a job's start is seen."""


def import_traffic(
    paths: Sequence[Path], output: Path, backend: str | None = None, skip_first: int = 0,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the communication in all files to a new traffic.json; return lines on what was done,
    and notes on what was left out or assumed.

    ``backend``: that of calls whose file does not name it. ``skip_first``: calls of each rank that
    are left out, as those of a job's start. A file that cannot be read costs its
    rank. Raises FileError where none can, for an existing output, or for records of different
    programs."""
    if output.exists():
        raise FileError(f"{output} exists: give another name with -o, or remove it")
    records, names, left_out = list[RankRecord](), list[str](), list[str]()
    for path in _files(paths):
        try:
            file = ForeignFile(path)
            ranked = [_ranked(record, path) for record in _with_calls(file)]
        except FileError as error:
            left_out.append(f"left out: {error}")
        else:
            records += ranked
            names.append(path.name)
            left_out += file.left_out.lines(file.name)
    if not records:
        more = f" (and {len(left_out) - 1} more files)" if len(left_out) > 1 else ""
        first = (left_out or [f"{paths[0]}: no file in it"])[0].removeprefix("left out: ")
        raise FileError(first + more)
    if backend and all(call.backend for record in records for call in record.calls):
        left_out.append(f"--backend {backend}: without effect, as all calls have theirs")
    for record in records:
        record.calls = [call if call.backend else replace(call, backend=backend)
                        for call in record.calls]
    traffic = matched(records, names, skip_first)
    write_traffic(traffic, output)
    return ((*_lines(traffic, output), *_start_lines(traffic, skip_first), *hang_lines(records)),
            (*left_out, *traffic.notes))


def _with_calls(file: ForeignFile) -> list[RankRecord]:
    """Return the records in a file. Raises FileError where all its calls are left out."""
    records = [*file.guarded(records_of(file))]
    if file.left_out and not any(record.calls for record in records):
        counts = file.left_out.counts().items()
        raise FileError(f"{file.name}: no call can be read: "
                        + "; ".join(f"{count} {what}" for what, count in counts))
    return records


def records_of(file: ForeignFile) -> Iterator[RankRecord]:
    """Yield the records in a file. Raises FileError for a file that none of `KNOWN` wrote."""
    head = next(file.parts(), "")
    if '"traceEvents"' in head:
        yield kineto.read(file)
    elif '"nodes"' in head and '"schema"' in head:
        yield execution.read(file)
    elif any(f'"{name}"' in head for name in (*inspector_lines.RECORDS, "dump_stats")):
        yield from inspector.read(file)
    else:
        data = file.json(float)
        if not isinstance(data, Mapping) or not flight.is_record(data):
            raise FileError(f"{file.name}: no record of {', '.join(KNOWN)}; tables are imported to "
                            "a results file, such as -o results.h5")
        yield flight.read(file, data)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files, those of folders by name; hidden ones and parts of files are no records."""
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.iterdir() if one.is_file()
                              and not one.name.startswith(".") and ".part" not in one.name)
        else:
            yield path


def _ranked(record: RankRecord, path: Path) -> RankRecord:
    """Return a record with its rank, which may stand in the file's name alone.

    Raises FileError where the name has none, several, or one that the file's groups do not have."""
    if record.rank is not None:
        return record
    named = {int(word or number): bool(word) for word, number in _OF_RANK.findall(path.name)}
    wrong = ""
    if len(named) == 1:
        (rank, has_word), = named.items()
        listed: list[Sequence[int]] = [ranks for name in {call.group for call in record.calls}
                  if (ranks := record.groups[name].ranks)]
        if record.world_size is not None:
            listed.append(range(record.world_size))
        if all(rank in ranks for ranks in listed) and (listed or has_word):
            record.rank = rank
            return record
        wrong = f" {rank} of its name is none that the file lists." if listed else ""
    raise FileError(f"{path}: which rank is it?{wrong} Name the file by its rank, such as "
                    "rank3.json")


def _lines(traffic: TrafficRecord, output: Path) -> Iterator[str]:
    n_ranks = len(traffic.order)
    n_calls = sum(one.count for one in traffic.signatures)
    n_bytes = sum(one.count * one.bytes for one in traffic.signatures)
    yield (f"{output}: {plural(n_calls, 'call')} in {plural(len(traffic.signatures), 'form')}, "
           f"{n_bytes} bytes, on {n_ranks} of {plural(traffic.world_size, 'rank')}, from "
           f"{' and '.join(traffic.source)}")
    for index in traffic.order:
        if index.dropped or n_ranks <= _MOST_RANKS_SHOWN:
            lost = f"{index.dropped} lost" if index.dropped else "none lost"
            open_ = f", {index.unfinished} not finished" if index.unfinished else ""
            yield f"rank {index.rank}: {plural(len(index.signature), 'call')}, {lost}{open_}"
    if traffic.missing:
        yield f"no record of rank {rank_list(traffic.missing)}"


def _start_lines(traffic: TrafficRecord, skipped: int) -> Iterator[str]:
    """Yield how many first calls are the job's start, in which `skipped` are left out already."""
    if count := max((_start_of(one.signature) for one in traffic.order if not one.dropped),
                    default=0):
        yield (f"each form of call from call {skipped + count + 1} on recurs in the second half: "
               f"--skip-first {skipped + count} leaves out the job's start")


def _start_of(forms: Sequence[int]) -> int:
    """Return the number of a rank's first calls up to the last one whose form its second half
    lacks; 0 where those that follow have a form less than `FEWEST_REPEATS` times on average."""
    half = len(forms) // 2
    later = {*forms[half:]}
    count = max((place + 1 for place, form in enumerate(forms[:half]) if form not in later),
                default=0)
    rest = forms[count:]
    return count if len(rest) >= FEWEST_REPEATS * len({*rest}) else 0


def write_traffic(record: TrafficRecord, path: Path) -> None:
    """Write the file whole. Raises FileError where it exists or the disk does not take it."""
    if path.exists():
        raise FileError(f"{path} exists: give another name with -o, or remove it")
    if problem := problem_of(record):
        raise FileError(f"{', '.join(record.files[:3])}: the records contradict one another: "
                        f"{problem}")
    if not path.parent.is_dir():
        raise FileError(f"{path.parent} is no folder: make it, or give another name with -o")
    with whole_file(path) as part:
        part.write_text(traffic_text(record), encoding="utf-8")


def hang_lines(records: Sequence[RankRecord]) -> Iterator[str]:
    """Yield a line for each group in which ranks wait: where, and which ranks have not called it.

    A rank waits in its oldest call that had not ended. Calls of a group are numbered in its order,
    so a rank whose newest number is lower has not called the one that others wait in."""
    by_rank = {one.rank: one for one in records if one.rank is not None}
    for name in dict.fromkeys(name for one in by_rank.values() for name in one.groups):
        waiting = {rank: call for rank, one in by_rank.items() if (call := next((
            call for call in one.calls if call.is_open and call.group == name), None))}
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
    for rank, record in by_rank.items():
        newest = max((call.sequence or 0 for call in record.calls if call.group == name), default=0)
        if name in record.groups and rank not in waiting and newest < first:
            yield f"rank {rank} has not called it, {_place(record)}"
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


def _communicator_lines(communicator: Mapping[str, Any]) -> Iterator[str]:
    name = f"communicator {communicator['hash']} of {plural(exact(communicator['size']), 'rank')}"
    for rank in communicator.get("missing_ranks") or ():
        yield f"{name}: rank {rank['rank']} on {rank.get('host', '?')} does not answer"
    counts = {exact(rank["rank"]): rank.get("collective_counts") or {}
              for rank in communicator["ranks"]}
    for called in dict.fromkeys(key for counted in counts.values() for key in counted):
        by_count = by_value({
            rank: exact(counted.get(called, 0)) for rank, counted in counts.items()})
        if len(by_count) > 1:
            most = max(by_count)
            behind = ", ".join(f"rank {rank_list(ranks)} {count}" for count, ranks
                               in sorted(by_count.items()) if count < most)
            yield f"{name}: calls of {called}: {behind}, others {most}"
