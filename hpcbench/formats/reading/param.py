"""The text of PARAM's comms benchmark: rows that begin with ``COMMS-RES-collective-type``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hpcbench.formats.printed import printed, whole
from hpcbench.formats.reading.names import our_name
from hpcbench.formats.reading.source import ForeignFile, LogLine
from hpcbench.formats.tables import ELEMENT_BYTES, CommRow, CommTable, Half

PROGRAM = "PARAM"
MOST_ROWS = 100_000
MARK = re.compile(r"\s*COMMS-RES")
_ROW = re.compile(rf"\s*COMMS-RES-([a-z_0-9]+)-({'|'.join(sorted(ELEMENT_BYTES, reverse=True))})"
                  r"(\S*)\s+(\d.*)")
_NAMES = re.compile(r"size \(B\)|total-size \(B\)|nElementsPerRank|nElementsPairPerRank"
                    r"|TotalLatency\(us\):p50|CompLatency\(us\):p50|Latency\(us\):p50"
                    r"|p75|p95|Min|Max|AlgBW\(GB/s\)|BusBW\(GB/s\)|TFlops")
_FIRST = ("size (B)", "nElementsPerRank", "Latency(us):p50", "p75", "p95", "Min", "Max",
          "AlgBW(GB/s)", "BusBW(GB/s)")
_LAST = ("TotalLatency(us):p50", "CompLatency(us):p50", "TFlops")
"""Columns that a heading may name where rows do not have them."""


def read(file: ForeignFile, lines: Iterable[LogLine]) -> Iterator[CommTable]:
    """Yield a table for each collective in turn. Raises FileError for unknown columns."""
    builder: _ParamTable | None = None
    for line in lines:
        if not MARK.match(line.text):
            continue
        found = _ROW.match(line.text)
        if found is None:
            _check_names(file, line.number, line.text)
        key = None if found is None else (found[1], found[2], found[3])
        if builder is not None and key != builder.key:
            yield from builder.finished()
            builder = None
        if found is not None and key is not None:
            builder = builder or _ParamTable(file, key, line.number)
            builder.take(line.number, found[4].split())
    if builder is not None:
        yield from builder.finished()


def _check_names(file: ForeignFile, number: int, text: str) -> None:
    names = _NAMES.findall(text)
    left = _NAMES.sub("", text).replace("COMMS-RES", "").strip()
    if left or tuple(names[:len(_FIRST)]) != _FIRST:
        raise file.error(number, "columns that are not read: only those of plain collectives are, "
                                 "neither quantized, paired nor pt2pt")


@dataclass(slots=True)
class _ParamTable:
    """A table that is being read; ``key`` is collective, type and tag."""

    file: ForeignFile
    key: tuple[str, str, str]
    line: int
    rows: list[CommRow] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def take(self, number: int, fields: Sequence[str]) -> None:
        try:
            if not len(_FIRST) <= len(fields) <= len(_FIRST) + len(_LAST):
                raise ValueError("fields")
            size, count = whole(fields[0]), whole(fields[1])
            p50, p75, p95, low, high, algbw, busbw = map(printed, fields[2:len(_FIRST)])
            half = Half(None, p50, algbw, busbw, None, low, high, (p50, p75, p95))
        except ValueError:
            self.damaged.append((number, len(fields)))
        else:
            self.rows.append(CommRow(number, size, (half,), count=count, dtype=self.key[1]))
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[CommTable]:
        yield CommTable(PROGRAM, self.file.name, self.line, our_name(self.key[0]),
                        tuple(self.rows), damaged=tuple(self.damaged),
                        is_uneven=self.key[0].endswith("v"),
                        floors_counts=True)
