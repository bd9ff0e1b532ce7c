"""What the results tables of all kinds of cases have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.reduce.results import CaseResult
from hpcbench.report.text import MISSING

STYLES: Mapping[str, str] = MappingProxyType({
    "ok": "", "wrong": "bold red", "failed": "red", "timeout": "red", "skipped": "yellow",
    "not_run": "yellow"})
"""Status -> how its lines look."""
TABLED = ("ok", "wrong", "failed", "timeout")
"""Statuses that have rows."""


def wrong_cell(item: CaseResult) -> str:
    """Return how many elements were wrong, ``unchecked``, or MISSING where there is no data."""
    if item.case.workload.name == "barrier":
        return MISSING
    if item.n_wrong is not None:
        return str(item.n_wrong)
    return MISSING if item.case.validate else "unchecked"
