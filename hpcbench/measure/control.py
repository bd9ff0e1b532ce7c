"""What the ranks of a case use to agree while it is measured: never the group under test."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Control(Protocol):
    """All ranks of the case call these in the same order."""

    def barrier(self) -> None:
        """Return when every rank has called."""

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks of ``values``, of one length everywhere."""
