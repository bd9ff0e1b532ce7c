"""The text of the OSU micro-benchmarks, 5.x to 7.x."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hpcbench.formats.printed import printed, whole
from hpcbench.formats.reading.names import our_name
from hpcbench.formats.reading.source import ForeignFile, LogLine
from hpcbench.formats.tables import CommRow, CommTable, Half

PROGRAM = "OSU"
KNOWN = range(5, 8)
MOST_ROWS = 100_000
TITLE = re.compile(r"#\s*OSU (MPI\S*|[A-Z]+SHMEM|UPC\S*|NCCL) (.*?) ?Test v(\d{1,9})\.(\S+)")
_NAMES = re.compile(r"#\s*(?:Size|Avg Latency\(us\))(?:\s|$)")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+)")
_MEANINGS: dict[str, str] = {
    "Size": "size", "Avg Latency(us)": "time", "Latency (us)": "time", "Latency(us)": "time",
    "Min Latency(us)": "low", "Max Latency(us)": "high", "Iterations": "iterations",
    "Bandwidth (MB/s)": "rate", "MB/s": "rate", "Messages/s": "messages",
    "P50 Tail Lat(us)": "p50", "P90 Tail Lat(us)": "p90", "P99 Tail Lat(us)": "p99",
    "Validation": "passed",
}
_COLUMN = re.compile("|".join(map(re.escape, sorted(_MEANINGS, key=len, reverse=True))))
_ROW = re.compile(r"\s*\d+(?:\.\d+)?(?:\s|$)")
_SHARES = ("p50", "p90", "p99")


def read(
    file: ForeignFile, lines: Iterable[LogLine], collective: str = "",
) -> Iterator[CommTable]:
    """Yield a table for each line of column names. Raises FileError for unknown ones."""
    builder = _OsuTable(file, collective)
    for line in lines:
        text = line.text.strip()
        if TITLE.match(text) or _NAMES.match(text):
            if builder.columns:
                yield from builder.finished()
                builder = _OsuTable(file, collective, builder.operation, builder.version)
            builder.take_heading(line, text)
        elif found := _DATATYPE.match(text):
            builder.dtype = found[1]
        elif builder.columns and _ROW.match(text):
            builder.take_row(line.number, text.split())
    yield from builder.finished()


@dataclass(slots=True)
class _OsuTable:
    """A table that is being read."""

    file: ForeignFile
    collective: str
    operation: str = ""
    version: str = ""
    line: int = 1
    dtype: str = ""
    columns: tuple[str, ...] = ()
    rows: list[CommRow] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def take_heading(self, line: LogLine, text: str) -> None:
        self.line = line.number
        if found := TITLE.match(text):
            self.version = f"{found[3]}.{found[4]}"
            self.operation = re.sub(r"\b(Latency|Bandwidth)\b.*", "", found[2]).strip()
            if int(found[3]) not in KNOWN:
                raise self.file.error(line.number, f"OSU {self.version[:20]} is not known; "
                                                   f"known: {KNOWN[0]}.x to {KNOWN[-1]}.x")
            return
        left = _COLUMN.sub("", text.lstrip("#"))
        if left.strip():
            raise self.file.error(line.number, "these columns are none that OSU's blocking tests "
                                               "print")
        self.columns = tuple(_MEANINGS[one] for one in _COLUMN.findall(text))

    def take_row(self, number: int, fields: Sequence[str]) -> None:
        words = list(fields)
        columns = [name for name in self.columns if name != "passed"]
        passed = words.pop() == "Pass" if words[-1] in ("Pass", "Fail") else None
        try:
            if len(words) != len(columns):
                raise ValueError("fields")
            row = _row(number, dict(zip(columns, words, strict=True)), self.dtype, passed)
        except ValueError:
            self.damaged.append((number, len(fields)))
        else:
            self.rows.append(row)
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[CommTable]:
        if self.rows or self.damaged:
            name = our_name(self.operation) or ("" if self.operation else "send_recv")
            yield CommTable(
                PROGRAM, self.file.name, self.line, name or self.collective, tuple(self.rows),
                version=self.version, damaged=tuple(self.damaged), timed_rates=False)


def _row(number: int, named: dict[str, str], dtype: str, passed: bool | None) -> CommRow:
    """Return a row. Raises ValueError where a field is no number."""
    figures = {name: printed(text) for name, text in named.items() if name != "size"}
    rate, iterations = figures.get("rate"), figures.get("iterations")
    return CommRow(
        number, whole(named.get("size", "0")), (Half(
            None, figures.get("time"), rate and rate.scaled(1e-3), None, None, figures.get("low"),
            figures.get("high"), tuple(figures[one] for one in _SHARES if one in figures)),),
        dtype=dtype or None, iterations=None if iterations is None else int(iterations.value),
        messages_per_s=figures.get("messages"), passed=passed)
