"""JSON lines of NCCL Inspector: v4.0, and later 4.x where header and metadata come once.

Records are read in parts of PART, so that a log of any length fits into memory. Each is a single
operation as one rank saw it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.nccl_json import number_of
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import CommRow, CommTable, Printed, PrintedForm, whole
from hpcbench.records import dataclass
from hpcbench.texts import printable

PROGRAM = "NCCL Inspector"
KNOWN_MAJOR = "v4."
PART = 10_000
MOST_RANKS = 2**20
MOST_TEXT = 80
RECORDS = ("coll_perf", "p2p_perf")
_VERSION = re.compile(r"v\d+\.\d+")


def is_record(data: Mapping[str, Any]) -> bool:
    """Return whether a line is one of Inspector."""
    return any(name in data for name in (*RECORDS, "dump_stats")) or (
        "header" in data and "metadata" in data)


@dataclass(frozen=True, slots=True)
class _CommGroup:
    """One rank's part in a communicator, as a header describes it."""

    ident: str = ""
    name: str = ""
    ranks: int | None = None
    rank: int | None = None


_Key: TypeAlias = tuple[str, _CommGroup, str]
"""Collective, communicator, version."""


def _communicator(header: Mapping[str, Any]) -> _CommGroup:
    ranks, rank = header.get("n_ranks"), header.get("rank")
    return _CommGroup(
        printable(str(header.get("id", "")))[:MOST_TEXT],
        printable(str(header.get("comm_name") or ""))[:MOST_TEXT],
        ranks if type(ranks) is int and 0 < ranks < MOST_RANKS else None,
        rank if type(rank) is int and 0 <= rank < MOST_RANKS else None)


@dataclass(slots=True)
class Heads:
    """The last header and metadata, and whether the file ends within a record."""

    communicator: _CommGroup = _CommGroup()
    version: str = ""
    is_cut: bool = False

    def take(self, data: Mapping[str, Any]) -> bool:
        """Take a record's header and metadata; return whether its version is known."""
        stats = data.get("dump_stats")
        for part in (data, stats if isinstance(stats, Mapping) else {}):
            header, metadata = part.get("header"), part.get("metadata")
            if isinstance(header, Mapping):
                self.communicator = _communicator(header)
            if isinstance(metadata, Mapping):
                self.version = str(metadata.get("inspector_output_format_version", ""))[:20]
        return self.version.startswith(KNOWN_MAJOR)

    def unknown(self) -> str:
        """Return what is left out of a version that is not known."""
        what = self.version if _VERSION.fullmatch(self.version) else "unknown"
        return f"records of NCCL Inspector in format {what}; known: v4.x"


def read(file: ForeignFile) -> Iterator[CommTable]:
    """Yield tables of at most PART rows each; other lines and versions are left out, counted."""
    heads, rows, count = Heads(), dict[_Key, list[CommRow]](), 0
    for number, data in file.records():
        heads.is_cut = data is None
        if not isinstance(data, Mapping) or not is_record(data):
            file.left_out.add("lines that are no record of NCCL Inspector", number)
        elif not heads.take(data):
            file.left_out.add(heads.unknown(), number)
        else:
            for kind in set(RECORDS) & set(data):
                count += _take(file, rows, heads, number, kind, data[kind])
        if count >= PART:
            yield from _tables(file, rows)
            rows, count = {}, 0
    yield from _tables(file, rows, is_cut=heads.is_cut)


def _take(
    file: ForeignFile, rows: dict[_Key, list[CommRow]], heads: Heads, number: int, kind: str,
    data: Any,
) -> int:
    """Keep an operation; return how many were kept: 0 of one that is left out, else 1."""
    try:
        name, row = _row(number, kind.partition("_")[0], data)
    except (KeyError, TypeError, ValueError):
        file.left_out.add(f"{kind} without the keys of v4.x", number)
        return 0
    if not name:
        file.left_out.add("operations of NCCL Inspector of no known collective, such as Invalid",
                          number)
        return 0
    rows.setdefault((name, heads.communicator, heads.version), []).append(row)
    return 1


def _row(number: int, kind: str, data: Mapping[str, Any]) -> tuple[str, CommRow]:
    """Return the collective's name and the row. Raises KeyError, TypeError or ValueError."""
    def of(name: str) -> Printed | None:
        value = number_of(data[f"{kind}_{name}"])
        return value if value is None or value.value else None  # 0: it computes none of these

    time_us = of("exec_time_us")
    half = PrintedForm(None, time_us and time_us.widened(1.0), of("algobw_gbs"), of("busbw_gbs"))
    coll = str(data["coll"]) if kind == "coll" else "SendRecv"
    name = our_name(coll)
    if coll.endswith("V"):
        name += "_v"  # of different sizes: another operation than that of equal parts
    return name, CommRow(number, whole(data[f"{kind}_msg_size_bytes"]), (half,),
                         number=whole(data[f"{kind}_sn"]))


def _tables(
    file: ForeignFile, rows: Mapping[_Key, list[CommRow]], *, is_cut: bool = False,
) -> Iterator[CommTable]:
    for (name, kind, version), data in rows.items():
        yield CommTable(
            PROGRAM, file.name, data[0].line, name, tuple(data), version=version,
            ranks=kind.ranks, is_sweep=False, is_cut=is_cut, label=kind.name,
            communicator=kind.ident, rank=kind.rank)
