"""Text on the console: colours on a terminal, plain lines in a log; tables whose numbers are whole.

`Progress` shows on rank 0 how far the sweep is: a bar on a terminal, one flushed line per case,
however long, in a log. It draws only when a case ends: supervisors must not wake while something is
timed."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.text import Text

from hpcbench.plan.case import Case, status_of_case
from hpcbench.texts import as_field, printable, say_all, to_json
from hpcbench.units import digits, format_seconds, rough_time, with_sizes
from hpcbench.views.labels import short_labels
from hpcbench.views.table import Column, Line, Show, Table, distinct


def open_console(stream: TextIO | None = None) -> Console:
    """Return a console on ``stream`` (default: standard output as it is now).

    Its width is that of COLUMNS, else of its terminal, else 80. Open MPI gives every rank a
    terminal even where its own output goes to a file, so there only FORCE_COLOR makes it one."""
    is_log = "OMPI_COMM_WORLD_RANK" in os.environ and not os.environ.get("FORCE_COLOR")
    return _SafeConsole(file=stream or sys.stdout, highlight=False,
                        force_terminal=False if is_log else None)


class _SafeConsole(Console):
    """A console whose terminal obeys no text: only controls that rich itself adds take effect."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, with their texts made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


PAGE_COLUMNS = 100
"""Columns of sentences and tables where neither COLUMNS nor a terminal says how many there are."""


def print_lines(
    lines: Iterable[Text | Table], stream: TextIO | None = None, *, whole: bool = False,
) -> None:
    """Print each line or table as it comes; nothing is cut.

    Sentences are wrapped to COLUMNS, else the terminal, else `PAGE_COLUMNS`. Tables fit these
    (`fitted`), unless they are ``whole``."""
    console = open_console(stream)
    width = _columns(console)
    for item in lines:
        for line in [item] if isinstance(item, Text) else table_lines(
                item, None if whole else width):
            line.plain = as_field(line.plain)
            console.print(line.wrapped(width) if isinstance(line, Sentence) else line,
                          soft_wrap=True)


def _columns(console: Console) -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else (
        console.width if console.is_terminal else PAGE_COLUMNS)


_OPERAND = r"(?:'[^']*'|[^\s'])+"
_COMMAND = re.compile(
    rf"mpirun -np \S+ python -m \S+ \S+ --resume {_OPERAND}|--[a-z-]+ [\w.]+=[^\s;,]+"
    rf"|(?:hpcbench [a-z-]+|pip install)(?: -[\w-]+| [^\s']*/{_OPERAND})*")
_NUMBER = re.compile(r"(?<![^\s(])([\d.,]+) (?=[A-Za-z%])")


class Sentence(Text):
    """A line of prose, which wraps below its first ``indent`` characters.

    ``room``: the columns that it has where its reader gives it none; None for a whole line."""

    def __init__(
        self, text: str, indent: int = 2, style: str = "", room: int | None = None,
    ) -> None:
        super().__init__(text, style=style)
        self.indent, self.room = indent, room

    def wrapped(self, width: int | None = None) -> Text:
        width = width or self.room
        if not width or len(self) <= width or width < 2 * self.indent:
            return self
        space = "\N{NO-BREAK SPACE}"  # no line ends within a command, or between number and unit
        whole = _COMMAND.sub(lambda found: found[0].replace(" ", space), self.plain)
        return Text(textwrap.fill(
            _NUMBER.sub(rf"\1{space}", whole), width, subsequent_indent=" " * self.indent,
            break_long_words=False, break_on_hyphens=False).replace(space, " "), style=self.style)


def print_document(document: Mapping[str, Any]) -> None:
    """Print plain JSON values as JSON. Raises ValueError for NaN, which JSON has not."""
    say_all(to_json(document, indent=2, allow_nan=False))


STATUS_STYLES: Mapping[str, str] = MappingProxyType({
    "ok": "", "wrong": "bold red", "failed": "red", "timeout": "red", "skipped": "yellow",
    "not_run": "yellow"})
"""Status -> style of its lines."""
TONE_STYLES: Mapping[str, str] = MappingProxyType({
    "plain": "", "title": "bold", "quiet": "dim", "warning": "yellow",
    "good": "bold green", "caution": "bold yellow", "bad": "bold red"})
