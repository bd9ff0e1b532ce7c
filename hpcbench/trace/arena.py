"""Arrays in memory that is used again: new memory is cleared by the system, page by page."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Empty = Callable[[tuple[int, ...]], npt.NDArray[np.int64]]
"""Makes an int64 array of a shape, whose values are undefined."""


def new_array(shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return an array in memory of its own."""
    return np.empty(shape, dtype=np.int64)


class Arena:
    """A piece of memory that arrays are cut from; pages that were never used take none."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = new_array((size_bytes // 8,))
        self._used = 0

    def empty(self, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Return an array that holds until `clear`; in memory of its own where this one is full."""
        first, self._used = self._used, self._used + math.prod(shape)
        if self._used > self._memory.size:
            self._used = first
            return new_array(shape)
        return self._memory[first:self._used].reshape(shape)

    def clear(self) -> None:
        """Give all arrays up: the next ones take their place."""
        self._used = 0
