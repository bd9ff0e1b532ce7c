"""Which rows `hpcbench.interop.formats.lint` can say nothing of: each is counted as not checked."""

from __future__ import annotations

from collections import Counter

from hpcbench.interop.formats.implied_ranks import has_factor
from hpcbench.interop.formats.reading.superbench import comm_tables, is_code, other_metrics
from hpcbench.interop.formats.tables import (
    ELEMENT_BYTES,
    CommRow,
    CommTable,
    ForeignTable,
    Half,
    MatrixTable,
    NodeTable,
)


def rows_of(table: ForeignTable) -> int:
    """Return the number of rows of a table; for a node, also that of its other metrics."""
    if isinstance(table, NodeTable):
        return other_metrics(table) + sum(len(one.rows) for one in comm_tables(table))
    return len(table.matrix if isinstance(table, MatrixTable) else table.rows)


def unchecked(table: ForeignTable) -> Counter[str]:
    """Return why rows of a table are not checked -> how many; a row counts once."""
    if isinstance(table, CommTable):
        return Counter(why for row in table.rows if (why := _why_unchecked(table, row)))
    if isinstance(table, NodeTable):
        found = sum((unchecked(one) for one in comm_tables(table)), Counter[str]())
        others = other_metrics(table) - sum(map(is_code, table.metrics))
        return found + Counter({"metrics of SuperBench that are none of a collective": others})
    if isinstance(table, MatrixTable):
        stated = (table.total, table.least, table.greatest, table.average)
        return Counter({"rows without a sum or extreme": (
            len(table.matrix) * (stated == (None,) * len(stated)))})
    return Counter({"rows of a time that is 0 to its digits": sum(
        row.least_ms.low <= 0 for row in table.rows)})


def _why_unchecked(table: CommTable, row: CommRow) -> str:
    """Return why the numbers of a row are not held against each other; "" if they are."""
    if any(half.odd for half in row.halves):
        return ""
    if table.is_uneven:
        return "rows of parts of different sizes"
    if any(half.busbw is not None for half in row.halves) and not has_factor(table.collective):
        return ("rows of no known collective (--collective)" if not table.collective else
                f"rows of {table.collective}")
    if row.count is not None and row.dtype not in ELEMENT_BYTES:
        return "rows of another element type"
    if all(_is_checked(table, row, half) for half in row.halves) and row.halves:
        return ""
    return "rows without numbers that depend on each other"


def _is_checked(table: CommTable, row: CommRow, half: Half) -> bool:
    """Return whether any two numbers of a measurement are compared."""
    times = [half.low_us, half.time_us, half.high_us, *half.percentiles_us]
    return (half.busbw is not None and half.algbw is not None
            or half.algbw is not None and half.time_us is not None and table.timed_rates
            or half.algbw is not None and row.messages_per_s is not None
            or sum(one is not None for one in times) > 1)