GAP = "  "
_TOPIC_WIDTH = 21


def table_lines(table: Table, width: int | None = None) -> Iterator[Text]:
    """Yield a blank line, the title, the columns' titles and units, the groups and the notes.

    ``width``: columns that the table has to fit, if it can."""
    table = table.without_empty()
    if width:
        table = fitted(table, width)
    titles, texts = _head(table.columns), [table.texts(row) for row in table.rows]
    if table.is_brief:  # its rows stand together by their first column
        for above, below in [*zip(texts, texts[1:], strict=False)][::-1]:
            below[0] = "" if below[0] == above[0] else below[0]
    widths = _widths([*titles, *texts])
    if width:
        widths = _narrowed(table.columns, widths, texts, width)

    yield Text()
    yield Sentence(table.title, len(GAP), "bold", width)
    yield from (tone_line(line, width) for line in table.lead)
    if texts and any(column.span for column in table.columns):
        yield Text(_spans(table.columns, widths), style="dim")
    yield from (Text(line, style="dim") for line in _aligned(table.columns, widths, titles)
                if line and texts)
    lines = (_cell_lines(table.columns, widths, cells) for cells in texts)
    for group in table.groups:
        if group.heading:
            heading = Sentence(group.heading, len(GAP), "cyan", width)
            yield heading if width else Text(heading.plain, heading.style)
        for row in group.rows:
            yield from (Text(line, style=STATUS_STYLES[row.status]) for line in next(lines))
    for note in table.notes:
        yield Sentence(f"{GAP}{note.text}", 2 * len(GAP), TONE_STYLES[note.tone], width)


def _head(columns: Sequence[Column]) -> list[list[str]]:
    """Return the lines of titles and of units."""
    return [[column.title for column in columns],
            [f"({one.unit})" if one.unit and "%" not in one.unit else one.unit for one in columns]]


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*lines, strict=True)]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def fitted(table: Table, width: int) -> Table:
    """Return a table that is wider than ``width`` columns with fewer ones.

    First what several rows share goes above them. Then it leaves out details and after them columns
    that are `Column.first_to_go`, each time the last one of them, until it fits; a note names them,
    with their span where another one of the title stays."""
    def is_wide(table: Table) -> bool:
        lines = [*_head(table.columns), *map(table.texts, table.rows)]
        return bool(table.columns) and _taken(_widths(lines)) > width

    if not is_wide(table):
        return table
    table, gone = table.shared_above() if len(table.rows) > 1 else table, list[Column]()
    others = table.columns[:0:-1]
    for column in (*(one for one in others if one.detail),
                   *(one for one in others if one.first_to_go and not one.detail)):
        if is_wide(table):
            gone.insert(0, column)
            table = table.with_columns([
                at for at, one in enumerate(table.columns) if one is not column])
    kept = {column.title for column in table.columns}
    names = distinct(f"{one.span} {one.title}".strip() if one.title in kept else one.title
                     for one in gone)
    note = f"left out to fit {width} columns: {names.replace(',', ', ')}; -v shows all"
    return replace(table, notes=(*table.notes, Line(note, "quiet"))) if gone else table


_QUANTITY = re.compile(r"[0-9.,]+ \S+")
"""A number with its unit, which stay on one line."""


def _narrowed(
    columns: Sequence[Column], widths: list[int], texts: Sequence[Sequence[str]], width: int,
) -> list[int]:
    """Return widths that fit, or nearly: the widest texts are to wrap between their words."""
    heads = _widths(_head(columns))
    least = [max((len(word) + (len(GAP) if place else 0) for row in texts
                  for place, word in enumerate(
                      [row[at]] if _QUANTITY.fullmatch(row[at]) else row[at].split())), default=0)
             if column.show is Show.TEXT else widths[at] for at, column in enumerate(columns)]
    floors, widths = [*map(min, widths, map(max, heads, least))], [*widths]
    while _taken(widths) > max(width, _taken(floors)):
        can = [at for at, one in enumerate(widths) if one > floors[at]]
        widths[max(can, key=widths.__getitem__)] -= 1
    return widths


