"""Charts as every renderer gets them: raw values in SI units, what they mean, and how they look.

A renderer chooses places, sizes and fonts; it computes nothing but shown units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from hpcbench.views.table import Cell, Column, Range, Show

# Okabe and Ito (2008), without yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
"""Colours that colour-blind readers can tell apart. Lines without a `Look` take them in turn."""


class Scale(Enum):
    """How values are spread along an axis."""

    LINEAR = "linear"
    LOG = "log"
    LOG2 = "log2"
    """Ticks are at values that occur."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What is along an axis. ``unit`` is what stands in brackets; ``limits`` None means all."""

    title: str
    show: Show = Show.COUNT
    unit: str = ""
    scale: Scale = Scale.LINEAR
    limits: Range | None = None

    @property
    def label(self) -> str:
        """Return the title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Look:
    """How marks of one meaning look, and what the legend calls them. ``width`` is in points."""

    label: str
    colour: str
    opacity: float = 1.0
    width: float = 1.2
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A measured value, its confidence interval, and the band in which samples lie."""

    value: float
    interval: Range | None = None
    band: Range | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """What all charts have: ``notes`` explain the marks, ``case_ids`` are the cases shown."""

    title: str
    subtitle: str
    file_stem: str
    notes: tuple[str, ...]
    case_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by their place along x, ascending; apart from one another unless ``is_joined``."""

    label: str
    points: tuple[tuple[float, ChartPoint], ...]
    is_joined: bool = True


@dataclass(frozen=True, slots=True)
class Level:
    """A value across a panel that none should exceed, such as a declared peak (``dotted``)."""

    label: str
    value: float
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines above one x axis.

    ``reference`` is a range to compare with, and its middle; ``empty`` stands where no line has a
    point. ``spans`` are ranges along x that are shaded, in two tones in turn. Without
    ``has_marks`` points are joined, but have no mark of their own.
    """

    y: Axis
    lines: tuple[Curve, ...]
    title: str = ""
    reference: Range | None = None
    empty: str = ""
    spans: tuple[tuple[float, float], ...] = ()
    has_marks: bool = True
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True, slots=True)
class LineChart(Chart):
    """Panels beside one another with the same lines, of which some may have no point.

    Or each has lines of its own.
    """

    x: Axis
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """A row with one point, and its values in words; of the case ``case_id``, if of one.

    ``mark`` is what its row is among the others: ``fastest``, where that is clear.
    """

    label: str
    point: ChartPoint
    cells: tuple[Cell, ...]
    case_id: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class DotChart(Chart):
    """Points to compare, one a row. A cell of None is left out."""

    x: Axis
    columns: tuple[Column, ...]
    rows: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: segments one after the other, and values beside them.

    ``whisker`` is the range of the whole; ``limit`` marks a value across the bar; ``below`` is the
    length of a line below it, which ends where the bar ends. ``case_id`` and ``mark`` are those of
    a `Dot`.
    """

    label: str
    cells: tuple[Cell, ...]
    segments: tuple[tuple[float, Look], ...]
    whisker: Range | None = None
    limit: float | None = None
    below: float | None = None
    case_id: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class BarSection:
    """Bars below one heading, which may be empty, and lines across all of them."""

    title: str
    bars: tuple[Bar, ...]
    lines: tuple[tuple[float, Look], ...] = ()


@dataclass(frozen=True, slots=True)
class BarChart(Chart):
    """Bars to compare. ``legend`` names looks of segments and lines.

    ``whisker``, ``limit`` and ``below`` are what the legend calls these marks of bars.
    """

    x: Axis
    columns: tuple[Column, ...]
    sections: tuple[BarSection, ...]
    legend: tuple[Look, ...]
    whisker: str = ""
    limit: str = ""
    below: str = ""

    def __post_init__(self) -> None:
        for bar in (bar for section in self.sections for bar in section.bars):
            if len(bar.cells) != len(self.columns):
                raise ValueError(f"chart {self.title!r}, bar {bar.label!r}: {len(bar.cells)} cells "
                                 f"for {len(self.columns)} columns")

    def without_empty(self) -> BarChart:
        """Return the chart without columns in which no bar has a value, and looks of no length."""
        bars = [bar for section in self.sections for bar in section.bars]
        kept = [at for at in range(len(self.columns))
                if any(bar.cells[at] is not None for bar in bars)]
        seen = {look for bar in bars for length, look in bar.segments if length > 0}
        seen |= {look for section in self.sections for _, look in section.lines}
        sections = tuple(replace(section, bars=tuple(
            replace(bar, cells=tuple(bar.cells[at] for at in kept)) for bar in section.bars))
            for section in self.sections)
        return replace(self, columns=tuple(self.columns[at] for at in kept), sections=sections,
                       legend=tuple(look for look in self.legend if look in seen))


@dataclass(frozen=True, slots=True)
class Roof:
    """A ceiling: flat in FLOP/s, or with ``is_slope`` the FLOP/s that so many bytes/s allow."""

    label: str
    rate: float
    is_slope: bool
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Spot:
    """A measured rate by its intensity; ``number`` is the same in all panels, for its look."""

    label: str
    number: int
    intensity: float
    rate: float


@dataclass(frozen=True, slots=True)
class RooflinePanel:
    """Spots below the roofs of one resource, both axes logarithmic."""

    x: Axis
    roofs: tuple[Roof, ...]
    spots: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class RooflineChart(Chart):
    """Panels beside one another, with one legend of all spots."""

    y: Axis
    panels: tuple[RooflinePanel, ...]


@dataclass(frozen=True, slots=True, eq=False)  # arrays have no one answer to ==
class HeatMap(Chart):
    """A value for each row and column, as colour.

    Attributes:
        x, y: the axes; ``rows`` names the rows.
        values: each stands for ``step`` columns of ``n_columns``.
        colour: the axis of colours, from the least to the greatest of ``limits``; ``outside`` says
            whether values are below and above them.
        spans: ranges of columns that are marked, each from its first to behind its last;
            ``span_title`` says why.
        breaks: columns before which something else begins.
    """

    x: Axis
    y: Axis
    rows: tuple[int, ...]
    values: npt.NDArray[np.float64]
    n_columns: int
    step: int
    colour: Axis
    limits: Range
    outside: tuple[bool, bool]
    spans: tuple[tuple[int, int], ...]
    span_title: str
    breaks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeatMapCase:
    """What the heat map of a case's samples says of it, and which of a kind's cases has one.

    ``heading`` is what was called, ``words`` are what else tells the case from others, ``note`` is
    a sentence on what rows mean. The case that is mapped has the greatest ``order``, which
    ``rule`` says in words.
    """

    heading: str
    words: tuple[str, ...]
    order: tuple[int, ...]
    note: str = ""
    rule: str = "the most ranks"


def file_name(text: str, allowed: str = "-_.=") -> str:
    """Return the text with every other character than letters, digits and allowed ones as _."""
    return "".join(char if char.isalnum() or char in allowed else "_" for char in text)


def is_wide(values: Iterable[Range], factor: float) -> bool:
    """Return whether values are so far apart that a log scale shows them better."""
    ranges = list(values)
    greatest, least = max(one.greatest for one in ranges), min(one.least for one in ranges)
    return greatest > factor * least > 0
