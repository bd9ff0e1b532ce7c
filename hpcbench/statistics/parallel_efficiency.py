"""Parallel efficiency and its factors, as the POP centre of excellence defines them.

https://co-design.pop-coe.eu/metrics: useful computation is what a rank does outside communication.
Parallel efficiency is the mean over ranks of that over the run's time. It is the product of load
balance (mean over greatest) and communication efficiency (greatest over the run's time). The
latter is the product of serialisation (greatest over the time on an ideal network, where data move
in no time) and transfer (that time over the run's). A factor of 0.8 or more is acceptable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ACCEPTABLE = 0.8
"""Factors below are worth a look."""
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares from 0 to 1, and more than 1 only where times contradict one another.

    Attributes:
        parallel: load balance x communication.
        load_balance: the mean of the ranks' useful time over the greatest.
        communication: serialisation x transfer.
        serialisation, transfer: its parts; None where it is not known how long ranks wait for one
            another, and how long for data.
    """

    parallel: float
    load_balance: float
    communication: float
    serialisation: float | None = None
    transfer: float | None = None


def of_two_factors(useful_s: Sequence[float], elapsed_s: float) -> Efficiency | None:
    """Return what useful seconds of each rank and those of the run tell; None of no time."""
    greatest = max(useful_s, default=0.0)
    if not (greatest > 0 and elapsed_s > 0):
        return None
    mean = float(np.mean(useful_s))
    return Efficiency(mean / elapsed_s, mean / greatest, greatest / elapsed_s)


def of_steps_that_meet(before_s: Times, after_s: Times, step_s: Times) -> Efficiency | None:
    """Return all factors of steps in which the ranks meet once; None of no time.

    ``before_s`` and ``after_s``, (rank, step), are useful seconds before and after all wait for
    one another; ``step_s``, (step,), how long a step takes. On an ideal network a step takes as
    long as the greatest of either, and no other waiting.
    """
    known = of_two_factors((before_s + after_s).sum(axis=1).tolist(), float(step_s.sum()))
    if known is None:
        return None
    ideal_s = float((before_s.max(axis=0) + after_s.max(axis=0)).sum())
    greatest = float((before_s + after_s).sum(axis=1).max())
    return Efficiency(known.parallel, known.load_balance, known.communication,
                      greatest / ideal_s, ideal_s / float(step_s.sum()))
