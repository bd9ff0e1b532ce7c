"""What disturbed the passes of a run: lower clocks, other processes, hypervisors; and at what cost.

Each is a slowdown that it would cause if nothing else counted, of the rank that has most of it: a
core that is missing for a share w of the time makes work at most 1 / (1 - w) times as long. It is
named as a cause where the times of a case's passes follow it (`statistics.accounted`) by at least
`LEAST_EFFECT`, where it accounts for `EXPLAINS` of that, and where this holds among all
comparisons of the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.drift import ALARMS
from hpcbench.analysis.pass_readings import PassReadings, Read
from hpcbench.statistics.accounted import Accounted, accounted
from hpcbench.statistics.family import holm
from hpcbench.statistics.standing_out import MIN_PASSES, standing
from hpcbench.statistics.student import t_quantile

EXPLAINS = 0.8
"""A cause is named from this share of the rise of times on."""
LEAST_EFFECT = 0.03
LEAST_SHARE = 0.05
"""Other processes that use less of a node's cores are not named; nor a rank that waits less."""
CLOCKS, WAITS, STEAL = "clocks", "waits", "steal"
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Following:
    """How the times of a case's passes follow a condition.

    Attributes:
        path, case_id, label: of which results and case.
        condition: CLOCKS, WAITS or STEAL.
        row: whose it is: the row of the readings that is worst in `EXPLAINS` of the disturbed
            passes; None where several take turns.
        passes, disturbed: how many there were, and in how many it is past the middle of its range.
        samples: samples of the disturbed ones.
        least, greatest: of the condition: of clocks relative to the highest, else as shares.
        effect: by how much the time rises with it; ``low`` to ``high`` is its 99 % interval.
        share, fit: what of the rise it accounts for, and what of the variance is on the line.
        chance: how likely times that do not follow it do so.
        is_clear: whether the times follow it; ``is_cause`` whether it is also named as the cause.
    """

    path: str
    case_id: str
    label: str
    condition: str
    row: int | None
    passes: int
    disturbed: int
    samples: int
    least: float
    greatest: float
    effect: float
    low: float
    high: float
    share: float
    fit: float
    chance: float
    is_clear: bool = False
    is_cause: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """A share of time over all passes, with its 99 % interval; ``row`` says whose."""

    row: int
    value: float
    low: float
    high: float


def following(read: Mapping[str, Read]) -> tuple[Following, ...]:
    """Return how cases follow each condition; ``read`` has the readings of each path."""
    found = [one for path, of_run in read.items() for case in of_run.cases
             for one in _of_case(path, case)]
    holds = holm([one.chance for one in found], ALARMS)
    judged = []
    for one, held in zip(found, holds, strict=True):
        clear = held and one.effect >= LEAST_EFFECT and one.low > 0
        judged.append(replace(one, is_clear=clear, is_cause=clear and one.share >= EXPLAINS))
    return tuple(judged)


def _of_case(path: str, case: PassReadings) -> Iterator[Following]:
    for condition, values in ((CLOCKS, case.clocks), (WAITS, case.waits), (STEAL, case.steal)):
        lost = lower(values) if condition == CLOCKS else values
        whole = ~np.isnan(lost).any(axis=0)
        if not lost.size or not whole.any():
            continue
        lost, times_s = lost[:, whole], case.times_s[whole]
        worst = lost.max(axis=0)
        if (found := accounted(times_s, 1 / (1 - worst))) is not None:
            yield _following(path, case, condition, lost, found)


def lower(clocks: Values) -> Values:
    """Return by which share each clock is below the rank's highest one, (rank, pass)."""
    known = np.isfinite(clocks).any(axis=1, keepdims=True)
    tops = np.max(np.where(np.isnan(clocks), 0.0, clocks), axis=1, keepdims=True, initial=0.0)
    return 1 - clocks / np.where(known, tops, np.nan)


def _following(
    path: str, case: PassReadings, condition: str, lost: Values, found: Accounted,
) -> Following:
    worst, item = lost.max(axis=0), case.item
    disturbed = worst > (worst.min() + worst.max()) / 2
    votes = np.bincount(lost[:, disturbed].argmax(axis=0), minlength=len(lost))
    row = int(votes.argmax()) if votes.max() >= EXPLAINS * votes.sum() else None
    ends = float(worst.min()), float(worst.max())
    least, greatest = (1 - ends[1], 1 - ends[0]) if condition == CLOCKS else ends
    n = item.statistics.n if item.statistics else 0
    return Following(
        path, item.case.case_id, item.case.label, condition, row, worst.size,
        int(disturbed.sum()), round(n * float(disturbed.mean())), least, greatest, found.effect,
        found.low, found.high, found.share, found.fit, found.chance)


def waiting_rank(cases: Sequence[PassReadings]) -> Share | None:
    """Return the rank that surely waits for a core longer than any other, by LEAST_SHARE.

    All passes of all cases in which readings are whole count: each round over the cases is one.
    """
    by_round = _by_round(cases, "waits")
    if by_round is None or len(by_round) < 2:
        return None
    found = standing(by_round, LEAST_SHARE)
    if found.chance > ALARMS:
        return None
    return Share(found.row, float(by_round[found.row].mean()), *_ends(by_round[found.row]))


def lowest_clock(cases: Sequence[PassReadings]) -> Share | None:
    """Return the rank whose clock surely is LEAST_SHARE below any other, and by which share."""
    by_round = _by_round(cases, "clocks")
    if by_round is None or len(by_round) < 2:
        return None
    middle = float(np.median(by_round))
    found = standing(-by_round, LEAST_SHARE * middle)
    return Share(found.row, found.apart_s / middle, found.low_s / middle, found.high_s / middle
                 ) if found.chance <= ALARMS else None


def shares_of_nodes(cases: Sequence[PassReadings], name: str) -> tuple[Share, ...]:
    """Return the share ``others`` or ``steal`` of each node, where it surely is LEAST_SHARE."""
    by_round = _by_round(cases, name)
    if by_round is None:
        return ()
    shares = (Share(row, float(values.mean()), *_ends(values))
              for row, values in enumerate(by_round))
    return tuple(one for one in shares if one.low >= LEAST_SHARE)


def _by_round(cases: Sequence[PassReadings], name: str) -> Values | None:
    """Return the means over cases, weighted by their time, (row, round); None of too few rounds."""
    rounds = min((one.times_s.size for one in cases), default=0)
    if rounds < MIN_PASSES:
        return None
    values = np.stack([getattr(one, name)[:, :rounds] for one in cases])
    lasted = np.stack([np.diff(one.spans_ns, axis=1)[:rounds, 0] for one in cases])[:, None, :]
    weights = np.where(np.isnan(values), 0.0, lasted)
    total = weights.sum(axis=0)
    if not values.shape[1] or (total == 0).any():
        return None
    return np.asarray((np.nan_to_num(values) * weights).sum(axis=0) / total)


def _ends(values: Values) -> tuple[float, float]:
    """Return the 99 % interval of a mean over rounds."""
    half = t_quantile(0.005, values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return max(0.0, float(values.mean()) - half), min(1.0, float(values.mean()) + half)
