"""The text of nccl-tests: several tables in a log, a launcher's prefixes, lines of NCCL between."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hpcbench.formats.printed import Printed, printed, printed_or_none, whole
from hpcbench.formats.reading.names import our_name
from hpcbench.formats.reading.source import ForeignFile, LogLine
from hpcbench.formats.tables import ELEMENT_BYTES, CommRow, CommTable, DeviceLine, Half

PROGRAM = "nccl-tests"
NEWEST_MAJOR = 2
MOST_ROWS = 100_000
MOST_TABLES = 4096
_TYPES = "|".join(sorted(ELEMENT_BYTES, key=len, reverse=True))
ROW = re.compile(rf"\s*\d+\s+\d+\s+(?:{_TYPES})(?:\s|$)")
_NAMES = re.compile(r"#\s+size\s+count\s+type\s")
_VERSION = re.compile(r"#\s*nccl-tests version (\S+)")
_START = re.compile(r"#\s*Collective test starting: (\S+)")
_OPTIONS = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+\d+\s")
_DEVICE = re.compile(r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)"
                     r"\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})\s*(OK|FAILED)?")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)\s*(OK|FAILED)?")
_STEP = re.compile(r"step:\s*(\d{1,18})\((bytes|factor)\)")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )iters:\s*(\d{1,18})")
_FAILURE = re.compile(r"Test (?:NCCL |CUDA )?failure")
_HEADINGS = (_VERSION, _START, _OPTIONS, _NAMES)
_BASE = ("size", "count", "type", "redop", "root")
_HALF = ("time", "algbw", "busbw", "#wrong")
_EACH = ("i_min", "i_max", "i_p99", "i_cv%")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The fields of a row: those before the halves, and those of a half."""

    base: tuple[str, ...] = _BASE
    half: tuple[str, ...] = _HALF

    @property
    def counts(self) -> tuple[int, int]:
        """Return how many fields a row has with one half and with two."""
        return len(self.base) + len(self.half), len(self.base) + 2 * len(self.half)


_USUAL = {9: RowLayout(), 13: RowLayout(), 21: RowLayout(half=(*_HALF, *_EACH))}


def program_name(word: str) -> str:
    """Return ``all_reduce`` of ``/opt/all_reduce_perf`` or ``all_reduce_perf_mpi``; else ""."""
    name, found, _ = word.rpartition("/")[2].partition("_perf")
    return name if found else ""


def is_marked(text: str) -> bool:
    """Return whether a line can only be one of nccl-tests."""
    return bool(ROW.match(text)) or any(one.match(text) for one in _HEADINGS)


def read(
    file: ForeignFile, lines: Iterable[LogLine], collective: str = "",
) -> Iterator[CommTable]:
    """Yield the tables of a log; ``collective`` is used where they name none.

    Raises FileError for columns or a version that are not known.
    """
    open_tables: dict[str, _NcclTable] = {}
    for line in lines:
        if line.prefix not in open_tables:
            if not (line.text.lstrip().startswith("#") or ROW.match(line.text)):
                continue
            if len(open_tables) == MOST_TABLES:
                raise file.error(line.number, f"more than {MOST_TABLES} processes print tables")
            open_tables[line.prefix] = _NcclTable(file, collective, line.number)
        builder = open_tables[line.prefix]
        if builder.begins_another(line.text):
            yield from builder.finished()
            builder = open_tables[line.prefix] = _NcclTable(file, collective, line.number)
        builder.add(line)
    for builder in open_tables.values():
        yield from builder.finished()


