"""The text of the OSU micro-benchmarks, 5.x to 7.x: the title says what was measured, and where.

``OSU MPI-CUDA Allreduce Latency Test v7.5``: library, kind of memory, operation. Non-blocking,
neighbourhood, one-sided, UPC and OpenSHMEM tests have no counterpart: left out, counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.source import ForeignFile, pattern_of
from hpcbench.interop.formats.tables import CommRow, CommTable, Printed, PrintedForm, printed, whole
from hpcbench.records import dataclass
from hpcbench.texts import printable

PROGRAM = "OSU"
KNOWN = range(5, 8)
MOST_ROWS = 100_000
MOST_TABLES = 4096
_TITLE = re.compile(r"#\s*OSU (?P<library>UPC\+\+|[A-Za-z]+)(?P<call>_\w+)?"
                    r"(?P<memory>-(?:CUDA|ROCM|OPENACC|SYCL|MANAGED)(?: MANAGED)?)?"
                    r"(?P<operation> .*?)? ?Test v(?P<major>\d{1,9})\.(?P<minor>\S+)",
                    re.IGNORECASE)
_NAMES = re.compile(r"#\s*(?:Size\s|(?:Avg|Overall|Bandwidth|MB/s|Latency)\b).*")
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+)")
_BUFFERS = re.compile(r"#\s*Send Buffer on (\w+).* and Receive Buffer on (\w+)")
_HINTS = re.compile("#.*(?:OSU|Size|us\\)|MB/s|Datatype|Buffer)")
_COMMENTS = re.compile(r"#\s*(?:Overall =|\[ pairs:|Window creation|Synchronization|Rank 0 Memory"
                       r"|Uni-directional)")
BACKENDS = {"MPI": "mpi", "NCCL": "nccl", "RCCL": "nccl"}
"""Library in a title -> backend."""
_MEANINGS: dict[str, str] = {
    "Size": "size", "Avg Latency(us)": "time", "Latency (us)": "time", "Latency(us)": "time",
    "Min Latency(us)": "low", "Max Latency(us)": "high", "Iterations": "iterations",
    "Bandwidth (MB/s)": "rate", "MB/s": "rate", "Messages/s": "messages",
    "Validation": "passed", "Transmit Size": "transmitted",
}
_SHARE = re.compile(r"P(\d{1,2}) Tail (?:Lat\(us\)|BW\(MB/s\))")
_COLUMN = re.compile("|".join([_SHARE.pattern, *map(
    re.escape, sorted(_MEANINGS, key=len, reverse=True))]))
_ROW = re.compile(r"\s*\d+(?:\.\d+)?(?:\s+[\d.]|\s*$)")
_FRACTION = re.compile(r"\d+\.\d\d|nan|-nan|inf")
_MEASURES = re.compile(r"\b(?:Latency|Bandwidth|Message Rate|Personalized Exchange)\b|/",
                       re.IGNORECASE)
_WIDEST = 10**10
"""Sizes from here on are wider than their column."""
_OTHERS = re.compile("non-blocking|neighborhood", re.IGNORECASE)
_FORMS = {"persistent": "persistent", "block": "block"}
"""Word in a title -> what distinguishes its rows from those of the usual call."""


def titled(path: str, line: int, match: re.Match[str]) -> tuple[CommTable, str]:
    """Return what a title says of the table below it, and why that is left out, "" if it is read.
    """
    library, version = match["library"].upper(), f"{match['major']}.{match['minor']}"
    operation = printable(match["operation"] or "").strip()[:80]
    refusal = ""
    if int(match["major"]) not in KNOWN:
        refusal = (f"rows of OSU {version[:20]}, which is not known; known: {KNOWN[0]}.x to "
                   f"{KNOWN[-1]}.x")
    elif library.startswith(("UPC", "OPENSHMEM", "OSHM")):
        refusal = f"rows of OSU's tests of {match['library']}"
    elif match["call"] or _OTHERS.search(operation):
        refusal = f"rows of OSU's {'one-sided' if match['call'] else operation.lower()} test"
    elif (match["memory"] or "").upper() == "-SYCL":
        refusal = "rows of OSU in memory of SYCL devices"
    words = _MEASURES.sub(" ", operation)
    label = " ".join(form for word, form in _FORMS.items()
                     if re.search(rf"(?:\b|_){word}\b", words, re.IGNORECASE))
    name = re.sub(r"(?:\b|_)(?:persistent|block)\b", " ", words, flags=re.IGNORECASE).strip()
    is_uneven = bool(re.search(r"(?:[a-z]v|allw)$", name, re.IGNORECASE))
    collective = our_name(name[:-1] if is_uneven else name) or (
        name.lower().replace(" ", "_") or "send_recv")
    backend = BACKENDS.get(library, "")
    device = "cuda" if match["memory"] or backend == "nccl" else "cpu" if backend else ""
    return CommTable(PROGRAM, path, line, collective, (), version=version, timed_rates=False,
                     is_uneven=is_uneven, label=label, backend=backend, device=device), refusal


class OsuTables:
    """The tables of a log, of processes that may print at once."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self._open: dict[str, _OsuTable] = {}

    def take(self, number: int, text: str) -> Iterable[CommTable] | None:
        """Return the tables that end with this line; None if nothing in it is of OSU."""
        if not _HINTS.search(text):
            return self._row(number, text)
        at = text.index("#")
        for pattern in (_TITLE, _COMMENTS, _NAMES, _DATATYPE, _BUFFERS):
            if match := pattern.match(text, at):
                break
        else:
            return None
        if match.re is _COMMENTS:
            return ()
        return self._heading(number, match)

    def close(self, text: str) -> None:
        """Note a line that is none of OSU: below a heading of others are no rows of OSU."""
        for table in self._open.values():
            before = table.pattern.match(text)
            if before and text[before.end():].lstrip()[:1] == "#":
                table.is_over = True

    def _heading(self, number: int, match: re.Match[str]) -> Iterable[CommTable]:
        ended: Iterable[CommTable] = ()
        prefix = match.string[:match.start()]
        table = next((one for one in self._open.values()
                      if one.pattern.fullmatch(prefix.rstrip())), None)
        if table is None and match.re is _TITLE:
            if len(self._open) == MOST_TABLES:
                raise self._file.error(number, f"more than {MOST_TABLES} processes print tables")
            table = _OsuTable(self._file, pattern_of(prefix),
                              *titled(self._file.name, number, match))
            self._open[prefix] = table
        if table is None:
            return ended
        if match.re in (_TITLE, _NAMES):
            ended = tuple(table.finished())
        table.take_heading(number, match)
        return ended

    def _row(self, number: int, text: str) -> Iterable[CommTable] | None:
        for table in self._open.values():
            if table.columns and not table.is_over:
                prefix = table.pattern.match(text)
                if prefix and _ROW.match(text, prefix.end()):
                    table.take_row(number, text[prefix.end():])
                    return ()
        return None

    def finished(self) -> Iterator[CommTable]:
        """Yield the tables that are still open at the end of the file."""
        for table in self._open.values():
            yield from table.finished()


