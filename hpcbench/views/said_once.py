"""What most rows of a report have in common is said once, above them, instead of in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Cell, Group, Line, Row, Table, Words

FEWEST_ROWS = 3
"""Of fewer rows nothing is said above: it would be no shorter."""
NEARLY_ALL = 0.8
"""The share of rows from which on something is said once, and its exceptions in their rows."""
NOT = "not"


@dataclass(frozen=True, slots=True)
class Shared:
    """What nearly all rows of a report have in common.

    ``timed`` is the mode and fold that groups are in. ``words`` maps each word to the number of
    rows that have it, of ``n_rows`` rows that may.
    """

    timed: str
    words: Mapping[str, int]
    n_rows: int


def shared_of(tables: Sequence[Table]) -> Shared:
    """Return what nearly all rows of these tables have in common."""
    timed = Counter[str]()
    for group in (group for table in tables for group in table.groups if group.timed):
        timed[group.timed] += len(group.rows)
    cells = [cell for table in tables for row in table.rows for cell in row.cells
             if isinstance(cell, Words)]
    counts = Counter(word for cell in cells for word, _ in cell.marks)
    often = {word: count for word, count in counts.items() if _is_nearly_all(count, len(cells))}
    usual = next((text for text, count in timed.most_common(1)
                  if _is_nearly_all(count, timed.total())), "")
    return Shared(usual, often, len(cells))


def said_once(tables: Iterable[Table], shared: Shared) -> Iterator[Table]:
    """Yield the tables without what ``shared`` says, and with what each table has in common."""
    for table in tables:
        groups = tuple(replace(
            group, timed="" if group.timed == shared.timed else group.timed,
            rows=tuple(_row(row, shared) for row in group.rows)) for group in table.groups)
        yield _own_once(replace(table, groups=groups).without_empty())


def _is_nearly_all(count: int, rows: int) -> bool:
    return rows >= FEWEST_ROWS and count >= NEARLY_ALL * rows


def _row(row: Row, shared: Shared) -> Row:
    return replace(row, cells=tuple(_exceptions(cell, shared.words) for cell in row.cells))


def _exceptions(cell: Cell, said: Mapping[str, int]) -> Cell:
    """Return the words of a cell that were not said, and those that were and do not hold."""
    if not isinstance(cell, Words):
        return cell
    own = {word for word, _ in cell.marks}
    return Words((*((NOT, word) for word in said if word not in own),
                  *(mark for mark in cell.marks if mark[0] not in said)))


def _own_once(table: Table) -> Table:
    """Return a table whose columns of one value are said above it, or above their groups."""
    if len(table.rows) < FEWEST_ROWS:
        return table
    rows, columns = table.rows, range(len(table.columns))
    once = [at for at in columns if table.columns[at].once]
    alike = [at for at in once if len({row.cells[at] for row in rows}) == 1]
    grouped = [] if 2 * len(table.groups) > len(rows) else [
        at for at in once if at not in alike and all(
            len({row.cells[at] for row in group.rows}) == 1 for group in table.groups)]
    words = _words(table, alike, rows[0])
    lead = (Line(f"all rows: {', '.join(words)}", "quiet"),) if words else ()
    groups = tuple(_titled(table, group, grouped) for group in table.groups)
    kept = [at for at in columns if at not in (*alike, *grouped)]
    return replace(table, lead=(*table.lead, *lead), groups=groups).with_columns(kept)


def _titled(table: Table, group: Group, columns: Sequence[int]) -> Group:
    """Return a group whose title says what these columns hold."""
    words = _words(table, columns, group.rows[0])
    return replace(group, title="  ".join(filter(None, (group.title, *words))))


def _words(table: Table, columns: Iterable[int], row: Row) -> list[str]:
    """Return ``type fp32`` of each column that has a value."""
    return [f"{table.columns[at].title} {cell_text(row.cells[at], table.columns[at].show)}"
            for at in columns if row.cells[at] not in (None, "")]
