"""The text of PARAM's comms benchmark: rows that begin with ``COMMS-RES-collective-type``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.source import ForeignFile, source_of
from hpcbench.interop.formats.tables import (
    ELEMENT_BYTES,
    CommRow,
    CommTable,
    PrintedForm,
    printed,
    whole,
)

PROGRAM = "PARAM"
MOST_ROWS = 100_000
MOST_TABLES = 4096
MARK = "COMMS-RES"
_ROW = re.compile(rf"COMMS-RES-([a-z_0-9]+)-({'|'.join(sorted(ELEMENT_BYTES, reverse=True))})"
                  r"((?:-\S*)?)\s+(\d.*)")
_NAMES = re.compile(r"(?:total-)?size \(B\)|nElementsPerRank|(?:Total|Comp)?(?:Latency|Time)\(us\)"
                    r":p50|p75|p95|Min|Max|AlgBW\(GB/s\)|BusBW\(GB/s\)|TFlops")
_FIRST = ("size (B)", "nElementsPerRank", "Latency(us):p50", "p75", "p95", "Min", "Max",
          "AlgBW(GB/s)", "BusBW(GB/s)")
_MOST_FIELDS = len(_FIRST) + 3
"""Behind the first, a heading may name the total, the computation's time and TFlops, which rows
need not have."""
_FORMATS = (r"\d+", r"\d+", *[r"\d+\.\d"] * 5, *[r"\d+\.\d{3}"] * 2)
_IS_ROW = re.compile(r"\s+".join(_FORMATS) + r"(?:\s+\S+)*")


class ParamTables:
    """The tables of a log, one for each collective, type and tag in turn, in each process."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self._open: dict[str, _ParamTable] = {}
        self._refused: set[str] = set()

    def take(self, number: int, text: str) -> Iterator[CommTable] | None:
        """Return the tables that end with this line; None if nothing in it is of PARAM."""
        at = text.find(MARK)
        return None if at < 0 else self._taken(number, text[at:], source_of(text[:at]))

    def _taken(self, number: int, text: str, source: str) -> Iterator[CommTable]:
        match = _ROW.match(text)
        if match is None and text[len(MARK):len(MARK) + 1] == "-" and "(" not in text:
            return self._file.left_out.add("rows of PARAM of another type, or cut", number)
        if match is None:
            self._refused.discard(source)
            if not _is_known(text):
                self._refused.add(source)
        elif source in self._refused:
            self._file.left_out.add("rows of PARAM that are none of plain collectives (quantized, "
                                    "paired or pt2pt)", number)
        key = None if match is None or source in self._refused else (match[1], match[2], match[3])
        table = self._open.get(source)
        if table is not None and key != table.key:
            del self._open[source]
            yield from table.finished()
            table = None
        if match is not None and key is not None:
            if table is None:
                if len(self._open) == MOST_TABLES:
                    raise self._file.error(number,
                                           f"more than {MOST_TABLES} processes print tables")
                table = self._open[source] = _ParamTable(self._file, key, number)
            table.take(number, match[4])

    def finished(self) -> Iterator[CommTable]:
        """Yield the tables that are still open at the end of the file."""
        for table in self._open.values():
            yield from table.finished()


def _is_known(text: str) -> bool:
    """Return whether a heading names the columns of plain collectives, in any known version."""
    names = [name.removeprefix("total-").replace("Time(", "Latency(")
             for name in _NAMES.findall(text)]
    return not _NAMES.sub("", text).replace(MARK, "").strip() and (
        tuple(names[:len(_FIRST)]) == _FIRST)


@dataclass(slots=True)
class _ParamTable:
    """A table that is being read; ``key`` is collective, type and tag."""

    file: ForeignFile
    key: tuple[str, str, str]
    line: int
    rows: list[CommRow] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def take(self, number: int, text: str) -> None:
        """Take a row's fields."""
        fields = text.split()
        try:
            if not _IS_ROW.fullmatch(text.strip()) or len(fields) > _MOST_FIELDS:
                raise ValueError("fields")
            size, count = whole(fields[0]), whole(fields[1])
            p50, p75, p95, low, high, algbw, busbw = map(printed, fields[2:len(_FIRST)])
            half = PrintedForm(None, p50, algbw, busbw, None, low, high, (p50, p75, p95))
        except ValueError:
            self.damaged.append((number, len(fields)))
        else:
            self.rows.append(CommRow(number, size, (half,), count=count, dtype=self.key[1]))
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[CommTable]:
        """Yield the table."""
        yield CommTable(PROGRAM, self.file.name, self.line, our_name(self.key[0]),
                        tuple(self.rows), damaged=tuple(self.damaged),
                        is_uneven=self.key[0].endswith("v"),
                        floors_counts=True)
