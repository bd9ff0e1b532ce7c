"""Whether flagged or early samples change what is concluded: the median moves beyond what is known.

Leaving samples out always moves a median a little. So two intervals must agree that it moved: the
median of the samples that are left lies outside the row's interval, and the row's median outside
the 99 % interval of those that are left. If flags say nothing of the times, at most 1 % of cases
are called changed, however many samples are flagged (`benchmarks/flags.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import Statistics
from hpcbench.statistics.interval import median_interval, median_ranks
from hpcbench.statistics.order import Values, median

MOST_LATE = 0.2
"""Share of samples that a rank may start late before anything is said of it."""
LEAST_PUNCTUAL = 0.2
"""With fewer punctual samples, the time behind the last start tells instead of them."""
LEVEL = 0.99
WITHOUT_INTERVAL = 0.05
"""Share of the median that counts as known where a row has neither interval nor range."""
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Flagged:
    """The times (n,) that a row is of, which are ``late``, and which are ``plain``: of no flag.

    ``passes`` are the lengths of the passes that they stand in, in order.
    """

    times_s: Values
    late: Chosen
    plain: Chosen
    passes: Sequence[int]

    @property
    def late_share(self) -> float:
        """Return the share of samples that a rank started late."""
        return float(self.late.mean())


def changed(
    statistics: Statistics, samples: Flagged, last_in_s: float | None,
) -> dict[str, bool]:
    """Return, by the words of QUALITIES, whether flagged samples change the median."""
    return {"late_starts": is_late(statistics, samples, last_in_s),
            "fragile": is_fragile(statistics, samples)}


def is_unsettled(statistics: Statistics, samples: Flagged) -> bool:
    """Return whether what changes in the course of a pass changes what is concluded.

    It does if the later halves of all passes have another median. Where the row's interval is not
    reliable, it may.
    """
    later = np.concatenate([np.arange(length) >= length // 2 for length in samples.passes])
    return not statistics.ci_reliable or is_moved(statistics, samples, later)


def is_moved(statistics: Statistics, samples: Flagged, left: Chosen) -> bool:
    """Return whether the median of the samples that are ``left`` differs beyond chance.

    Fewer than 8 have no interval of 99 %, and tell nothing.
    """
    if not is_enough(left):
        return False
    edges = np.cumsum([0, *samples.passes])
    lengths = [int(left[begin:end].sum())
               for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    if holds(statistics, median(samples.times_s[left])):
        return False
    interval = median_interval(samples.times_s[left], LEVEL, lengths)
    return interval is not None and not interval.low <= statistics.median_s <= interval.high


def is_enough(left: Chosen) -> bool:
    """Return whether so many samples have an interval of 99 %."""
    return median_ranks(int(left.sum()), LEVEL) is not None


def is_late(statistics: Statistics, samples: Flagged, last_in_s: float | None) -> bool:
    """Return whether late starts change the median.

    Where hardly any sample is punctual, the median of the time behind the last start bounds the
    effect: it has no wait for a late rank in it. ``last_in_s`` is None where it is not known;
    then late starts may have changed anything.
    """
    if samples.late_share <= MOST_LATE:
        return False
    if 1 - samples.late_share >= LEAST_PUNCTUAL and is_enough(~samples.late):
        return is_moved(statistics, samples, ~samples.late)
    return last_in_s is None or not holds(statistics, last_in_s)


def is_fragile(statistics: Statistics, samples: Flagged) -> bool:
    """Return whether the flagged samples change the median.

    If too few are unflagged to tell, they may; of samples most of which are late `is_late` judges.
    """
    if not is_enough(samples.plain):
        return samples.late_share <= MOST_LATE and not bool(samples.plain.all())
    return is_moved(statistics, samples, samples.plain)


def holds(statistics: Statistics, value_s: float) -> bool:
    """Return whether a median is within what is known of it: interval, range of launches, or 5 %.
    """
    low_s, high_s = statistics.ci_low_s, statistics.ci_high_s
    if low_s is None or high_s is None:
        low_s, high_s = statistics.launch_low_s, statistics.launch_high_s
    if low_s is None or high_s is None:
        return abs(value_s - statistics.median_s) <= WITHOUT_INTERVAL * statistics.median_s
    return low_s <= value_s <= high_s
