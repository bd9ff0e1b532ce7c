"""A table on the console: aligned columns whose numbers are never cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from rich.text import Text

from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Column, Line, Show, Table

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
