"""The text of nccl-tests, from its first version on: tables anywhere in a log.

Versions before 2.4 print ``bytes``, ``N``, ``op`` and ``res``, times in ms, footers without ``#``;
those before 2.13 ``error`` in place of ``#wrong`` and no ``root``. A row is known by the type
behind two whole numbers, whatever stands before them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace

from hpcbench.interop.formats import tables
from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.source import ForeignFile, nearest, source_of
from hpcbench.records import dataclass

PROGRAM = "nccl-tests"
NEWEST_MAJOR = 2
MOST_ROWS = 100_000
MOST_TABLES = 4096
OPERATORS = ("sum", "prod", "max", "min", "avg", "mulsum", "none")
_TYPES = "|".join(sorted(tables.ELEMENT_BYTES, key=len, reverse=True))
_ROW = re.compile(rf"(?<![\w.+/-])\d+[ \t]+\d+[ \t]+(?:{_TYPES})(?=\s|$)")
_HEADING = re.compile(
    r"(?:#\s*)?(?:"
    r"(?P<names>(?:size\s+count|bytes\s+N)\s+type\s.*)"
    r"|nccl-tests version (?P<version>\S+)"
    r"|" + tables.OWN_LINE +
    r"|Collective test starting: (?P<start>\S+)"
    r"|(?P<options>nThreads?:?\s+\d+\s+nGpus:?\s+\d+\s.*)"
    r"|(?P<device>Rank\s+\d{1,9}\s.*?\bdevice\s+\d+\s+\[.*)"
    r"|Out of bounds values\s*:\s*(?P<outside>\d{1,18}\b)"
    r"|Avg bus bandwidth\s*:\s*(?P<average>\S.*))")
_HINTS = re.compile(
    "hpcbench|size|bytes|nccl-tests|Collective|nThread|device|Out of|Avg bus")
_DEVICE = re.compile(r"Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)"
                     r"\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_STEP = re.compile(r"step:\s*(\d{1,18})\((bytes|factor)\)")
_WARMUP = re.compile(r"warmup iters:\s*(\d{1,9})")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )iters:\s*(\d{1,18})")
_BEGINS = ("names", "version", "own", "start", "options")
_ALIASES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_BASE = ("size", "count", "type", "redop", "root")
_HALF = ("time", "algbw", "busbw", "#wrong")
_EACH = ("i_min", "i_max", "i_p99", "i_cv%")
_STAMP = re.compile(r"\s+(\d{4}-\d\d-\d\d)\s+(\d\d:\d\d:\d\d)$")
_NONE_WRONG = tables.printed("0")
_ONE_HALF_BLANKS = 24
"""Blanks before a row's time where the half before it is left blank: 32 + 2, and never so many."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The fields of a row: those before the halves, and those of a half.

    ``halves``: how many the heading names, None without one. ``unit_us``: of times, in us."""

    base: tuple[str, ...] = _BASE
    half: tuple[str, ...] = _HALF
    halves: int | None = None
    unit_us: float = 1.0


def program_name(word: str) -> str:
    """Return ``all_reduce`` of ``/opt/all_reduce_perf`` or ``all_reduce_perf_mpi``; else ""."""
    name, found, _ = word.rpartition("/")[2].partition("_perf")
    return name if found else ""


class NcclTables:
    """The tables of a log, one after the other in each process; ``collective`` if none is named."""

    def __init__(self, file: ForeignFile, collective: str = "") -> None:
        self._file, self._collective = file, collective
        self._open: dict[str, _NcclTable] = {}

    def take(self, number: int, text: str) -> Iterable[tables.CommTable] | None:
        """Return the tables that end with this line; None if nothing in it is of nccl-tests."""
        row = _ROW.search(text)
        match = row or (_HEADING.search(text) if _HINTS.search(text) else None)
        if match is None:
            return None
        return self._taken(number, match, "row" if row else match.lastgroup or "")

    def _taken(self, number: int, match: re.Match[str], kind: str) -> Iterable[tables.CommTable]:
        ended: Iterable[tables.CommTable] = ()
        source = source_of(match.string[:match.start()])
        if source not in self._open and kind not in _BEGINS:
            table = nearest(source, self._open)
            source = source if table is None else table
        builder = self._open.get(source)
        if builder is None and len(self._open) == MOST_TABLES:
            raise self._file.error(number, f"more than {MOST_TABLES} processes print tables")
        if builder is not None and builder.begins_another(kind):
            ended, builder = builder.finished(), None
        if builder is None:
            builder = self._open[source] = _NcclTable(self._file, tables.CommTable(
                PROGRAM, self._file.name, number, self._collective, ()))
        if kind == "row":
            builder.add_row(number, match.string[match.start():])
        else:
            builder.add_heading(number, kind, match[kind])
        return ended

    def finished(self) -> Iterator[tables.CommTable]:
        """Yield the tables that are still open at the end of the file."""
        for builder in self._open.values():
            yield from builder.finished()


@dataclass(slots=True)
class _NcclTable:
    """A table that is being read; ``stated`` is what its headings say of it.

    ``refusal``: why its rows are left out."""

    file: ForeignFile
    stated: tables.CommTable
    program: str = ""
    refusal: str = ""
    has_heading: bool = False
    layout: RowLayout | None = None
    devices: list[tables.DeviceLine] = field(default_factory=list)
    rows: list[tables.CommRow] = field(default_factory=list)
    n_refused: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def has_rows(self) -> bool:
        return bool(self.rows or self.damaged)

    def begins_another(self, kind: str) -> bool:
        """Return whether a line of this kind belongs to the next table."""
        has_end = self.stated.average is not None
        if self.devices and kind in ("version", "start", "options"):
            return True  # these stand before the devices: the run before ended without a row
        return bool(self.has_rows or self.n_refused or has_end) and (
            kind in (*_BEGINS, "device") or has_end and kind == "row")

    def add_heading(self, number: int, kind: str, text: str) -> None:
        """Take a line that is no row; ``text`` is what matters of it."""
        if kind == "device":
            if match := _DEVICE.match(text):
                self.devices.append(tables.DeviceLine(int(match[1]), int(match[2] or 0), match[3],
                                                      match[4].strip()))
            if len(self.devices) > MOST_ROWS:
                raise self.file.error(number, f"more than {MOST_ROWS} lines of devices")
        elif kind == "version":
            self.stated = replace(self.stated, version=text)
            if int((re.match(r"\d{1,9}", text) or ["0"])[0]) > NEWEST_MAJOR:
                self.refusal = (f"rows of nccl-tests {text[:20]}, which is not known; known: up to "
                                f"{NEWEST_MAJOR}.x")
        elif kind == "start":
            self.has_heading, self.program = True, program_name(text)
        elif kind == "options":
            self.has_heading = True
            if step := _STEP.search(text):
                self.stated = replace(
                    self.stated, step_bytes=int(step[1]) if step[2] == "bytes" else None)
            if count := _ITERATIONS.search(text):
                self.stated = replace(self.stated, iterations=int(count[1]))
            if count := _WARMUP.search(text):
                self.stated = replace(self.stated, warmup=int(count[1]))
        elif kind == "own":
            try:
                version, own = tables.read_own(text)
                self.stated = replace(
                    self.stated, hpcbench=version, own=own, backend=own.backend if own else "",
                    device=own.device if own else "")
            except ValueError:
                self.refusal = "rows of a table of another version of hpcbench"
        elif kind == "names":
            self._take_names(text)
        elif kind == "outside":
            self.stated = replace(self.stated, out_of_bounds=int(text))
            self.lines["out_of_bounds"] = number
        else:
            self._take_average(number, text.split())

    def _take_average(self, number: int, words: Sequence[str]) -> None:
        try:
            self.stated = replace(self.stated, average=tables.printed_or_none(words[0]))
        except ValueError:
            return
        self.lines["average"] = number
        if words[1:2] == ["FAILED"]:
            self.stated = replace(self.stated, is_too_slow=True)

    def _take_names(self, text: str) -> None:
        self.layout = layout_of([word for word in text.split()
                                 if word.lower() not in ("timestamp", "time_stamp")])
        if self.layout is None:
            self.refusal = "rows of other columns than those of a known version of nccl-tests"
            return
        missing = [name for name in _BASE if name not in self.layout.base]
        self.stated = replace(self.stated, old_columns="; ".join(
            ([f"no column {' or '.join(missing)}"] if missing else [])
            + (["error in place of #wrong"] if "error" in self.layout.half else [])))

    def add_row(self, number: int, text: str) -> None:
        """Take a row, which begins with its size."""
        if self.refusal:
            self.n_refused += 1
            self.file.left_out.add(self.refusal, number)
            return
        try:
            row = _row(number, text, self.layout, self.stated.iterations)
        except ValueError:
            self.damaged.append((number, len(text.split())))
        else:
            self.rows.append(row)
            if len(self.rows) == 1 and (stamp := _STAMP.search(text.rstrip())):
                self.stated = replace(self.stated, started=" ".join(stamp.groups()))
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[tables.CommTable]:
        """Yield the table, if it has rows, or ended before the first of them."""
        stated = self.stated
        is_cut = self.has_heading and None in (stated.average, stated.out_of_bounds)
        if not self.has_rows and not (is_cut and self.devices and not self.refusal):
            return
        groups = {one.group for one in self.devices}
        if len({one.rank for one in self.devices}) < len(self.devices):
            groups = set()  # runs that print at once, as without MPI: none has them all
        half = (self.layout or RowLayout()).half
        rows = self.rows if stated.own is None else map(stated.own.without_copies, self.rows)
        yield replace(
            stated, collective=our_name(self.program) or stated.collective, rows=tuple(rows),
            ranks=len(self.devices) // len(groups) if groups else None,
            devices=tuple(self.devices), damaged=tuple(self.damaged), lines=self.lines,
            is_cut=is_cut,
            timed_rates="cputime" not in half and self.program != "hypercube",
            is_uneven=self.program == "alltoallv")


def layout_of(names: Sequence[str]) -> RowLayout | None:
    """Return the layout of a line of names; None if no known version prints it."""
    unit_us = 1000.0 if names[:1] == ["bytes"] else 1.0
    names = [_ALIASES.get(name, name) for name in names]
    at = next((i for i, name in enumerate(names) if name in ("time", "cputime")), None)
    if at is None or not set(names[:at]) <= set(_BASE) or tuple(names[:3]) != _BASE[:3]:
        return None
    ends = [i for i, name in enumerate(names[at + 1:], at + 1) if name in ("time", "cputime")]
    half = tuple(names[at:ends[0] if ends else len(names)])
    layouts = {(time, *_HALF[1:3], wrong, *each) for time in ("time", "cputime")
               for wrong in ("#wrong", "error") for each in ((), _EACH)}
    if half not in layouts or (ends and tuple(names[ends[0]:]) != half):
        return None
    return RowLayout(tuple(names[:at]), half, 2 if ends else 1, unit_us)


def _row(number: int, text: str, layout: RowLayout | None,
         iterations: int | None) -> tables.CommRow:
    """Return a row. Raises ValueError where a field is not what it should be."""
    text = text.rstrip()
    if text[-3:-2] == ":" and (stamp := _STAMP.search(text)):
        text = text[:stamp.start()]
    size, count, dtype, *rest = text.split()
    redop = rest.pop(0) if rest and rest[0] in OPERATORS else None
    if layout is None:
        layout = _layout_without_names(rest, redop)
        is_guess = True
    else:
        is_guess = False
    if redop is not None and "redop" not in layout.base:
        raise ValueError("an operator without a column")
    root = rest.pop(0) if "root" in layout.base and rest else "-1"
    if root != "-1":
        tables.whole(root)
    halves = _halves(text, rest, layout)
    size_bytes = tables.whole(size)
    if is_guess and not all(_is_rate(size_bytes, half) for half in halves):
        raise ValueError("rates of other times")
    return tables.CommRow(number, size_bytes, halves, count=tables.whole(count), dtype=dtype,
                          redop=None if redop == "none" else redop,
                          root=None if root == "-1" else tables.whole(root), iterations=iterations)


def _layout_without_names(rest: Sequence[str], redop: str | None) -> RowLayout:
    """Return the layout of a row in a log without headings, from what is behind the operator."""
    n_half = {4: 4, 5: 4, 8: 4, 9: 4, 16: 8, 17: 8}.get(len(rest), 0)
    n_base = len(rest) % 4
    base = tuple(name for name in _BASE if name != "root" or n_base == 1)
    if not n_half or n_base == 0 and not all("e" in one or one == "N/A" for one in rest[3::4]):
        raise ValueError("fields")
    wrong = "#wrong" if n_base == 1 else "error"
    return RowLayout(base, (*_HALF[:3], wrong, *(_EACH if n_half == 8 else ())))


def _halves(text: str, rest: Sequence[str], layout: RowLayout) -> tuple[tables.PrintedForm, ...]:
    """Return the measurements of a row. Raises ValueError unless all of their fields are there."""
    each = len(layout.half)
    if len(rest) == 2 * each and layout.halves != 1:
        return _half(False, rest[:each], layout), _half(True, rest[each:], layout)
    gap = max(map(len, re.findall(" +", text)))
    if len(rest) == each and (layout.halves == 1 or gap >= _ONE_HALF_BLANKS):
        return (_half(True, rest, layout),)
    raise ValueError("fields")


def _half(in_place: bool, fields: Sequence[str], layout: RowLayout) -> tables.PrintedForm:
    """Return a measurement, of fields in the order time, algbw, busbw, #wrong or error, others."""
    odd = tuple(f"{name} {one}" for name, one in zip(layout.half, fields[:3], strict=False)
                if tables.is_no_number(one)) if "n" in "".join(fields[:3]).lower() else ()
    time, algbw, busbw = (map(tables.printed, fields[:3]) if not odd else
                          [None if tables.is_no_number(one) else tables.printed(one)
                           for one in fields[:3]])
    wrong = tables.printed_or_none(fields[3]) if fields[3] != "0" else _NONE_WRONG
    n_wrong = None if wrong is None or layout.half[3] == "error" else int(wrong.value)
    if time is not None and layout.unit_us != 1:
        time = time.scaled(layout.unit_us)
    if len(fields) == 4:
        return tables.PrintedForm(in_place, time, algbw, busbw, n_wrong, None, None, (), odd)
    low, high, share, _ = map(tables.printed, fields[4:])
    return tables.PrintedForm(in_place, time, algbw, busbw, n_wrong, low, high, (share,), odd)


def _is_rate(size_bytes: int, half: tables.PrintedForm) -> bool:
    """Return whether algbw may be size / time: else the fields are not those they seem."""
    rate, time = half.algbw, half.time_us
    return rate is not None and time is not None and time.low > 0 and rate.may_be(
        size_bytes / time.high / 1e3, size_bytes / time.low / 1e3)
