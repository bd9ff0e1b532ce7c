"""The text of a cell, which is the same in every renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hpcbench.units import format_seconds, size_text, to_gb_per_s, to_ms, to_tflop_per_s, to_us
from hpcbench.views.table import Cell, Range, Show, Words

MISSING = "-"


def format_number(value: float) -> str:
    """Return a plain decimal, never an exponent, with at least three significant digits."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    decimals = 2 - magnitude if magnitude < 0 else (2 if abs(value) < 1000 else 1)
    return f"{value:.{decimals}f}"


NUMBERS: Mapping[Show, Callable[[Any], Any]] = MappingProxyType({
    Show.US: to_us, Show.MS: to_ms, Show.S: lambda time_s: time_s,
    Show.GB_PER_S: to_gb_per_s, Show.TFLOP_PER_S: to_tflop_per_s,
    Show.GFLOP: lambda flops: flops / 1e9, Show.MB: lambda size: size / 1e6,
    Show.MIB: lambda size: size / 2**20, Show.SIGNIFICANT_PERCENT: lambda share: share * 100,
})
"""What makes the number, or the array, that people read of values; others are read as they are."""
_TEXTS: Mapping[Show, Callable[[float], str]] = MappingProxyType({
    Show.TEXT: str, Show.COUNT: str, Show.NUMBER: format_number, Show.DURATION: format_seconds,
    Show.SIZE: lambda value: size_text(int(value)), Show.RATIO: lambda value: f"{value:.2f}",
    Show.PERCENT: lambda value: f"{100 * value:.1f}",
    Show.WHOLE_PERCENT: lambda value: str(round(100 * value)),
})


def cell_text(cell: Cell, show: Show = Show.TEXT) -> str:
    """Return a cell's text; MISSING where it has no value.

    A range is ``1.2..3.4``, or ``2.3 (1.2..3.4)`` with its middle; if both ends and the middle
    read the same it is that.
    """
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Words):
        return ", ".join(f"{word} {figure}".rstrip() for word, figure in cell.marks)
    text = _TEXTS.get(show) or (lambda value: format_number(NUMBERS[show](value)))
    if not isinstance(cell, Range):
        return text(cell)
    least, greatest = text(cell.least), text(cell.greatest)
    if cell.middle is None:
        return f"{least}..{greatest}"
    middle = text(cell.middle)
    return middle if least == greatest else f"{middle} ({least}..{greatest})"