@dataclass(slots=True)
class _OsuTable:
    """A table that is being read. Columns are aligned: a row of another width is none.

    ``pattern`` is what stands before its lines, ``stated`` what its headings say, ``width`` that of
    its column names, None if blanks were removed or begin its row, as that of a barrier."""

    file: ForeignFile
    pattern: re.Pattern[str]
    stated: CommTable
    refusal: str
    dtype: str = ""
    is_over: bool = False
    width: int | None = None
    columns: tuple[str, ...] = ()
    rows: list[tuple[int, CommRow]] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def take_heading(self, number: int, match: re.Match[str]) -> None:
        """Take a line that is no row."""
        if match.re is _TITLE:
            self.stated, self.refusal = titled(self.file.name, number, match)
            self.dtype, self.columns = "", ()
        elif match.re is _DATATYPE:
            self.dtype = match[1]
        elif match.re is _BUFFERS:
            self._take_buffers(match[1], match[2])
        else:
            self.is_over, self.stated = False, replace(self.stated, line=number)
            self._take_names(match[0].rstrip())

    def _take_buffers(self, send: str, receive: str) -> None:
        if send == receive:
            self.stated = replace(self.stated, device="cpu" if send == "HOST" else "cuda")
        else:
            self.refusal = f"rows of OSU between memory of {send.lower()} and {receive.lower()}"

    def _take_names(self, text: str) -> None:
        left = _COLUMN.sub("", text.lstrip("#"))
        if left.strip():
            self.refusal = self.refusal or ("rows of other columns than those of OSU's blocking "
                                            "tests")
        self.columns = tuple(_MEANINGS.get(one[0], one[0]) for one in _COLUMN.finditer(text)) or (
            "unknown",)
        self.width = len(text) if "  " in text and "size" in self.columns else None

    def take_row(self, number: int, text: str) -> None:
        """Take a line that begins with a number."""
        if self.refusal:
            self.file.left_out.add(self.refusal, number)
            return
        words = text.split()
        passed = None
        if "passed" not in self.columns and words[-1] in ("Pass", "Fail"):
            passed = words.pop()  # some versions do not name this column
        try:
            if len(words) != len(self.columns):
                raise ValueError("fields")
            named = dict(zip(self.columns, words, strict=True))
            row = _row(number, named, self.dtype, named.pop("passed", passed))
        except ValueError:
            self.damaged.append((number, len(text.split())))
        else:
            self.rows.append((len(text.strip()), row))
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[CommTable]:
        """Yield the table, if it has rows, and begin again."""
        rows, damaged = self._aligned(), self.damaged
        if rows or damaged:
            yield replace(self.stated, rows=tuple(rows), damaged=tuple(sorted(damaged)))
        self.rows, self.damaged = [], []

    def _aligned(self) -> list[CommRow]:
        """Return the rows whose width is that of the names, or of most rows; others are damaged."""
        widths = Counter(width for width, _ in self.rows)
        usual, count = widths.most_common(1)[0] if widths else (0, 0)
        kept = []
        for width, row in self.rows:
            is_wide = width >= (self.width or 0) and (
                len(self.rows) == 1 or row.size_bytes >= _WIDEST)
            if self.width in (None, width) or is_wide or count > 1 and width == usual:
                kept.append(row)
            else:
                self.damaged.append((row.line, len(self.columns)))
        return kept


