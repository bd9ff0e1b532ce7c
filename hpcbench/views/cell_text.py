"""The text of a cell, which is the same in every renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcbench.units import format_seconds, size_text
from hpcbench.views.table import Cell, Range, Show

MISSING = "-"


def format_number(value: float) -> str:
    """Return a plain decimal, never an exponent, with at least three significant digits."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    decimals = 2 - magnitude if magnitude < 0 else (2 if abs(value) < 1000 else 1)
    return f"{value:.{decimals}f}"


def _scaled(factor: float) -> Callable[[float], str]:
    return lambda value: format_number(value * factor)


def _divided(divisor: float) -> Callable[[float], str]:
    return lambda value: format_number(value / divisor)


_TEXTS: Mapping[Show, Callable[[float], str]] = MappingProxyType({
    Show.TEXT: str, Show.COUNT: str, Show.NUMBER: format_number,
    Show.SIZE: lambda value: size_text(int(value)),
    Show.US: _scaled(1e6), Show.MS: _scaled(1e3),
    Show.DURATION: format_seconds,
    Show.GB_PER_S: _divided(1e9), Show.TFLOP_PER_S: _divided(1e12), Show.GFLOP: _divided(1e9),
    Show.MB: _divided(1e6), Show.MIB: _divided(2**20),
    Show.PERCENT: lambda value: f"{100 * value:.1f}",
    Show.WHOLE_PERCENT: lambda value: str(round(100 * value)),
    Show.SIGNIFICANT_PERCENT: _scaled(100), Show.RATIO: lambda value: f"{value:.2f}",
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
    text = _TEXTS[show]
    if not isinstance(cell, Range):
        return text(cell)
    least, greatest = text(cell.least), text(cell.greatest)
    if cell.middle is None:
        return f"{least}..{greatest}"
    middle = text(cell.middle)
    return middle if least == greatest else f"{middle} ({least}..{greatest})"
