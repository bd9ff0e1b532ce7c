"""Files of recorders and profilers as traffic.json: the content decides how each is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.formats.reading import inspector as inspector_lines
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.operations.traffic import TrafficRecord, traffic_text
from hpcbench.texts import from_json
from hpcbench.trace.container import whole_file
from hpcbench.traffic.calls import RankRecord
from hpcbench.traffic.hang import hang_lines
from hpcbench.traffic.matching import matched
from hpcbench.traffic.reading import execution, flight, inspector, kineto
from hpcbench.units import plural, rank_list

SUFFIX = ".json"
"""An output of this kind is traffic; a results file has another."""
KNOWN = ("flight records of torch (JSON)", "Kineto", "PyTorch execution traces", "NCCL Inspector")
_OF_RANK = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_MOST_RANKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ImportedTraffic:
    """Lines on the import, and notes on what was left out or assumed."""

    done: tuple[str, ...]
    notes: tuple[str, ...]


def import_traffic(paths: Sequence[Path], output: Path) -> ImportedTraffic:
    """Write the communication in all files to a new traffic.json.

    A file that cannot be read costs its rank. Raises FileError where none can, for an existing
    output, or for records of different programs.
    """
    if output.exists():
        raise FileError(f"{output} exists: give another name with -o, or remove it")
    records, names, left_out = list[RankRecord](), list[str](), list[str]()
    for path in _files(paths):
        try:
            found = [_ranked(record, path) for record in records_of(path)]
        except FileError as error:
            left_out.append(str(error))
        else:
            records += found
            names.append(path.name)
    if not records:
        more = f" (and {len(left_out) - 1} more files)" if len(left_out) > 1 else ""
        raise FileError((left_out or [f"{paths[0]}: no file in it"])[0] + more)
    traffic = matched(records, names)
    write_traffic(traffic, output)
    return ImportedTraffic((*_lines(traffic, output), *hang_lines(records)),
                           (*(f"left out: {one}" for one in left_out), *traffic.notes))


def records_of(path: Path) -> Iterator[RankRecord]:
    """Yield the records in a file. Raises FileError for a file that none of `KNOWN` wrote."""
    file = ForeignFile(path)
    head = next(file.parts(), "")
    first = next((line for line in head.splitlines() if line.strip()), "")
    if '"traceEvents"' in head:
        yield kineto.read(file)
    elif '"nodes"' in head and '"schema"' in head:
        yield execution.read(file)
    elif _is_inspector(first):
        yield from inspector.read(file)
    else:
        data = file.json(float)
        if not isinstance(data, Mapping) or not flight.is_record(data):
            raise FileError(f"{path}: no record of {', '.join(KNOWN)}; tables are imported to a "
                            "results file, such as -o results.h5")
        yield flight.read(file, data)


def _is_inspector(line: str) -> bool:
    try:
        data = from_json(line)
    except ValueError:
        return False
    return isinstance(data, Mapping) and inspector_lines.is_record(data)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files, those of folders by name; hidden ones and parts of files are no records."""
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.iterdir() if one.is_file()
                              and not one.name.startswith(".") and ".part" not in one.name)
        else:
            yield path


def _ranked(record: RankRecord, path: Path) -> RankRecord:
    """Return a record with its rank, which may stand in the file's name alone."""
    if record.rank is None:
        stem = path.name.partition(".")[0]
        numbers = _OF_RANK.findall(path.name) or re.findall(r"\d{1,7}", stem)
        if not numbers:
            raise FileError(f"{path}: which rank is it? Name the file by it, such as rank3.json")
        record.rank = int(numbers[-1])
    return record


def _lines(traffic: TrafficRecord, output: Path) -> Iterator[str]:
    n_ranks = len(traffic.order)
    n_calls = sum(one.count for one in traffic.signatures)
    n_bytes = sum(one.count * one.bytes for one in traffic.signatures)
    yield (f"{output}: {plural(n_calls, 'call')} in {plural(len(traffic.signatures), 'form')}, "
           f"{n_bytes} bytes, on {n_ranks} of {plural(traffic.world_size, 'rank')}, from "
           f"{' and '.join(traffic.source)}")
    for one in traffic.order:
        if one.dropped or n_ranks <= _MOST_RANKS_SHOWN:
            lost = f"{one.dropped} lost" if one.dropped else "none lost"
            open_ = f", {one.unfinished} not finished" if one.unfinished else ""
            yield f"rank {one.rank}: {plural(len(one.signature), 'call')}, {lost}{open_}"
    if traffic.missing:
        yield f"no record of rank {rank_list(traffic.missing)}"


def write_traffic(record: TrafficRecord, path: Path) -> None:
    """Write the file whole. Raises FileError where it exists or the disk does not take it."""
    if path.exists():
        raise FileError(f"{path} exists: give another name with -o, or remove it")
    if not path.parent.is_dir():
        raise FileError(f"{path.parent} is no folder: make it, or give another name with -o")
    with whole_file(path) as part:
        part.write_text(traffic_text(record), encoding="utf-8")
