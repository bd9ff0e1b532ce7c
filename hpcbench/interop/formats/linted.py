"""The findings of `hpcbench lint` in some files: printed as they are found, and counted."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbench.interop.formats.coverage import rows_of, unchecked
from hpcbench.interop.formats.lint import BrokenRule, lint
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.tables import CommTable, ForeignTable, MatrixTable, NodeTable
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
