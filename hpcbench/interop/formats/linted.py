"""The findings of `hpcbench lint` in some files: printed as they are found, and counted; and the
rows that `lint` can say nothing of, each counted as not checked."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbench.interop.formats.implied_ranks import has_factor
from hpcbench.interop.formats.lint import BrokenRule, lint
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
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
from hpcbench.texts import say
from hpcbench.units import plural

SCHEMA, SCHEMA_VERSION = "hpcbench.lint", 1
MOST_SHOWN = 200
"""Findings of a file that are listed; further ones are counted."""


class Linting:
    """Reads files one after the other; ``count`` is the number of findings so far."""

    def __init__(self, collective: str, link_gbs: float | None, *, as_json: bool) -> None:
        self._collective, self._link_gbs, self._as_json = collective, link_gbs, as_json
        self._tables, self._unchecked = Counter[str](), Counter[str]()
        self._rows = self._files = self.count = 0
        self._listed: list[BrokenRule] = []
        self._left_out: list[dict[str, Any]] = []

    def read(self, path: Path) -> None:
        """Check a file, and print findings as they are found, but for JSON. Raises FileError."""
        before = self.count
        self._files += 1
        left_out = Unread()
        for table in tables_of(path, self._collective, left_out):
            self._tables[program_of(table)] += 1
            self._rows += rows_of(table)
            self._unchecked += unchecked(table)
            for found in lint(table, self._link_gbs):
                self.count += 1
                if self.count - before <= MOST_SHOWN:
                    self._list(found)
        if (more := self.count - before - MOST_SHOWN) > 0 and not self._as_json:
            say(f"{path}: and {plural(more, 'finding')} more")
        self._left_out += ({"path": str(path), "line": line, "what": what, "count": count}
                           for what, count, line in left_out.entries())
        for text in left_out.lines(str(path)):
            say(f"hpcbench: {text}", sys.stderr)

    def _list(self, found: BrokenRule) -> None:
        if self._as_json:
            self._listed.append(found)
        else:
            say(f"{found.path}:{found.line}: {found.rule}: {found.message}")

    def summary(self) -> str:
        """Return one line: how many findings there are, in how many rows and tables."""
        found = plural(self.count, "finding") if self.count else "no findings"
        what = ", ".join(f"{plural(count, 'table')} of {name}"
                         for name, count in self._tables.items())
        others = ", ".join(f"{count} {why}" for why, count in self._unchecked.items())
        return (f"{found} in {plural(self._rows - self._unchecked.total(), 'row')} that can be "
                f"checked: {what}" + (f"; not checked: {others}" if others else ""))

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "files": self._files,
                "tables": dict(self._tables), "rows": self._rows,
                "not_checked": dict(self._unchecked), "left_out": self._left_out,
                "n_findings": self.count, "findings": [asdict(one) for one in self._listed]}


def program_of(table: ForeignTable) -> str:
    """Return the name of the program that printed a table."""
    if isinstance(table, CommTable):
        return table.program
    if isinstance(table, NodeTable):
        return "SuperBench"
    return "nvbandwidth" if isinstance(table, MatrixTable) else "DDLB"


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
