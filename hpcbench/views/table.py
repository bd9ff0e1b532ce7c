"""A table as every renderer gets it: columns that say what they are, and rows of raw values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

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


@dataclass(frozen=True, slots=True)
class Words:
    """Words that a row has, such as its flags: pairs of a word and its figure, or ``""``."""

    marks: tuple[tuple[str, str], ...] = ()


Cell = str | int | float | Range | WithInterval | Words | None
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
        once: said above the rows that have the same value, instead of in each of them
            (`views.said_once`).
    """

    name: str
    title: str
    show: Show = Show.TEXT
    unit: str = ""
    meaning: str = ""
    better: str | None = None
    optional: bool = False
    once: bool = False


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
        """Return all that the rows have in common."""
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
        """Return the rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)

    def without_empty(self) -> Table:
        """Return the table without optional columns in which no row has a value."""
        rows = self.rows
        kept = [at for at, column in enumerate(self.columns)
                if not column.optional or not rows
                or any(row.cells[at] not in (None, "", Words()) for row in rows)]
        return self.with_columns(kept)

    def with_columns(self, kept: Sequence[int]) -> Table:
        """Return the table with only these of its columns, by their numbers."""
        groups = tuple(replace(group, rows=tuple(
            replace(row, cells=tuple(row.cells[at] for at in kept)) for row in group.rows))
            for group in self.groups)
        return replace(self, columns=tuple(self.columns[at] for at in kept), groups=groups)