@dataclass(slots=True)
class _NcclTable:
    """A table that is being read."""

    file: ForeignFile
    collective: str
    line: int
    program: str = ""
    version: str = ""
    has_heading: bool = False
    layout: RowLayout | None = None
    old_columns: str = ""
    step_bytes: int | None = None
    iterations: int | None = None
    average: Printed | None = None
    out_of_bounds: int | None = None
    devices: list[DeviceLine] = field(default_factory=list)
    rows: list[CommRow] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    failures: dict[str, None] = field(default_factory=dict)

    def begins_another(self, text: str) -> bool:
        """Return whether a line belongs to the next table."""
        has_end = self.average is not None
        return bool(self.rows or has_end) and (
            any(one.match(text) for one in _HEADINGS) or has_end and bool(ROW.match(text)))

    def add(self, line: LogLine) -> None:
        text = line.text
        if ROW.match(text):
            self._add_row(line)
        elif text.lstrip().startswith("#"):
            self._add_heading(line)
        elif "ailure" in text and _FAILURE.search(text):
            self.failures["the log has a line of a test failure"] = None

    def _add_heading(self, line: LogLine) -> None:
        text = line.text.lstrip()
        if found := _DEVICE.match(text):
            self.devices.append(DeviceLine(int(found[1]), int(found[2] or 0), found[3],
                                           found[4].strip()))
            if len(self.devices) > MOST_ROWS:
                raise self.file.error(line.number, f"more than {MOST_ROWS} lines of devices")
        elif found := _VERSION.match(text):
            self.version = found[1]
            if int((re.match(r"\d{1,9}", found[1]) or ["0"])[0]) > NEWEST_MAJOR:
                raise self.file.error(line.number, f"nccl-tests {found[1][:20]} is not known; "
                                                   f"known: up to {NEWEST_MAJOR}.x")
        elif found := _START.match(text):
            self.has_heading, self.program = True, program_name(found[1])
        elif _OPTIONS.match(text):
            self.has_heading = True
            if step := _STEP.search(text):
                self.step_bytes = int(step[1]) if step[2] == "bytes" else None
            if count := _ITERATIONS.search(text):
                self.iterations = int(count[1])
        elif _NAMES.match(text):
            self._take_names(line)
        else:
            self._add_footer(text)

    def _add_footer(self, text: str) -> None:
        if found := _OUT_OF_BOUNDS.match(text):
            self.out_of_bounds = int(found[1])
        elif found := _AVERAGE.match(text):
            try:
                self.average = printed_or_none(found[1])
            except ValueError:
                return
            if found[2] == "FAILED":
                self.failures[f"the average {found[1]} GB/s is below NCCL_TESTS_MIN_BW"] = None

    def _take_names(self, line: LogLine) -> None:
        names = [word for word in line.text.lstrip(" #").split()
                 if word.lower() not in ("timestamp", "time_stamp")]
        layout = _layout_of(names)
        if layout is None:
            raise self.file.error(line.number, "these columns are not those of a known version of "
                                               "nccl-tests")
        self.layout = layout
        missing = [name for name in _BASE if name not in layout.base]
        self.old_columns = "; ".join(
            ([f"no column {' or '.join(missing)}"] if missing else [])
            + (["error in place of #wrong"] if "error" in layout.half else []))

    def _add_row(self, line: LogLine) -> None:
        fields = line.text.split()
        if len(fields) > 2 and _STAMP.fullmatch(fields[-2]):
            del fields[-2:]
        layout = self.layout or _USUAL.get(len(fields))
        try:
            if layout is None or len(fields) not in layout.counts:
                raise ValueError("fields")
            row = _row(line.number, fields, layout, self.iterations)
        except ValueError:
            self.damaged.append((line.number, len(fields)))
        else:
            self.rows.append(row)
        if len(self.rows) + len(self.damaged) > MOST_ROWS:
            raise self.file.error(line.number, f"a table of more than {MOST_ROWS} rows")

    def finished(self) -> Iterator[CommTable]:
        if not self.rows and not self.damaged:
            return
        groups = {one.group for one in self.devices}
        half = (self.layout or RowLayout()).half
        yield CommTable(
            PROGRAM, self.file.name, self.line, our_name(self.program) or self.collective,
            tuple(self.rows), version=self.version,
            ranks=len(self.devices) // len(groups) if groups else None,
            devices=tuple(self.devices), iterations=self.iterations, step_bytes=self.step_bytes,
            average=self.average, failures=tuple(self.failures), out_of_bounds=self.out_of_bounds,
            old_columns=self.old_columns, damaged=tuple(self.damaged),
            is_cut=self.has_heading and (self.average is None or self.out_of_bounds is None),
            timed_rates="cputime" not in half and self.program != "hypercube",
            is_uneven=self.program == "alltoallv")


def _layout_of(names: Sequence[str]) -> RowLayout | None:
    """Return the layout of a line of names; None if no known version prints it."""
    at = next((i for i, name in enumerate(names) if name in ("time", "cputime")), None)
    if at is None or not set(names[:at]) <= set(_BASE) or tuple(names[:3]) != _BASE[:3]:
        return None
    ends = [i for i, name in enumerate(names[at + 1:], at + 1) if name in ("time", "cputime")]
    half = tuple(names[at:ends[0] if ends else len(names)])
    known = {(time, *_HALF[1:3], wrong, *each) for time in ("time", "cputime")
             for wrong in ("#wrong", "error") for each in ((), _EACH)}
    if half not in known or (ends and tuple(names[ends[0]:]) != half):
        return None
    return RowLayout(tuple(names[:at]), half)


def _row(line: int, fields: Sequence[str], layout: RowLayout, iterations: int | None) -> CommRow:
    """Return a row. Raises ValueError where a field is not what it should be."""
    base = dict(zip(layout.base, fields, strict=False))
    rest, each = fields[len(layout.base):], len(layout.half)
    if len(rest) == each:
        halves = [_half(True, rest, layout)]
    else:
        halves = [_half(False, rest[:each], layout), _half(True, rest[each:], layout)]
    redop, root = base.get("redop"), base.get("root")
    return CommRow(
        line, whole(base["size"]), tuple(halves), count=whole(base["count"]), dtype=base["type"],
        redop=None if redop in (None, "none") else redop,
        root=None if root in (None, "-1") else whole(root), iterations=iterations)


def _half(in_place: bool, fields: Sequence[str], layout: RowLayout) -> Half:
    named = dict(zip(layout.half, fields, strict=True))
    time, algbw, busbw = (printed_or_none(one) for one in fields[:3])
    found = printed_or_none(named["#wrong"]) if "#wrong" in named else None
    wrong = None if found is None else int(found.value)
    if "i_min" not in named:
        return Half(in_place, time, algbw, busbw, wrong)
    low, high, share = (printed(named[name]) for name in ("i_min", "i_max", "i_p99"))
    return Half(in_place, time, algbw, busbw, wrong, low, high, (share,))
