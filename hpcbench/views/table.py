"""A table as every renderer gets it: columns that say what they are, and rows of raw values.

The text of a cell is the same in every renderer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from hpcbench.units import format_seconds, size_text, to_gb_per_s, to_ms, to_tflop_per_s

Tone = str
"""How much a line matters: one of TONES."""
TONES = ("plain", "title", "quiet", "warning")


class Show(Enum):
    """How the values of a column are shown; a value is in the unit given in brackets.

    Seconds and rates are shown with at least three significant digits and without an exponent.
    """

    TEXT = "text"
    COUNT = "count"
    """A whole number, also one of bytes or elements."""
    SIZE = "size"
    """[bytes] a whole number and the binary unit that fits"""
    NUMBER = "number"
    US = "us"
    """[s] microseconds"""
    MS = "ms"
    """[s] milliseconds"""
    S = "s"
    """[s] seconds"""
    DURATION = "duration"
    """[s] three significant digits and the unit that fits"""
    GB_PER_S = "GB/s"
    """[bytes/s] 1e9 bytes/s"""
    TFLOP_PER_S = "TFLOP/s"
    """[flop/s] 1e12 flop/s"""
    GFLOP = "GFLOP"
    """[flop] 1e9 flop"""
    MB = "MB"
    """[bytes] 1e6 bytes"""
    MIB = "MiB"
    """[bytes] 2**20 bytes"""
    PERCENT = "percent"
    """[share] one decimal"""
    WHOLE_PERCENT = "whole percent"
    """[share] no decimal"""
    SIGNIFICANT_PERCENT = "significant percent"
    """[share] at least three significant digits"""
    RATIO = "ratio"
    """two decimals"""


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest of several values; ``middle`` is their median, if shown."""

    least: float
    greatest: float
    middle: float | None = None


@dataclass(frozen=True, slots=True)
class WithInterval:
    """A value and the ends of its interval, which tell how many of its digits mean something."""

    value: float
    low: float
    high: float


Cell = str | int | float | Range | WithInterval | None
"""None is a value that there is not; text is shown as it is, whatever the column holds."""


@dataclass(frozen=True, slots=True)
class Column:
    """What one column of a table holds.

    Attributes:
        name: identifies the column, as in ``time_p50``.
        title: what people read above it.
        show: how its values are shown.
        unit: unit or base of the values as people read it: ``us``, ``elem``, ``a pass``.
        meaning: one sentence, where the title does not say enough.
        better: ``less`` or ``more`` if that is better, None if neither is.
        optional: left out of a table in which no row has a value for it.
    """

    name: str
    title: str
    show: Show = Show.TEXT
    unit: str = ""
    meaning: str = ""
    better: str | None = None
    optional: bool = False

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, with its `Tone`.

    ``topic`` is the word before it, empty where the line goes on with that of the line before; None
    of a line that has none.
    """

    text: str
    tone: Tone = "plain"
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row, in the order of the columns.

    ``status`` is that of the case that the row is about, ``case_id`` its id, where there is one.
    """

    cells: tuple[Cell, ...]
    status: str = "ok"
    case_id: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that have in common what ``title`` says; it is empty where it says nothing.

    ``timed`` is how their times were taken: mode and fold.
    """

    title: str
    rows: tuple[Row, ...]
    timed: str = ""

    @property
    def heading(self) -> str:
        return "  ".join(filter(None, (self.title, self.timed)))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: ``lead`` stands between title and columns, ``notes`` below the last row.

    Raises ValueError for a row that has not one cell a column.
    """

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    lead: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, 1):
            if len(row.cells) != len(self.columns):
                raise ValueError(f"table {self.title!r}, row {number}: {len(row.cells)} cells for "
                                 f"{len(self.columns)} columns")

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for group in self.groups for row in group.rows)

    def texts(self, row: Row) -> list[str]:
        """Return the text of each cell of a row, as every renderer shows it."""
        return [cell_text(cell, column.show)
                for cell, column in zip(row.cells, self.columns, strict=True)]

    def without_empty(self) -> Table:
        """Return the table without optional columns in which no row has a value."""
        rows = self.rows
        kept = [at for at, column in enumerate(self.columns)
                if not column.optional or not rows
                or any(row.cells[at] not in (None, "") for row in rows)]
        groups = tuple(replace(group, rows=tuple(
            replace(row, cells=tuple(row.cells[at] for at in kept)) for row in group.rows))
            for group in self.groups)
        return replace(self, columns=tuple(self.columns[at] for at in kept), groups=groups)


