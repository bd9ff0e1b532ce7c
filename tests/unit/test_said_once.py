"""What rows share is said above them."""

from __future__ import annotations

from hpcbench.views.table import (
    Column,
    Group,
    Row,
    Show,
    Table,
    Words,
    cell_text,
    said_once,
    shared_of,
)

LATE, BOTH = Words((("late", "90%"),)), Words((("late", "100%"), ("trend", "")))


def table(*flags: Words) -> Table:
    columns = (Column("size", "size", Show.COUNT), Column("type", "type", once=True),
               Column("flags", "flags", optional=True))
    rows = tuple(Row((size, "fp32", cell)) for size, cell in enumerate(flags))
    return Table("block", columns, (Group("all_reduce", rows, "isolated, fold global"),))


def test_columns_flags_and_mode_of_nearly_all_rows_are_said_once() -> None:
    tables = [table(LATE, BOTH, LATE, LATE, Words())]
    shared = shared_of(tables)
    assert (shared.timed, shared.words) == ("isolated, fold global", {"late": 4})
    (shown,) = said_once(tables, shared)
    assert [line.text for line in shown.lead] == ["all rows: type fp32"]
    assert [column.name for column in shown.columns] == ["size", "flags"]
    assert [cell_text(row.cells[1]) for row in shown.rows] == ["", "trend", "", "", "not late"]
    assert shown.groups[0].heading == "all_reduce"


def test_of_two_rows_nothing_is_said_above() -> None:
    tables = [table(LATE, LATE)]
    (shown,) = said_once(tables, shared_of(tables))
    assert shown == tables[0].without_empty()
