"""What rows share is said above them, and what is fastest only where that is clear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcbench.reduce.fastest import races
from hpcbench.views.cell_text import cell_text
from hpcbench.views.said_once import said_once, shared_of
from hpcbench.views.table import Column, Group, Row, Show, Table, Words
from results_factory import make_case, make_statistics, ok

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


@pytest.mark.parametrize(("low", "reliable", "can_tell", "is_clear"), [
    (1.98e-3, True, True, True), (1.0e-3, True, True, False), (1.98e-3, False, False, False)])
def test_the_fastest_is_named_if_its_interval_is_clearly_apart(
    low: float, reliable: bool, can_tell: bool, is_clear: bool,
) -> None:
    slow = replace(make_statistics(2e-3), ci_low_s=low, ci_high_s=2.1e-3, ci_reliable=reliable)
    (race,) = races([("sum", "slow", ok(make_case(), statistics=slow)),
                     ("sum", "fast", ok(make_case(index=1), 1e-3))])
    assert [way.name for way in race.ways] == ["fast", "slow"]
    assert (race.can_tell, race.is_clear, round(race.ratio, 3)) == (can_tell, is_clear, 2.0)
