"""Tables as a template reads them: each cell with its text, and with what it is sorted by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Cell, Column, Group, Line, Range, Show, Table, WithInterval, Words

_LONG = 20
"""Characters of a text from which on its column has a least width."""
_MOST_CHOICES = 12
"""A column with more different texts than this is filtered by text only."""


@dataclass(frozen=True, slots=True)
class CellShown:
    """The text of a cell, and its sort key; ``status`` is that of the row if it is not ok."""

    text: str
    key: str


@dataclass(frozen=True, slots=True)
class RowShown:
    """A row: its cells, and the status of what it is about."""

    cells: tuple[CellShown, ...]
    status: str


@dataclass(frozen=True, slots=True)
class ColumnShown:
    """A column: ``choices`` are its different texts, where there are few: an axis to filter by.

    ``is_long`` of texts that would stand one word below the other in what other columns leave.
    """

    title: str
    unit: str
    meaning: str
    is_text: bool
    is_long: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableShown:
    """A table as it is shown; ``groups`` are pairs of a heading and rows.

    ``meanings`` are pairs of a column's title and what it means, each once.
    """

    title: str
    columns: tuple[ColumnShown, ...]
    groups: tuple[tuple[str, tuple[RowShown, ...]], ...]
    lead: tuple[Line, ...]
    meanings: tuple[tuple[str, str], ...]
    notes: tuple[Line, ...]


def shown(table: Table) -> TableShown:
    """Return a table without its empty optional columns, as texts and sort keys."""
    table = table.without_empty()
    columns = tuple(_column(table, at, column) for at, column in enumerate(table.columns))
    return TableShown(
        table.title, columns,
        tuple((group.heading, tuple(_rows(table, group))) for group in table.groups), table.lead,
        tuple(dict.fromkeys((one.title, one.meaning) for one in columns if one.meaning)),
        table.notes)


def _column(table: Table, at: int, column: Column) -> ColumnShown:
    is_text = column.show is Show.TEXT
    texts = tuple(dict.fromkeys(cell_text(row.cells[at], column.show) for row in table.rows))
    choices = texts if is_text and 1 < len(texts) <= _MOST_CHOICES else ()
    is_long = is_text and max(map(len, texts), default=0) > _LONG
    return ColumnShown(column.title, column.unit, _meaning(column), is_text, is_long, choices)


def _meaning(column: Column) -> str:
    better = f"{column.better} is better" if column.better else ""
    return "; ".join(filter(None, (column.meaning, better)))


def _rows(table: Table, group: Group) -> Iterator[RowShown]:
    for row in group.rows:
        yield RowShown(tuple(
            CellShown(cell_text(cell, column.show), _key(cell))
            for cell, column in zip(row.cells, table.columns, strict=True)), row.status)


def _key(cell: Cell) -> str:
    """Return what a cell is sorted by: its raw number, the middle of a range, or its text."""
    if cell is None:
        return ""
    if isinstance(cell, Range):
        middle = cell.middle if cell.middle is not None else (cell.least + cell.greatest) / 2
        return repr(middle)
    if isinstance(cell, WithInterval):
        return repr(cell.value)
    if isinstance(cell, Words):
        return cell_text(cell)
    return cell if isinstance(cell, str) else repr(cell)
