"""Tables as every renderer gets them: columns that state their meaning, and rows of raw values.

The text of a cell is the same in every renderer, as are short words for cases, results and numbers:
the timing of cases (mode, fold, interval, clock, flags), injected faults and declared links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcbench.operations.arrival import TOGETHER
from hpcbench.plan.case import DEFAULT_MODE, Case, Plan
from hpcbench.plan.points import Option, Values
from hpcbench.records import dataclass
from hpcbench.reduce.metric import Show as Show
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.spread import late_share, ramp_share
from hpcbench.reduce.timing import CI_LEVEL
from hpcbench.registry import Offer, in_this_package
from hpcbench.texts import Lines, as_field
from hpcbench.units import (
    format_seconds,
    plural,
    seconds_unit,
    size_text,
    to_gb_per_s,
    to_ms,
    to_tflop_per_s,
    vary,
)

Tone = str
"""How much a line matters: one of TONES."""
TONES = ("plain", "title", "quiet", "warning", "good", "caution", "bad")


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest of several values; ``middle`` is their median, if shown."""

    least: float
    greatest: float
    middle: float | None = None


@dataclass(frozen=True, slots=True)
class WithInterval:
    """A value and the ends of its interval, which give the number of its significant digits."""

    value: float
    low: float
    high: float


Cell = str | int | float | Range | WithInterval | None
"""None is a missing value; text is shown as a field (or `Lines`), whatever the column holds."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: identifies the column, as in ``time_p50``.
        title: what people read above it.
        show: how its values are shown.
        unit: unit or base of the values as people read it: ``us``, ``elem``, ``a pass``.
        meaning: one sentence, where the title is not enough.
        better: ``less`` or ``more`` if that is better, None if neither is.
        optional: left out of a table in which no row has a value for it.
        usual: the expected value: a brief table leaves out a column that has no other.
        detail: left out of a brief table.
        first_to_go: left out of a table that is too wide, after its details.
        span: title above neighbouring columns that have the same one.
        named: its value says nothing without the title, as that of a user's argument."""

    name: str
    title: str
    show: Show = Show.TEXT
    unit: str = ""
    meaning: str = ""
    better: str | None = None
    optional: bool = False
    usual: Cell = None
    detail: bool = False
    first_to_go: bool = False
    span: str = ""
    named: bool = False

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, with its `Tone`. ``topic`` is the word before it, empty where the line goes
    on with that of the line before; None for a line that has none. ``about``: columns that a
    table's note explains, and is left out with."""

    text: str
    tone: Tone = "plain"
    topic: str | None = None
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row, in the order of the columns.

    ``status`` is that of the case that the row is about, ``case_id`` its id, where there is one;
    ``of_spans`` has that of each span, where the row is about a case a span."""

    cells: tuple[Cell, ...]
    status: str = "ok"
    case_id: str | None = None
    of_spans: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that have in common what ``title`` states; it may be empty.

    ``timed`` is how their times were taken: mode and fold."""

    title: str
    rows: tuple[Row, ...]
    timed: str = ""

    @property
    def heading(self) -> str:
        return "  ".join(filter(None, (self.title, self.timed)))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: ``lead`` stands between title and columns, ``notes`` below the last row.

    ``detail``: shown in detail only; ``is_brief``: of a block at the end of a run and in reports;
    its rows are in the order of their first column. Raises ValueError for a row that has not one
    cell a column."""

    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    lead: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()
    detail: bool = False
    is_brief: bool = False

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
        """Return the table without optional columns in which no row has a value, and with times in
        the units that fit them."""
        rows = self.rows
        table = self.with_columns([
            at for at, column in enumerate(self.columns) if not column.optional or not rows
            or any(row.cells[at] not in (None, "") for row in rows)])
        return replace(table, columns=tuple(_in_unit(column, [row.cells[at] for row in table.rows])
                                            for at, column in enumerate(table.columns)))

    def brief(self) -> Table:
        """Return the table without details, quiet notes, usual values and ends of ranges with a
        middle.

        Texts that all rows have in common at their beginning go into the title."""
        rows, kept, words = self.rows, list[int](), list[object]()
        shared = dict(vary(enumerate(row.cells) for row in rows)[0])
        n_labels = next((at for at, column in enumerate(self.columns)
                         if column.show is not Show.TEXT), len(self.columns))
        for at, column in enumerate(self.columns):
            is_usual = at in shared and shared[at] == column.usual
            is_same_text = 0 < at < n_labels and len(rows) > 1 and at in shared
            if not (column.detail or is_usual or is_same_text):
                kept.append(at)
            elif is_same_text and column.usual is None and not column.detail:
                words.append(f"{column.title}={shared[at]}" if column.named else shared[at])
        table = self.with_columns(kept)
        groups = tuple(replace(
            group, timed="" if group.timed == _USUAL_TIMED else group.timed,
            rows=tuple(replace(row, cells=tuple(map(_middle, row.cells))) for row in group.rows))
            for group in table.groups)
        columns = tuple(replace(column, unit=column.unit.removesuffix(RANGE).removesuffix(", "))
                        for column in table.columns)
        return replace(
            table, columns=columns, groups=groups,
            title=", ".join([self.title, *map(str, filter(None, words))]),
            notes=tuple(note for note in self.notes if note.tone != "quiet"))

    def shared_above(self) -> Table:
        """Return the table with the values that all rows share in a line above it, but for those
        of its first two columns and its last one. Words in place of a number have no unit."""
        table = self.without_empty()
        shared = dict(vary(enumerate(table.texts(row)) for row in table.rows)[0])
        alike = [at for at in range(2, len(table.columns) - 1)
                 if at in shared and not table.columns[at].span]
        labels = [column.title if column.show is not Show.TEXT and isinstance(cell, str) else
                  column.label for column, cell in zip(
                      table.columns, table.rows[0].cells if table.rows else (), strict=False)]
        words = ", ".join(  # of several with one label the title before them says which
            f"{table.columns[at - 1].title} " * (labels.count(labels[at]) > 1)
            + f"{labels[at]} {shared[at]}" for at in alike if shared[at] != MISSING)
        kept = table.with_columns([at for at in range(len(table.columns)) if at not in alike])
        if not words:
            return kept
        said = f"  {'all rows: ' * (len(table.rows) > 1)}{words}"
        names = {column.name for column in kept.columns}
        return replace(kept, lead=(*table.lead, Line(said, "quiet")), notes=tuple(
            note if names & {*note.about} else replace(note, about=()) for note in table.notes))

    def with_columns(self, kept: Sequence[int]) -> Table:
        groups = tuple(replace(group, rows=tuple(
            replace(row, cells=tuple(row.cells[at] for at in kept)) for row in group.rows))
            for group in self.groups)
        names = {self.columns[at].name for at in kept}
        return replace(
            self, columns=tuple(self.columns[at] for at in kept), groups=groups,
            notes=tuple(one for one in self.notes if not one.about or names & {*one.about}))


MISSING = "-"
RANGE = "range"
"""The end of a column's unit whose cells are a middle and a range."""
_USUAL_TIMED = "isolated, fold global"


