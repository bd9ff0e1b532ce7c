"""Charts as every renderer gets them: raw values in SI units, what they mean, and how they look.

A renderer chooses places, sizes and fonts; it computes nothing but shown units. The table and the
charts of rooflines (`reduce.roofline`) are the same for every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from hpcbench.config.axes import BACKENDS
from hpcbench.records import dataclass
from hpcbench.reduce import roofline
from hpcbench.texts import as_field
from hpcbench.units import grouped, plural, three_digits
from hpcbench.views.labels import without_shared
from hpcbench.views.table import Cell, Column, Group, Line, Range, Row, Show, Table

MOST_SENTENCES = 8
"""Sentences of evidence below the table; summary.json has that of all."""
MOST_SPOTS = 20
"""More do not fit into the legend of a chart."""
DEFINITION = (
    "least times = what a rank needs over each ceiling; bound by = the longest of them, or latency "
    "where all",
    "  explain less than 10 %; score = that time / time (docs/hardware.md, Rooflines and scores)",
)
NO_CEILING = (
    "  none: this sweep measures and declares no peak; add blocks {kind: hardware, test: gemm}, "
    "with test: stream and pairs too, or declare peaks (docs/config.md)")
_COLUMNS = (
    Column("case", "case"), Column("part", "part", optional=True),
    Column("time", "time", Show.DURATION, better="less"),
    Column("rate", "rank", Show.TFLOP_PER_S, "TFLOP/s", better="more", optional=True),
    Column("memory_intensity", "memory", Show.NUMBER, "FLOP/B", "FLOPs over bytes of memory",
           optional=True),
    Column("network_intensity", "network", Show.NUMBER, "FLOP/B", "FLOPs over bytes sent",
           optional=True),
    *(Column(f"least_{limit}", limit, Show.DURATION, "least", optional=True)
      for limit in roofline.LIMITS),
    Column("bound_by", "bound by"),
    Column("score", "score", Show.WHOLE_PERCENT, "%", "of the binding ceiling", "more"),
    Column("of_declared", "of declared", Show.WHOLE_PERCENT, "%", better="more", optional=True),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A roofline, with the name and the id of its case."""

    name: str
    case_id: str
    found: roofline.Roofline

    @property
    def title(self) -> str:
        return f"{self.name} {self.found.part}".rstrip()


def roofline_tables(what: str, shown: Sequence[Shown], *, of: bool = False) -> Iterator[Table]:
    """Yield one table of all rooflines.

    Where none has a bound, the reasons; without rooflines, but with cases (``of``), what to add."""
    if not any(one.found.bound_by for one in shown):
        reasons = [f"  none: {text}" for text in dict.fromkeys(
            one.found.evidence for one in shown)] or [NO_CEILING] * of
        if reasons:
            yield Table(f"roofline of {what}", (), (), lead=tuple(
                Line(text, "quiet") for text in reasons))
        return
    ceilings = dict.fromkeys(
        least.ceiling for one in shown for least in one.found.least)
    yield Table(f"roofline of {what}", _COLUMNS, (Group("", tuple(map(_row, shown))),),
                lead=tuple(Line(f"  {_ceiling_text(ceiling)}", "quiet")
                           for ceiling in ceilings),
                notes=tuple(_sentences(shown)))


def _sentences(shown: Sequence[Shown]) -> Iterator[Line]:
    """Yield the evidence, one line for all that have the same."""
    groups = grouped(((one.found.bound_by, one.found.evidence), one.title) for one in shown)
    for (bound_by, evidence), titles in list(groups.items())[:MOST_SENTENCES]:
        who = titles[0] if len(titles) == 1 else plural(len(titles), "row")
        yield Line(f"{who}: {f'bound by {bound_by}: ' if bound_by else ''}{evidence}", "quiet")
    more = len(groups) - MOST_SENTENCES
    if more > 0:
        yield Line(f"  {more} more: bound_evidence and phase_bounds in summary.json", "quiet")


def rooflines_shown(
    what: str, shown: Sequence[Shown], *, of: bool = False,
) -> Iterator[Table | Line | RooflineChart]:
    """Yield the table of all rooflines, the meaning of its columns, and the charts."""
    yield from roofline_tables(what, shown, of=of)
    if any(one.found.bound_by for one in shown):
        yield from map(Line, DEFINITION)
    yield from roofline_charts(what, shown)


def roofline_charts(what: str, shown: Sequence[Shown]) -> Iterator[RooflineChart]:
    """Yield a chart for each compute and memory ceilings, of rooflines with FLOPs and a bound."""
    drawn = [one for one in shown if one.found.bound_by and one.found.demand.flops]
    groups = grouped((tuple(least.ceiling for least in one.found.least if least.ceiling.limit in (
        roofline.COMPUTE, roofline.MEMORY)), one) for one in drawn)
    for number, group in enumerate(groups.values(), 1):
        suffix = f"-{number}" if len(groups) > 1 else ""
        yield _chart(what, f"roofline-{what.replace(' ', '_')}{suffix}", group)