def _row(number: int, named: dict[str, str], dtype: str, passed: str | None) -> CommRow:
    """Return a row. Raises ValueError where a field is not printed as OSU does."""
    size = whole(named.pop("size", "0"))
    iterations = whole(named.pop("iterations")) if "iterations" in named else None
    if passed not in (None, "Pass", "Fail"):
        raise ValueError("passed")
    named.pop("transmitted", None)
    if not all(map(_FRACTION.fullmatch, named.values())):
        raise ValueError("two decimals")
    odd = tuple(f"{name} {text}" for name, text in named.items() if text[-1:].isalpha())
    figures = {name: printed(text) for name, text in named.items() if not text[-1:].isalpha()}
    rate = figures.get("rate")
    return CommRow(
        number, size, (PrintedForm(
            None, figures.get("time"), rate and rate.scaled(1e-3), None, None, figures.get("low"),
            figures.get("high"), _shares(figures), odd),),
        dtype=dtype or None, iterations=iterations, messages_per_s=figures.get("messages"),
        passed=None if passed is None else passed == "Pass")


def _shares(figures: dict[str, Printed]) -> tuple[Printed, ...]:
    """Return the percentiles of times, in order."""
    found = [(int(share[1]), number) for name, number in figures.items()
             if (share := _SHARE.match(name)) and "Lat" in name]
    return tuple(number for _, number in sorted(found, key=lambda one: one[0]))
