"""Numbers as other programs print them: a value, and how far the digits leave it open."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcbench.units import digits

_NUMBER = re.compile(r"([-+]?)(\d+)(?:\.(\d*))?(?:[eE]([-+]?\d{1,3}))?")
_ROUNDING = 1e-9
"""Share by which the last bits of a sum or product of doubles may be off."""


_GREATEST = 1e300
_MOST_DIGITS, _TOO_MUCH = 19, 10**18
_HALVES = tuple(10.0 ** -decimals / 2 * (1 + 1e-6) for decimals in range(_MOST_DIGITS))


class Printed(NamedTuple):
    """A number that was printed; before rounding it was within ``half`` of ``value``.

    A tuple, as a long log has a million of them."""

    value: float
    half: float

    def __str__(self) -> str:
        return digits(self.value, 6)

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half

    def scaled(self, factor: float) -> Printed:
        return Printed(self.value * factor, self.half * factor)

    def widened(self, half: float) -> Printed:
        """Return the number with at least this half: such as for a program that cut digits off."""
        return Printed(self.value, max(self.half, half))

    def may_be(self, low: float, high: float) -> bool:
        """Return whether the number may have been one from ``low`` to ``high``."""
        return self.low <= high and low <= self.high


def printed(text: str) -> Printed:
    """Return a number with half a unit of its last digit. Raises ValueError for anything else."""
    before, _, decimals = text.partition(".")
    if before and (before + decimals).isdecimal() and len(text) < _MOST_DIGITS:
        value = float(text)  # as most numbers of a table: quicker than the pattern
        return Printed(value, _HALVES[len(decimals)] + value * _ROUNDING)
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError("no number")
    value, exponent = float(text), int(match[4] or 0) - len(match[3] or "")
    if abs(value) > _GREATEST or exponent > 300:
        raise ValueError("too large")
    step = 10.0 ** max(exponent, -300)
    return Printed(value, step / 2 * (1 + 1e-6) + abs(value) * _ROUNDING)


def is_no_number(text: str) -> bool:
    """Return whether a program prints so what it could not divide: ``nan``, ``-nan``, ``inf``."""
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def printed_or_none(text: str) -> Printed | None:
    """Return a number; None for ``N/A``, ``nan`` and ``inf``. Raises ValueError for others."""
    return None if text.strip().lower() == "n/a" or is_no_number(text) else printed(text)


def whole(value: object) -> int:
    """Return a whole number from 0, of a text or of JSON. Raises ValueError for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _MOST_DIGITS:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_MUCH:
        return value
    raise ValueError("no whole number")


def whole_or_none(value: object) -> int | None:
    """Return `whole` of a value that may be missing. Raises ValueError."""
    return None if value is None else whole(value)
