"""A terminal gets colours and a progress bar, a log gets plain lines: which of them stdout is.

A table on the console: aligned columns whose numbers are never cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hpcbench.texts import printable, say, to_json
from hpcbench.views.table import Column, Line, Show, Table, cell_text

DEFAULT_COLUMNS = 80
"""Of a terminal that does not tell its width."""
_PROC = Path("/proc")
_TERMINALS = ("/dev/pts/", "/dev/tty")
_LAUNCHERS = ("mpiexec.hydra", "mpiexec", "mpirun")
_MARKING = ("l", "prepend-rank", "prepend-pattern", "outfile", "outfile-pattern")
"""Options of MPICH's mpirun (`mpirun --help`) that change what it writes, or where to."""
_MOST_ABOVE = 16


def open_console(stream: TextIO | None = None) -> Console:
    """Return a console on ``stream`` (default: standard output as it is now)."""
    found = launchers_terminal(os.environ) if stream is None else None
    if found is None:
        return _SafeConsole(file=stream or sys.stdout, highlight=False,
                            force_terminal=False if _has_log_behind(os.environ) else None)
    return _SafeConsole(file=sys.stdout, highlight=False, force_terminal=True, width=found)


class _SafeConsole(Console):
    """A console whose terminal obeys no text: only what rich itself adds can be a control."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        """Yield the segments of what is printed, with texts as they may be shown."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def print_lines(lines: Iterable[Text], stream: TextIO | None = None) -> None:
    """Print each line as it comes; a narrow terminal wraps it, and nothing is cut."""
    console = open_console(stream)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_document(document: Mapping[str, Any]) -> None:
    """Print plain JSON values as JSON. Raises ValueError for NaN, which JSON has not."""
    say(to_json(document, indent=2, allow_nan=False))


def launchers_terminal(environ: Mapping[str, str]) -> int | None:
    """Return the columns of the terminal to which MPICH's mpirun copies this rank's output.

    MPICH gives its ranks pipes, whose bytes its mpirun writes to its own standard output as they
    are. None where that is no terminal, where mpirun runs on another node, and where it was told
    to mark lines or to write files: a bar would be garbled there.
    """
    if "PMI_RANK" not in environ or sys.stdout is None or sys.stdout.isatty():
        return None
    try:
        if (launcher := _launcher(os.getpid())) is None:
            return None
        words = (_PROC / str(launcher) / "cmdline").read_bytes().decode(errors="replace")
        terminal = str((_PROC / str(launcher) / "fd/1").readlink())
        if not terminal.startswith(_TERMINALS) or any(
                word.lstrip("-") in _MARKING for word in words.split("\0")):
            return None
        handle = os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.get_terminal_size(handle).columns or DEFAULT_COLUMNS
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None


def _launcher(pid: int) -> int | None:
    """Return the process of MPICH's mpirun above a process; None if there is none on this node."""
    for _ in range(_MOST_ABOVE):
        # the name, in brackets, may hold spaces; the parent is the second field after it
        before, _, after = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
        if before.partition("(")[2] in _LAUNCHERS:
            return pid
        pid = int(after.split()[1])
        if pid <= 1:
            return None
    return None


def _has_log_behind(environ: Mapping[str, str]) -> bool:
    """Tell whether stdout is the terminal that Open MPI gives every rank, with a log behind it.

    Its mpirun does so even when its own output goes to a file, so the parent's stdout decides.
    """
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return False
    try:
        behind = (_PROC / str(os.getppid()) / "fd/1").readlink()
    except OSError:
        return False
    return not str(behind).startswith(_TERMINALS)


STATUS_STYLES: Mapping[str, str] = MappingProxyType({
    "ok": "", "wrong": "bold red", "failed": "red", "timeout": "red", "skipped": "yellow",
    "not_run": "yellow"})
"""Status -> how its lines look."""
TONE_STYLES: Mapping[str, str] = MappingProxyType({
    "plain": "", "title": "bold", "quiet": "dim", "warning": "yellow"})
GAP = "  "
_TOPIC_WIDTH = 11


def table_lines(table: Table) -> Iterator[Text]:
    """Yield a blank line, the title, the columns' titles and units, the groups and the notes."""
    table = table.without_empty()
    titles = [[column.title for column in table.columns],
              [_unit(column) for column in table.columns]]
    lines = _aligned(table.columns, [*titles, *_texts(table)])
    yield Text()
    yield Text(table.title, style="bold")
    yield from map(tone_line, table.lead)
    yield from (Text(line, style="dim") for line in islice(lines, len(titles)) if line)
    for group in table.groups:
        if group.heading:
            yield Text(group.heading, style="cyan")
        for row in group.rows:
            yield Text(next(lines), style=STATUS_STYLES[row.status])
    for note in table.notes:
        yield Text(f"{GAP}{note.text}", style=TONE_STYLES[note.tone])


def listing_lines(item: Line | Table) -> Iterator[Text]:
    """Yield what a listing says: a line, or a table without a title, indented."""
    if isinstance(item, Line):
        yield tone_line(item)
        return
    lines = [[column.title for column in item.columns], *_texts(item)]
    yield from (Text(f"{GAP}{line}") for line in _aligned(item.columns, lines))


def tone_line(line: Line) -> Text:
    """Return a line in the style of its tone."""
    begun = "" if line.topic is None else f"{line.topic:<{_TOPIC_WIDTH}} "
    return Text(f"{begun}{line.text}", style=TONE_STYLES[line.tone])


def _texts(table: Table) -> list[list[str]]:
    shows = [column.show for column in table.columns]
    return [list(map(cell_text, row.cells, shows)) for row in table.rows]


def _unit(column: Column) -> str:
    return f"({column.unit})" if column.unit and "%" not in column.unit else column.unit


def _aligned(columns: Sequence[Column], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each line with its cells below those of the others: text left, numbers right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        padded = (cell.ljust(width) if column.show is Show.TEXT else cell.rjust(width)
                  for column, width, cell in zip(columns, widths, cells, strict=True))
        yield GAP.join(padded).rstrip()
