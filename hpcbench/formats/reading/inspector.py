"""JSON lines of NCCL Inspector: v4.0, and later 4.x where header and metadata come once.

Records are read in parts of PART, so that a log of any length fits into memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpcbench.formats.printed import Printed, whole
from hpcbench.formats.reading.names import our_name
from hpcbench.formats.reading.nccl_json import number_of
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.formats.tables import CommRow, CommTable, Half

PROGRAM = "NCCL Inspector"
KNOWN_MAJOR = "v4."
PART = 10_000
MOST_RANKS = 10**7
RECORDS = ("coll_perf", "p2p_perf")
_VERSION = re.compile(r"v\d+\.\d+")
_Key: TypeAlias = tuple[str, int | None, str]


def is_record(data: Mapping[str, Any]) -> bool:
    """Return whether a line is one of Inspector."""
    return any(name in data for name in (*RECORDS, "dump_stats")) or (
        "header" in data and "metadata" in data)


@dataclass(slots=True)
class Heads:
    """What the last header and metadata said."""

    ranks: int | None = None
    version: str = ""

    def take(self, file: ForeignFile, number: int, data: Mapping[str, Any]) -> None:
        stats = data.get("dump_stats")
        for part in (data, stats if isinstance(stats, Mapping) else {}):
            header, metadata = part.get("header"), part.get("metadata")
            if isinstance(header, Mapping) and isinstance(header.get("n_ranks"), int) and (
                    0 < header["n_ranks"] < MOST_RANKS):
                self.ranks = header["n_ranks"]
            if isinstance(metadata, Mapping):
                version = str(metadata.get("inspector_output_format_version", ""))[:20]
                if not version.startswith(KNOWN_MAJOR):
                    what = version if _VERSION.fullmatch(version) else "unknown"
                    raise file.error(number, f"format {what} of NCCL Inspector; known: v4.x")
                self.version = version


def read(file: ForeignFile) -> Iterator[CommTable]:
    """Yield tables of at most PART rows each. Raises FileError for other lines or versions."""
    heads, rows, count = Heads(), dict[_Key, list[CommRow]](), 0
    for line in file.lines():
        if not line.text.strip():
            continue
        data = file.parsed(line.text, line.number)
        if not isinstance(data, Mapping) or not is_record(data):
            raise file.error(line.number, "no record of NCCL Inspector")
        heads.take(file, line.number, data)
        for kind in RECORDS:
            if kind not in data:
                continue
            try:
                name, row = _row(line.number, kind.partition("_")[0], data[kind])
            except (KeyError, TypeError, ValueError) as error:
                raise file.error(line.number, f"{kind} without the keys of v4.x") from error
            rows.setdefault((name, heads.ranks, heads.version), []).append(row)
            count += 1
        if count >= PART:
            yield from _tables(file, rows)
            rows, count = {}, 0
    yield from _tables(file, rows)


def _row(number: int, kind: str, data: Mapping[str, Any]) -> tuple[str, CommRow]:
    """Return the collective's name and the row. Raises KeyError, TypeError or ValueError."""
    def of(name: str) -> Printed | None:
        found = number_of(data[f"{kind}_{name}"])
        return found if found is None or found.value else None  # 0: it computes none of these

    time_us = of("exec_time_us")
    half = Half(None, time_us and time_us.widened(1.0), of("algobw_gbs"), of("busbw_gbs"))
    name = "send_recv" if kind == "p2p" else our_name(str(data["coll"]))
    return name, CommRow(number, whole(data[f"{kind}_msg_size_bytes"]), (half,))


def _tables(file: ForeignFile, rows: Mapping[_Key, list[CommRow]]) -> Iterator[CommTable]:
    for (name, ranks, version), found in rows.items():
        yield CommTable(
            PROGRAM, file.name, found[0].line, name, tuple(found), version=version, ranks=ranks,
            is_sweep=False)