def _chart(what: str, stem: str, shown: Sequence[Shown]) -> RooflineChart:
    kept = shown[:MOST_SPOTS]
    shared, names = without_shared([one.title for one in kept])
    scores = ["" if one.found.score is None else
              f", {three_digits(100 * one.found.score)}\N{NO-BREAK SPACE}%" for one in kept]
    texts = [f"{name}: {one.found.bound_by}{score}"
             for name, one, score in zip(names, kept, scores, strict=True)]
    panels = [
        _panel(kept, texts, Axis("intensity", Show.NUMBER, "FLOP per byte of memory", Scale.LOG),
               roofline.MEMORY, [one.found.flop_per_memory_byte for one in kept]),
        _panel(kept, texts, Axis("intensity", Show.NUMBER, "FLOP per byte sent", Scale.LOG),
               roofline.COMMUNICATION, [one.found.flop_per_network_byte for one in kept])]
    note = f"The first {len(kept)} of {len(shown)} are drawn."
    return RooflineChart(
        f"roofline of {what}", ", ".join(filter(None, (
            shared, "of one rank; legend: what binds it, performance score"))), stem,
        ("Mark: FLOPs over the median time. Solid lines were measured in this run, dotted ones "
         "are declared.", *[note][:len(shown) - len(kept)]),
        tuple(dict.fromkeys(one.case_id for one in kept)),
        Axis("rate", Show.TFLOP_PER_S, "TFLOP/s", Scale.LOG),
        tuple(panel for panel in panels if panel.spots))


def _panel(
    shown: Sequence[Shown], texts: Sequence[str], x: Axis, limit: str,
    intensities: Sequence[float | None],
) -> RooflinePanel:
    spots = tuple(
        Spot(texts[number], number, intensity, (one.found.demand.flops or 0) / one.found.time_s)
        for number, (one, intensity) in enumerate(zip(shown, intensities, strict=True))
        if intensity is not None)
    ceilings = dict.fromkeys(least.ceiling for one in shown for least in one.found.least
                             if least.ceiling.limit in (roofline.COMPUTE, limit))
    return RooflinePanel(x, tuple(
        Roof(f"{ceiling.of if ceiling.limit == roofline.COMPUTE else ceiling.limit} "
             f"{roofline.rate_text(ceiling)}", ceiling.rate, ceiling.limit == limit,
             ceiling.source == roofline.DECLARED) for ceiling in ceilings), spots)


def _ceiling_text(ceiling: roofline.Ceiling) -> str:
    """Return ``compute: fp32 products, measured, 0.0834 TFLOP/s``."""
    of = f"{ceiling.of}, " * (ceiling.of != ceiling.limit)
    return f"{ceiling.limit}: {of}{ceiling.source}, {roofline.rate_text(ceiling)}"


def _row(shown: Shown) -> Row:
    bound = shown.found
    least: dict[str, float] = {}
    for each in bound.least:  # measured ones come first
        least.setdefault(each.ceiling.limit, each.time_s)
    times: tuple[Cell, ...] = tuple(least.get(limit) for limit in roofline.LIMITS)
    flops = bound.demand.flops
    return Row((shown.name, bound.part or None, bound.time_s,
                flops / bound.time_s if flops else None, bound.flop_per_memory_byte,
                bound.flop_per_network_byte, *times, bound.bound_by or "unknown", bound.score,
                bound.of_declared), case_id=shown.case_id)


# Okabe and Ito (2008) and Tol (2021), which colour-blind readers can distinguish.
BACKEND_COLOURS: Mapping[str, str] = MappingProxyType(dict(zip(BACKENDS, (
    "#0072B2", "#009E73", "#CC79A7", "#AA4499", "#E69F00", "#117733", "#D55E00", "#661100"),
    strict=True)))
"""Backend -> its colour, in each chart of each run."""
COLOURS = ("#44AA99", "#882255", "#E07A96", "#5B7F2B", "#56B4E9", "#332288", "#7B4B2A", "#999933",
           "#6D3A6D", "#DDAA33")
"""Colours of all else that is compared: implementations, strategies, functions, other lines."""
PART_COLOURS = ("#EEDD88", "#99DDFF", "#77AADD", "#EE8866", "#44BB99", "#FFAABB", "#BBCC33",
                "#C4A6DC", "#D9B38C", "#A3D9A5", "#E3A0C8", "#9AA7B5")
"""Colours of the parts of bars: of phases, then of memory."""
PLAIN, DARK, PALE = "#5B6B7B", "#22303C", "#A9B4BF"
"""Colours of marks that nothing else is compared with, of the best of them, and of others."""