def _middle(cell: Cell) -> Cell:
    return cell.middle if isinstance(cell, Range) and cell.middle is not None else cell


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
    no more than `format_number` has. So 3453.3 is 3450 where the interval is 2905.4 to 3885.9."""
    half = (high - low) / 2
    if not (half > 0 and math.isfinite(half)):
        return format_number(value)
    allowed = max(1 - _magnitude(half), 1 - _magnitude(value))
    return _rounded(value, min(allowed, _decimals(value)))


def _rounded(value: float, decimals: int) -> str:
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


_TIMES = {Show.US: 1e-6, Show.MS: 1e-3, Show.S: 1.0}
_MEASURED = (*_TIMES, Show.GB_PER_S, Show.TFLOP_PER_S)
"""Without an interval these have three significant digits."""


def _in_unit(column: Column, cells: Iterable[Cell]) -> Column:
    """Return a column of times with the unit that all of them have, or each with its own.

    A time has the unit that gives 1 to 999 wherever it stands."""
    if column.show not in _TIMES:
        return column
    units = {seconds_unit(time_s)[1] for time_s in map(_time_of, cells) if time_s}
    show = next((show for show in _TIMES if units == {show.value}), Show.DURATION)
    unit = column.unit.removesuffix(column.show.value)
    return replace(column, show=show, unit=(
        f"{unit}{show.value}" if show in _TIMES else unit.rstrip(", ")))


def _time_of(cell: Cell) -> float | None:
    """Return the time whose unit a cell has, None for text: a range has that of its greater end."""
    if isinstance(cell, Range):
        return cell.greatest if cell.middle is None else cell.middle
    if isinstance(cell, WithInterval):
        return cell.value
    return None if isinstance(cell, str) else cell


NUMBERS: Mapping[Show, Callable[[Any], Any]] = MappingProxyType({
    Show.US: lambda time_s: time_s * 1e6, Show.MS: to_ms, Show.S: lambda time_s: time_s,
    Show.GB_PER_S: to_gb_per_s, Show.TFLOP_PER_S: to_tflop_per_s,
    Show.GFLOP: lambda flops: flops / 1e9,
    Show.MIB: lambda size: size / 2**20,
    **dict.fromkeys((Show.PERCENT, Show.WHOLE_PERCENT, Show.SIGNIFICANT_PERCENT),
                    lambda share: share * 100),
})
"""Converters of a value, or an array, to the number that people read; others need none."""
_TEXTS: Mapping[Show, Callable[[float], str]] = MappingProxyType({
    Show.TEXT: str, Show.COUNT: str, Show.DURATION: format_seconds,
    Show.SIZE: lambda value: size_text(int(value)), Show.RATIO: lambda value: f"{value:.2f}",
    Show.PERCENT: lambda value: f"{round(100 * value, 1) + 0.0:.1f}",  # 0.0, never -0.0
    Show.WHOLE_PERCENT: lambda value: str(round(100 * value)),
})


def cell_text(cell: Cell, show: Show = Show.TEXT) -> str:
    """Return a cell's text; MISSING where it has no value.

    A range is ``1.2..3.4``, or ``2.3 (1.2..3.4)`` with its middle; if both ends read the same it is
    the middle. Its ends, and a value with an interval, have the digits that this allows
    (`format_measured`), unless the column has its own number of decimals."""
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell if isinstance(cell, Lines) else as_field(cell)
    if show is Show.DURATION and not isinstance(cell, (int, float)):
        return _with_unit(cell)
    text = _TEXTS.get(show) or _number_text(cell, show)
    if isinstance(cell, WithInterval):
        return text(cell.value)
    if not isinstance(cell, Range):
        return text(cell)
    least, greatest = text(cell.least), text(cell.greatest)
    if cell.middle is None:
        return f"{least}..{greatest}"
    middle = text(cell.middle)
    return middle if least == greatest else f"{middle} ({least}..{greatest})"


def _number_text(cell: float | Range | WithInterval, show: Show) -> Callable[[float], str]:
    number_of, is_measured = NUMBERS.get(show, float), show in _MEASURED
    if not isinstance(cell, (Range, WithInterval)):
        return lambda value: (_rounded(number_of(value), 2 - _magnitude(number_of(value)))
                              if is_measured else format_number(number_of(value)))
    ends = (cell.least, cell.greatest) if isinstance(cell, Range) else (cell.low, cell.high)
    low, high = (number_of(end) for end in ends)
    return lambda value: format_measured(number_of(value), low, high)


def time_texts(value: float, low: float | None, high: float | None) -> tuple[str, str]:
    """Return a time with its unit and digits, and its interval in that unit: ``1.81..2.70``."""
    scale, unit = seconds_unit(value)
    if low is None or high is None:
        return format_seconds(value), MISSING
    text, *ends = (format_measured(one * scale, low * scale, high * scale)
                   for one in (value, low, high))
    return f"{text} {unit}", "..".join(ends)


def _with_unit(cell: Range | WithInterval) -> str:
    """Return a time with the digits of its interval, or a range of times, and one unit."""
    if isinstance(cell, WithInterval):
        return time_texts(cell.value, cell.low, cell.high)[0]
    scale, unit = seconds_unit(_time_of(cell) or 0)
    ends = (cell.least, cell.greatest, *(() if cell.middle is None else (cell.middle,)))
    number = Range(*(end * scale for end in ends))
    return f"{cell_text(number, Show.NUMBER)} {unit}"


def like_median(value: float | None, median: Cell) -> Cell:
    """Return a value with the digits of the median that it follows from, or stands beside."""
    if value is None or not isinstance(median, WithInterval) or not median.value:
        return value
    low, high = (value * end / median.value for end in (median.low, median.high))
    return WithInterval(value, low, high)


def distinct(values: Iterable[object]) -> str:
    """Return the different values, comma-separated, in order of appearance; None is left out."""
    return ",".join(dict.fromkeys(str(value) for value in values if value is not None))


def span(numbers: Iterable[int]) -> int | Range:
    """Return the one number that all are, or their range; there is at least one."""
    ordered = sorted(set(numbers))
    return ordered[0] if len(ordered) == 1 else Range(ordered[0], ordered[-1])


def span_text(numbers: Iterable[int]) -> str:
    """Return ``64``, or ``64..8192``: the least and the most of at least one number."""
    return cell_text(span(numbers), Show.COUNT)


def from_to_text(numbers: Iterable[int]) -> str:
    """Return ``20``, or ``5 to 20``: the least and the most of at least one number."""
    return span_text(numbers).replace("..", " to ")


def options_text(options: Sequence[tuple[str, Option]]) -> str:
    """Return ``chunks=4 weight=sharded``, or nothing."""
    return " ".join(f"{name}={_plain(value)}" for name, value in options)


def option_lines(options: Mapping[str, Values]) -> Iterator[Line]:
    """Yield a line of `hpcbench list` for each option: its values, and its default."""
    for name, values in options.items():
        allowed = (", ".join(map(_plain, values.allowed)) if values.allowed else
                   values.forms or f"a number from {values.least}")
        yield listed_more(f"option {name}", f"{allowed}; default {_plain(values.default)}")


def plugin_lines(offers: Iterable[Offer[Any]], said: Callable[[Any], str]) -> Iterator[Line]:
    """Yield what packages offer, each in the words of ``said``, or why it cannot be used."""
    of_packages = [offer for offer in offers if not in_this_package(offer.origin)]
    if of_packages:
        yield Line("plug-ins", "title")
    for offer in of_packages:
        state = (f"cannot be used: {offer.problem}" if offer.problem else
                 "; ".join(map(said, offer.values)))
        yield Line(f"  {offer.name:<20}{offer.origin}: {state}",
                   "warning" if offer.problem else "plain")


def listed_more(title: str, text: str) -> Line:
    """Return a line of `hpcbench list` below the one that it details."""
    return Line(f"{'':<22}{title}: {text}", "quiet")


def _plain(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def env_text(case: Case) -> str:
    """Return ``NCCL_ALGO=Ring NCCL_PROTO=LL``, or nothing."""
    return " ".join(f"{key}={value}" for key, value in case.env)


def backend_text(case: Case) -> str:
    return f"{case.backend} {env_text(case)}".rstrip()


def device_type(result: CaseResult) -> str:
    """Return ``cpu`` or ``cuda``: where the case ran, or was planned to run."""
    return (result.device or result.case.device).split(":")[0]


def device_memory_how(result: CaseResult) -> str | None:
    """Return ``direct``, ``staged``, ``direct,staged`` where ranks differ; None if unknown."""
    reports = [left["device_memory"] for left in result.detail.values() if "device_memory" in left]
    return distinct(sorted(item["how"] for item in reports)) or None


def device_memory_text(result: CaseResult) -> str:
    """Return ``staged through the host`` or the like; nothing for what is usual, direct on cpu."""
    how = device_memory_how(result)
    if how is None or (how == "direct" and device_type(result) == "cpu"):
        return ""
    return {"staged": "staged through the host", "direct": "direct"}.get(
        how, "direct on some ranks, staged through the host on others")


MODES: Mapping[str, str] = MappingProxyType({
    "isolated": "a sample is one call, which all ranks start at an agreed time",
    "pipelined": "a sample is several calls back to back after a barrier of a control group",
    "barrier_start": "a sample is one call after a barrier of a control group",
})
"""Timing mode -> what a sample is (docs/method.md)."""
USUAL_FOLDS: Mapping[str, str] = MappingProxyType({
    "isolated": "global", "pipelined": "per_call", "barrier_start": "local_max"})
"""Timing mode -> the fold of its times, unless a case has another."""
INTERVAL_TITLE = f"{CI_LEVEL:.0%} confidence interval of the median (order statistics)"

FLAGS: Mapping[str, str] = MappingProxyType({
    "clock_unreliable": "clock", "missed_lateness": "delay", "late_starts": "late",
    "fragile": "fragile", "two_modes": "modes",
    "repeats": "repeats", "ramp": "ramp", "trend": "trend", "change_point": "change",
    "unsteady": "unsteady", "cut": "cut", "imported": "imported"})
"""Word of QUALITIES -> its short form; ci_unreliable is the question mark of the interval."""


def launches_title(items: Iterable[CaseResult]) -> str:
    """Return the meaning of the range of launches' medians; "" for cases without one."""
    levels = {(len(item.timing.launch_medians_s), item.timing.launch_level) for item in items
              if item.timing and item.timing.launch_level is not None}
    holds = distinct(f"{100 * level:.4g} % ({plural(n, 'launch')})" for n, level in sorted(
        (n, level) for n, level in levels if level is not None))
    return (f"least to greatest median of a launch; it holds the median over launches with a "
            f"probability of {holds}" if levels else "")