def _cell_lines(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str],
) -> Iterator[str]:
    """Yield a row, whose long cells go on below, indented: no text can look like another row."""
    parts = [[cell] if len(cell) <= width else textwrap.wrap(
        cell, width, subsequent_indent=GAP, break_long_words=False, break_on_hyphens=False)
        for width, cell in zip(widths, cells, strict=True)]
    yield from _aligned(columns, widths, [*zip_longest(*parts, fillvalue="")])


def listing_lines(item: Line | Table) -> Iterator[Text]:
    """Yield an item of a listing: a line, or a table without a title, indented."""
    if isinstance(item, Line):
        yield tone_line(item)
        return
    lines = [[column.title for column in item.columns], *map(item.texts, item.rows)]
    yield from (Text(f"{GAP}{line}") for line in _aligned(item.columns, _widths(lines), lines))


def tone_line(line: Line, room: int | None = None) -> Sentence:
    """Return a line in the style of its tone."""
    begun = "" if line.topic is None else f"{GAP}{line.topic:<{_TOPIC_WIDTH}} "
    below = len(begun) or len(line.text) - len(line.text.lstrip()) + len(GAP)
    return Sentence(f"{begun}{line.text}", below, TONE_STYLES[line.tone], room)


def _spans(columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Return the line of spans, each above the end of its first column."""
    text, at, before = "", 0, ""
    for column, width in zip(columns, widths, strict=True):
        if column.span and column.span != before:
            text = f"{text:<{at}}{column.span:>{width}}"
        at, before = at + width + len(GAP), column.span
    return text


def _aligned(
    columns: Sequence[Column], widths: Sequence[int], lines: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Yield each line with its cells below those of the others: text left, numbers right."""
    for cells in lines:
        padded = (cell.ljust(width) if column.show is Show.TEXT else cell.rjust(width)
                  for column, width, cell in zip(columns, widths, cells, strict=True))
        yield GAP.join(padded).rstrip()


BAD = ("wrong", "failed", "timeout")
"""Statuses that are reported immediately, also above the bar."""
BAR_COLUMNS = 20
BESIDE_LABEL = 34
"""Columns for the counts and the time left, which a long label must not push out."""
LEAST_LEFT_S = 1.0
"""Less than that is not shown as remaining time."""
QUIET_S = 10.0
"""A log gets a line of how far the sweep is when nothing was printed for so long ..."""
FAR_OFF = 1.5
"""If all is this many times longer, or shorter, by the first pass than by the plan, the estimate is
corrected, if it changes by `QUIET_S` or more."""
QUIET_SHARE = 0.02
"""... or for this share of the time that is left, if that is longer."""


class _FirstPass(NamedTuple):
    """The first pass (launch, pass) so far: the time of its cases, their estimate, and that of the
    rest."""

    turn: tuple[int, int]
    took_s: float
    planned_s: float
    left_s: float


class _Run(NamedTuple):
    """How one run of a case ended, and which one it was."""

    status: str
    reason: str
    launch: int
    pass_index: int


class Progress:
    """Progress of the given cases, which are those still to come over all passes and launches.

    A context manager; what it prints goes to ``stream`` (default: standard output as it is now).
    With ``every_run`` a log has a line for each run of a case, by its whole label, not only for the
    last one. ``clock`` returns seconds. ``slow_reason``, if set, is why cases may take longer than
    planned; ``pace``: times of the plan's estimate that are expected; ``launches_left`` take
    ``launch_s`` each to start workers, until one is timed, which the first, begun before, is not;
    ``earlier``: statuses of each case's runs in earlier attempts, by its id. ``said`` is what a
    case's last line calls it, by the same function as the results do."""

    def __init__(
        self, cases: Sequence[Case], stream: TextIO | None = None, *, passes: int = 1,
        launches: int = 1, every_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the cases to come; nothing is printed yet."""
        self._repeats = (launches, passes)
        self._every_run = every_run
        self._total = len(cases)
        self._done = 0
        self._runs_left = Counter(case.case_id for case in cases)
        self._n_cases = len(self._runs_left)
        self._case_s: defaultdict[str, float] = defaultdict(float)
        self._left_s = sum(case.estimate_s for case in cases)
        self._measured_s = 0.0
        self._spent_s = 0.0
        self._clock = clock
        self._begun_s = self._ended_s = self._printed_s = clock()
        self._first_pass: _FirstPass | None = None
        self.slow_reason = ""
        self.pace = 1.0
        self.launch_s, self.launches_left = 0.0, launches
        self._starts_s: dict[int, float] = {}
        self.earlier: Mapping[str, Iterable[str]] = {}
        self.said: dict[str, str] = {}
        self._runs: defaultdict[str, list[_Run]] = defaultdict(list)
        self._labels: Mapping[str, str] = {}
        self.name_among(cases)
        self._console = open_console(stream)
        self._bar = Bar(
            MofNCompleteColumn(), BarColumn(BAR_COLUMNS), TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=self._console, auto_refresh=False, transient=True,
        ) if self._console.is_terminal else None
        self._task = self._bar.add_task("", total=self._total, left="") if self._bar else None

    def name_among(self, cases: Sequence[Case]) -> None:
        """Name each case by the words that distinguish it here; with ``every_run`` by its label."""
        self._labels = {} if self._every_run else {
            label: with_sizes(short)
            for label, short in short_labels(case.label for case in cases).items()}

    def _name(self, case: Case) -> str:
        return self._labels.get(case.label, case.label)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def case_done(
        self, case: Case, status: str, reason: str, seconds: float, launch: int = 0,
        pass_index: int = 0,
    ) -> None:
        """Count one run of a case.

        ``seconds`` is how long all of it took, set-up and checks included; ``launch`` and
        ``pass_index`` count from 0."""
        self._correct((launch, pass_index))
        if launch not in self._starts_s:
            start_s = self._clock() - self._ended_s - seconds
            self._starts_s[launch] = max(0.0, start_s) if self.launch_s else 0.0
            self.launches_left -= 1
        self._ended_s = self._clock()
        self._count(case, status, seconds)
        if self._first_pass and self._first_pass.turn == (launch, pass_index):
            self._first_pass = _FirstPass(
                (launch, pass_index), self._elapsed_s(), self._measured_s, self._left_s)
        self._runs[case.case_id].append(_Run(status, reason, launch, pass_index))
        is_last = self._runs_left[case.case_id] <= 0
        if is_last:
            self.said[case.case_id] = self._status(case)
        is_told = status in BAD or (self._every_run and self._bar is None)
        of_case = is_last and (self._every_run or self.said[case.case_id] == status)
        if is_told:
            self.message(f"{self._place(of_case=of_case)}{status:<7} {self._name(case)}  "
                         f"{self._which(launch, pass_index)}took {format_seconds(seconds)}  "
                         f"{reason}".rstrip(), is_whole=True)
        if self._bar is None and is_last and not (is_told and of_case):
            self._finished(case)
        elif not is_told and self._bar is None and self._is_quiet():
            self.message(f"{self._which(launch, pass_index)}{self._done} of {self._total} runs of "
                         f"cases done  {self.time_left()}".rstrip())
        if self._bar and self._task is not None:
            room = max(self._console.width - BESIDE_LABEL - BAR_COLUMNS, 1)
            label = Text(self._name(case))
            label.truncate(room, overflow="ellipsis")
            self._bar.update(
                self._task, advance=1, description=label.plain, left=self.time_left())
            self._bar.refresh()

    def _correct(self, turn: tuple[int, int]) -> None:
        """Print how long all takes as soon as the first pass is over, if far from the estimate."""
        first = self._first_pass
        if first is None:
            self._first_pass = _FirstPass(turn, 0.0, 0.0, self._left_s)
            return
        its_turn, took_s, planned_s, left_s = first
        if its_turn == turn or not planned_s or not took_s:
            return
        self._first_pass = first._replace(planned_s=0.0)  # printed once
        planned_s, left_s = self.pace * planned_s, self.pace * left_s
        ratio, starts_s = took_s / planned_s, sum(self._starts_s.values()) + self._starts_left_s()
        planned_all_s, all_s = planned_s + left_s + starts_s, took_s + ratio * left_s + starts_s
        off = all_s / planned_all_s
        if max(off, 1 / off) < FAR_OFF or abs(all_s - planned_all_s) < QUIET_S:
            return
        why = f" (perhaps as {self.slow_reason})" if ratio > 1 and self.slow_reason else ""
        self.message(f"{self._which(*its_turn)}took {rough_time(took_s)}, {digits(ratio, 2)} times "
                     f"its estimate{why}: about {rough_time(all_s)} in all, not "
                     f"{rough_time(planned_all_s)}")

    def _elapsed_s(self) -> float:
        """Return the seconds since the first case, those between cases of a launch included."""
        return max(self._spent_s,
                   self._clock() - self._begun_s - sum(self._starts_s.values()))

    def _starts_left_s(self) -> float:
        """Return how long later launches take to start workers: as the newest, not the first."""
        _, *later_s = self._starts_s.values()
        newest_s = later_s[-1] if later_s else self.launch_s
        return self.launches_left * newest_s

    def _count(self, case: Case, status: str, seconds: float) -> None:
        self._done += 1
        self._runs_left[case.case_id] -= 1
        self._case_s[case.case_id] += seconds
        self._left_s = max(0.0, self._left_s - case.estimate_s)
        if status != "skipped":
            self._measured_s += case.estimate_s
            self._spent_s += seconds

    def _status(self, case: Case) -> str:
        runs = (run.status for run in self._runs[case.case_id])
        return status_of_case([*self.earlier.get(case.case_id, ()), *runs])

    def _finished(self, case: Case) -> None:
        """Print the line of a case after its last run, now and then with the time left."""
        left = self.time_left() if self._is_quiet() else ""
        spent = f"took {format_seconds(self._case_s[case.case_id])}"
        self.message(f"{self._place()}{self.said[case.case_id]:<7} {self._name(case)}  {spent}  "
                     f"{self._why(case)}".rstrip() + f"  {left}".rstrip(), is_whole=True)

    def _why(self, case: Case) -> str:
        """Return why a case ended as it did, with the run that decided it if that is not the last.
        """
        *before, last = self._runs[case.case_id]
        status = self.said[case.case_id]
        if last.status == status:
            return last.reason
        if status == "ok":
            return f"{self._which(last.launch, last.pass_index)}{last.status}: {last.reason}"
        return next((f"{self._which(run.launch, run.pass_index)}{run.reason}"
                     for run in before if run.status == status), "in an earlier attempt")

    def _place(self, *, of_case: bool = True) -> str:
        """Return ``[ 3/20] ``: how many of the cases have had their last run.

        Where each run has a line, it is how many runs are done. The bar counts by itself."""
        if self._every_run:
            return "" if self._bar else f"[{self._done:>{len(str(self._total))}}/{self._total}] "
        if self._bar or not of_case:
            return ""
        finished = sum(left <= 0 for left in self._runs_left.values())
        return f"[{finished:>{len(str(self._n_cases))}}/{self._n_cases}] "

    def _is_quiet(self) -> bool:
        """Return whether the last line of progress in a log is long ago."""
        silent_s = self._clock() - self._printed_s
        is_quiet = silent_s >= max(QUIET_S, QUIET_SHARE * (self._seconds_left() or 0.0))
        if is_quiet:
            self._printed_s = self._clock()
        return is_quiet

    def _which(self, launch: int, pass_index: int) -> str:
        """Return ``launch 1/2 pass 3/3``, without a count of which there is only one."""
        launches, passes = self._repeats
        parts = [f"launch {launch + 1}/{launches}"] if launches > 1 else []
        parts += [f"pass {pass_index + 1}/{passes}"] if passes > 1 else []
        return f"{' '.join(parts)}  " if parts else ""

    def message(self, text: str, *, is_whole: bool = False) -> None:
        """Print a sentence immediately, wrapped: above the bar, or in a log unless ``is_whole``."""
        line, is_log = Sentence(as_field(text), 2 * len(GAP)), self._bar is None
        self._console.print(line if is_whole and is_log else line.wrapped(
            _columns(self._console)), soft_wrap=True)
        self._console.file.flush()

    def time_left(self) -> str:
        """Return ``about 40 s left``: the plan's estimate of the rest, scaled by measured times."""
        left_s = self._seconds_left()
        return "" if left_s is None or left_s < LEAST_LEFT_S else f"about {rough_time(left_s)} left"

    def _seconds_left(self) -> float | None:
        if not self._measured_s or not self._left_s:
            return None
        return self._left_s * self._elapsed_s() / self._measured_s + self._starts_left_s()
