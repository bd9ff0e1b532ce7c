"""Limits on what reading a file of others may take; ``HPCBENCH_LIMITS`` multiplies all of them."""

from __future__ import annotations

import os

from hpcbench.errors import UsageError

VARIABLE = "HPCBENCH_LIMITS"
MOST = 1e6
"""The greatest value of the variable: beyond it a limit is none."""
PACKED, SMALL_BYTES = 100, 2**26
"""Logs, traces and results pack to a tenth or a fiftieth, deflate to a thousandth at most: a file
may unpack to `SMALL_BYTES`, and beyond that to `PACKED` times its size."""


def raised(limit: int) -> int:
    """Return a limit times ``HPCBENCH_LIMITS``. Raises UsageError for no number from 1."""
    return int(limit * _factor())


def unpacked(file_bytes: int) -> int:
    """Return the bytes to which a packed file of that size may unpack."""
    return raised(SMALL_BYTES + PACKED * file_bytes)


def remedy() -> str:
    """Return how to read beyond a limit, for the line that refuses to."""
    return f"{VARIABLE}={2 * _factor():g} in the environment reads twice as much"


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= MOST:
        raise UsageError(f"{VARIABLE} is {text[:40]!r}: give a number from 1 to {MOST:,.0f}, by "
                         "which limits on files are multiplied")
    return factor