def fold_of(item: CaseResult) -> str:
    return item.timing.fold if item.timing else USUAL_FOLDS[item.case.mode]


def mode_and_fold(item: CaseResult) -> tuple[str, str]:
    """Return both names; times that differ in one of them must never be compared."""
    return item.case.mode, fold_of(item)


def timed_text(item: CaseResult) -> str:
    """Return the mode and the fold of a case's times: ``isolated, fold global``."""
    return ", fold ".join(mode_and_fold(item)) + _special_text(item.case)


def mode_text(item: CaseResult) -> str:
    """Return the mode, with its fold where that is not the usual one."""
    mode, fold = mode_and_fold(item)
    text = mode if fold == USUAL_FOLDS[mode] else f"{mode} (fold {fold})"
    return text + _special_text(item.case)


def punctual_mode_text(item: CaseResult) -> str:
    """Return `mode_text` without late ranks, "" for the usual one."""
    case = replace(item.case, arrival=TOGETHER)
    text = mode_text(replace(item, case=case))
    return "" if text == DEFAULT_MODE else text.removeprefix(f"{DEFAULT_MODE}, ")


def _special_text(case: Case) -> str:
    """Return words for the replay of a CUDA graph, and for ranks that enter late, if so."""
    late = case.arrival.words
    return (", CUDA graph" if case.cuda_graph else "") + (f", {late}" if late else "")


