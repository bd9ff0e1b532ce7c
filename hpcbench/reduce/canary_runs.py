"""The canary of a run: its runs, and how the machine changed between them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.statistics.drift import FEWEST_RUNS, LEAST_CHANGE

FEWEST_FOR_DRIFT, LEAST_DRIFT = FEWEST_RUNS, LEAST_CHANGE


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """One run of the canary: the times of its samples, folded by ``local_max``.

    ``since_start_s`` counts from the first run, on rank 0's clock. ``ci_low_s`` and ``ci_high_s``
    are the 95 % confidence interval of the median, None where n < 6.
    """

    launch: int
    pass_index: int
    since_start_s: float
    n: int
    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None


@dataclass(frozen=True, slots=True)
class Canary:
    """One small case that was measured again and again: how the machine changed meanwhile.

    ``runs`` were ok on all ranks, ``n_not_ok`` others were not. ``drift`` is the change over all
    runs, relative to their median, and ``tau`` how steadily they rise or fall
    (`statistics.drift.Drift`); both are None where runs are too few to tell. ``quality`` is
    ("drifting",) if the drift is significant. In results of older versions ``tau`` is None, and
    ``drift`` compares the last run with the first.
    """

    label: str
    runs: tuple[CanaryRun, ...]
    n_not_ok: int
    drift: float | None
    quality: tuple[str, ...]
    tau: float | None = None


CANARY_QUALITIES = {
    "drifting": "the canary's runs rise or fall so steadily that at most 1 of 100 stationary "
                "series do, by more than 3 %",
}
"""Word -> what it says of the whole run (docs/method.md)."""
OLD_RULE = ("last run against first, by the rule of an earlier version, which alarms on stationary "
            "runs, too: reduce the run again")
"""What is said of a drift without ``tau``."""
