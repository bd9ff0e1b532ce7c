"""Which samples are in the statistics of their case, and why the others are not."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Use(IntEnum):
    """Whether a sample is in the statistics of its case; if not, or if it is flagged, why.

    Up to COUNTED_SURPLUS it counts. COUNTED_RAMP and COUNTED_SURPLUS are of cases whose number of
    iterations was given: in others RAMP, before the steady state, and SURPLUS, more than the
    shortest pass has, do not count. SINGLE is one call made for its check, in mode pipelined.
    """

    COUNTED = 0
    COUNTED_RAMP = 1
    COUNTED_SURPLUS = 2
    WARMUP = 3
    SINGLE = 4
    RAMP = 5
    SURPLUS = 6
    CASE_NOT_OK = 7


def counts(use: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which samples with these uses count."""
    return np.asarray(use <= Use.COUNTED_SURPLUS)