MISSING = "-"


def format_number(value: float) -> str:
    """Return a plain decimal, never an exponent, with at least three significant digits."""
    return f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    magnitude = _magnitude(value)
    return 2 - magnitude if magnitude < 0 else (2 if abs(value) < 1000 else 1)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def format_measured(value: float, low: float, high: float) -> str:
    """Return a plain decimal with the digits that its interval allows.

    They are those down to the second digit of half of the interval, at least two of the value, and
    no more than `format_number` has. So 3453.3 is 3450 where the interval is 2905.4 to 3885.9.
    """
    half = (high - low) / 2
    if not (half > 0 and math.isfinite(half)):
        return format_number(value)
    allowed = max(1 - _magnitude(half), 1 - _magnitude(value))
    decimals = min(allowed, _decimals(value))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


NUMBERS: Mapping[Show, Callable[[Any], Any]] = MappingProxyType({
    Show.US: lambda time_s: time_s * 1e6, Show.MS: to_ms, Show.S: lambda time_s: time_s,
    Show.GB_PER_S: to_gb_per_s, Show.TFLOP_PER_S: to_tflop_per_s,
    Show.GFLOP: lambda flops: flops / 1e9, Show.MB: lambda size: size / 1e6,
    Show.MIB: lambda size: size / 2**20, Show.SIGNIFICANT_PERCENT: lambda share: share * 100,
})
"""What makes the number, or the array, that people read of values; others are read as they are."""
_TEXTS: Mapping[Show, Callable[[float], str]] = MappingProxyType({
    Show.TEXT: str, Show.COUNT: str, Show.NUMBER: format_number, Show.DURATION: format_seconds,
    Show.SIZE: lambda value: size_text(int(value)), Show.RATIO: lambda value: f"{value:.2f}",
    Show.PERCENT: lambda value: f"{100 * value:.1f}",
    Show.WHOLE_PERCENT: lambda value: str(round(100 * value)),
})


def cell_text(cell: Cell, show: Show = Show.TEXT) -> str:
    """Return a cell's text; MISSING where it has no value.

    A range is ``1.2..3.4``, or ``2.3 (1.2..3.4)`` with its middle; if both ends and the middle
    read the same it is that. Its ends, and a value with an interval, have the digits that this
    allows (`format_measured`), unless the column has its own number of decimals.
    """
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    text = _TEXTS.get(show) or _number_text(cell, NUMBERS[show])
    if isinstance(cell, WithInterval):
        return text(cell.value)
    if not isinstance(cell, Range):
        return text(cell)
    least, greatest = text(cell.least), text(cell.greatest)
    if cell.middle is None:
        return f"{least}..{greatest}"
    middle = text(cell.middle)
    return middle if least == greatest else f"{middle} ({least}..{greatest})"


def _number_text(
    cell: float | Range | WithInterval, number_of: Callable[[Any], Any],
) -> Callable[[float], str]:
    if not isinstance(cell, (Range, WithInterval)):
        return lambda value: format_number(number_of(value))
    ends = (cell.least, cell.greatest) if isinstance(cell, Range) else (cell.low, cell.high)
    low, high = (number_of(end) for end in ends)
    return lambda value: format_measured(number_of(value), low, high)