class Scale(Enum):
    """How values are spread along an axis."""

    LINEAR = "linear"
    LOG = "log"
    LOG2 = "log2"
    """Ticks are at values that occur."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity along an axis. ``unit`` stands in brackets; ``limits`` None means all."""

    title: str
    show: Show = Show.COUNT
    unit: str = ""
    scale: Scale = Scale.LINEAR
    limits: Range | None = None

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Look:
    """How marks of one meaning look, and their name in the legend. ``width`` is in points;
    ``hatched`` is what is extrapolated."""

    label: str
    colour: str
    opacity: float = 1.0
    width: float = 1.2
    dotted: bool = False
    hatched: bool = False


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A measured value, its confidence interval, and the band in which samples lie."""

    value: float
    interval: Range | None = None
    band: Range | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """The parts of all charts: ``notes`` explain the marks, ``case_ids`` are the cases shown."""

    title: str
    subtitle: str
    file_stem: str
    notes: tuple[str, ...]
    case_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by their place along x, ascending; apart from one another unless ``is_joined``.

    ``colour`` is that of its backend, implementation, strategy or function; else one of COLOURS.
    What ``is_predicted`` has a dashed line without marks; ``hatched`` is the band of what is
    extrapolated."""

    label: str
    points: tuple[tuple[float, ChartPoint], ...]
    is_joined: bool = True
    colour: str = ""
    is_predicted: bool = False
    hatched: bool = False


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
    ``has_marks`` points are joined, but have no mark of their own."""

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
    """Panels beside one another with the same lines, or each with its own; some have no point."""

    x: Axis
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """A row with one point, and its values in words; ``case_id`` is its case, if it has one.

    ``mark`` is ``fastest`` where the row clearly is. ``colour``: as in a `Curve`."""

    label: str
    point: ChartPoint
    cells: tuple[Cell, ...]
    case_id: str = ""
    mark: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class DotChart(Chart):
    """Points to compare, one a row, and with the value of ``reference``. A cell of None is left
    out."""

    x: Axis
    columns: tuple[Column, ...]
    rows: tuple[Dot, ...]
    reference: float | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: segments one after the other, and values beside them.

    ``whisker`` is the range of the whole; ``limit`` marks a value across the bar; ``below`` is the
    length of a line below it, which ends where the bar ends. ``case_id``, ``mark`` and ``colour``,
    of the label, are those of a `Dot`."""

    label: str
    cells: tuple[Cell, ...]
    segments: tuple[tuple[float, Look], ...]
    whisker: Range | None = None
    limit: float | None = None
    below: float | None = None
    case_id: str = ""
    mark: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class BarSection:
    """Bars below one heading, which may be empty, and lines across all of them."""

    title: str
    bars: tuple[Bar, ...]
    lines: tuple[tuple[float, Look], ...] = ()


@dataclass(frozen=True, slots=True)
class BarChart(Chart):
    """Bars to compare. ``legend`` names looks of segments and lines.

    ``whisker``, ``limit`` and ``below`` are the names of these marks of bars in the legend."""

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
    colour: str = ""


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


@dataclass(frozen=True, slots=True, eq=False)  # == of arrays gives an array
class HeatMap(Chart):
    """A value for each row and column, as colour.

    Attributes:
        x, y: the axes; ``rows`` names the rows.
        values: each stands for ``step`` columns of ``n_columns``.
        colour: the axis of colours, from the least to the greatest of ``limits``; ``outside``:
            whether values are below, and above, them.
        spans: ranges of columns that are marked, each from its first to behind its last;
            ``span_title`` is the reason.
        breaks: columns before which something else begins."""

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
    """The words of the heat map of a case's samples, and the choice of the case that has one.

    ``heading`` names the call, ``words`` distinguish the case from others, ``note`` is a sentence
    on the meaning of rows. The case with the greatest ``order`` is mapped; ``rule`` states that
    order in words."""

    heading: str
    words: tuple[str, ...]
    order: tuple[int, ...]
    note: str = ""
    rule: str = "the most ranks"


Part = TypeVar("Part")


def in_fields(part: Part, text: Callable[[str], str] = as_field) -> Part:
    """Return a chart, or a part of one, with each of its texts as ``text`` shows it."""
    shown: Any = part
    if isinstance(part, str):
        shown = text(part)
    elif isinstance(part, tuple):
        shown = tuple(in_fields(one, text) for one in part)
    elif is_dataclass(part) and not isinstance(part, (type, Range, ChartPoint)):
        shown = replace(part, **{one.name: in_fields(getattr(part, one.name), text)
                                 for one in fields(part)})
    return cast("Part", shown)


def file_name(text: str, allowed: str = "-_.=") -> str:
    """Return the text with every other character than letters, digits and allowed ones as _."""
    return "".join(char if char.isalnum() or char in allowed else "_" for char in text)


def is_wide(values: Iterable[Range], factor: float) -> bool:
    """Return whether values are so far apart that a log scale shows them better."""
    ranges = list(values)
    greatest, least = max(one.greatest for one in ranges), min(one.least for one in ranges)
    return greatest > factor * least > 0
