"""The text of a cell, which is the same in every renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hpcbench.units import format_seconds, size_text, to_gb_per_s, to_ms, to_tflop_per_s, to_us
from hpcbench.views.table import Cell, Range, Show, WithInterval, Words

MISSING = "-"


def format_number(value: float) -> str:
    """Return a plain decimal, never an exponent, with at least three significant digits."""
    return f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    magnitude = _magnitude(value)
    return 2 - magnitude if magnitude < 0 else (2 if abs(value) < 1000 else 1)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def format_measured(value: float, low: float, high: float) -> str:
    """Return a plain decimal with the digits that its interval allows.

    They are those down to the second digit of half of the interval, at least two of the value, and
    no more than `format_number` has. So 3453.3 is 3450 where the interval is 2905.4 to 3885.9.
    """
    half = (high - low) / 2
    if not (half > 0 and math.isfinite(half)):
        return format_number(value)
    allowed = max(1 - _magnitude(half), 1 - _magnitude(value))
    decimals = min(allowed, _decimals(value))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


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
    read the same it is that. Its ends, and a value with an interval, have the digits that this
    allows (`format_measured`), unless the column has its own number of decimals.
    """
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Words):
        return ", ".join(f"{word} {figure}".rstrip() for word, figure in cell.marks)
    text = _TEXTS.get(show) or _number_text(cell, NUMBERS[show])
    if isinstance(cell, WithInterval):
        return text(cell.value)
    if not isinstance(cell, Range):
        return text(cell)
    least, greatest = text(cell.least), text(cell.greatest)
    if cell.middle is None:
        return f"{least}..{greatest}"
    middle = text(cell.middle)
    return middle if least == greatest else f"{middle} ({least}..{greatest})"


def _number_text(
    cell: float | Range | WithInterval, number_of: Callable[[Any], Any],
) -> Callable[[float], str]:
    """Return what makes text of the numbers of a cell."""
    if not isinstance(cell, (Range, WithInterval)):
        return lambda value: format_number(number_of(value))
    ends = (cell.least, cell.greatest) if isinstance(cell, Range) else (cell.low, cell.high)
    low, high = (number_of(end) for end in ends)
    return lambda value: format_measured(number_of(value), low, high)