def flag_cell(item: CaseResult, show: Show = Show.US) -> str:
    """Return the case's flags with their figures: ``late: 23%, trend``.

    Times are shown in the unit of the table's times."""
    if item.timing is None or item.statistics is None:
        return ""
    unflagged_s = item.timing.unflagged_median_s  # None where all samples are flagged
    figures = {
        "late_starts": f"{late_share(item) or 0:.0%}",
        "ramp": f"{ramp_share(item) or 0:.0%}",
        "two_modes": " ".join(f"{cell_text(mode.median_s, show)} {show.value} {mode.share:.0%}"
                              for mode in item.timing.modes),
        "fragile": "" if unflagged_s is None else (
            f"{cell_text(unflagged_s, show)} {show.value} unflagged")}
    return ", ".join(f"{FLAGS[flag]}: {figures.get(flag, '')}".rstrip(": ")
                     for flag in item.timing.quality if flag in FLAGS)


def flag_words(item: CaseResult) -> str:
    """Return the case's flags without their figures: ``late, trend``."""
    flags = item.timing.quality if item.timing else ()
    return ", ".join(FLAGS[flag] for flag in flags if flag in FLAGS)


def iterations_text(cases: Sequence[Case]) -> str:
    """Return ``20`` or ``5 to 10000`` samples of a pass, over cases that may differ."""
    least = min((case.min_iterations or case.iterations for case in cases), default=0)
    most = max((case.iterations for case in cases), default=0)
    return str(most) if least == most else f"{least} to {most}"


def batch_text(case: Case) -> str:
    text = f"{case.mode} x{case.batch}" if case.batch > 1 else case.mode
    return text + _special_text(case)


def repeats_text(plan: Plan) -> str:
    """Return ``3 passes`` or ``2 launches x 3 passes``."""
    passes = plural(plan.passes, "pass")
    return passes if plan.launches == 1 else f"{plural(plan.launches, 'launch')} x {passes}"


def declared_links(config: Mapping[str, Any]) -> str:
    """Return ``declared: interconnect nvlink, nvlink 450 GB/s`` of a plan's config, or nothing."""
    hardware = config.get("hardware", {})
    name, rate = hardware.get("interconnect"), hardware.get("network_bandwidth_gbps")
    parts = [f"interconnect {name}"] if name else []
    parts += [f"{link} {peak:g} GB/s" for link, peak in hardware.get("link_peaks", {}).items()]
    parts += [f"network {rate:g} Gbit/s a node"] if rate else []
    return f"declared: {', '.join(parts)}" if parts else ""
