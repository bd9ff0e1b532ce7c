"""What the results tables of all kinds of cases have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

STYLES: Mapping[str, str] = MappingProxyType({
    "ok": "", "wrong": "bold red", "failed": "red", "timeout": "red", "skipped": "yellow",
    "not_run": "yellow"})
"""Status -> how its lines look."""
TABLED = ("ok", "wrong", "failed", "timeout")
"""Statuses that have rows."""
