"""The canary of a run: its runs, and how the machine changed between them."""

from __future__ import annotations

from dataclasses import dataclass


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

    ``runs`` were ok on all ranks, ``n_not_ok`` others were not. ``drift`` is the median of the last
    run over that of the first, less 1; None below two runs. ``quality`` is ("drifting",) if it is
    more than 3 % either way and the two confidence intervals have no time in common, else ().
    """

    label: str
    runs: tuple[CanaryRun, ...]
    n_not_ok: int
    drift: float | None
    quality: tuple[str, ...]


CANARY_QUALITIES = {
    "drifting": "the canary changed by more than 3 % from its first run to its last, and by "
                "more than runs usually differ",
}
"""Word -> what it says of the whole run (docs/method.md)."""
