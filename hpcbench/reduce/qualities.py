"""What statistics are said to be beside their numbers."""

from __future__ import annotations

QUALITIES = {
    "clock_unreliable": "the clocks' error is more than 5 % of the time: fold local_max is used",
    "late_starts": "some rank began over 10 us late in more than 20 % of the samples, and that "
                   "moves the median by more than its interval",
    "fragile": "without late samples and outliers the median moves by more than its interval, or "
               "too few are left",
    "two_modes": "times have two modes, and the median lies between them: both are shown, with "
                 "their shares",
    "ci_unreliable": "no sound interval: fewer than 20 samples, or samples that depend on one "
                     "another too much, or passes that differ and are fewer than 8, or drift",
    "repeats": "the launches are repeats in the same processes (backend mpi, or --inline): there "
               "is no range or interval over launches, and the interval is of these processes only",
    "ramp": "the first samples of a pass differ from its steady state, and count: the number of "
            "iterations was given",
    "trend": "the time rises or falls during a pass, which moves the median by more than its "
             "interval",
    "change_point": "the time changes by 5 % or more within a pass, which moves the median by more "
                    "than its interval",
    "unsteady": "no steady state within the first half of a pass, which moves the median by more "
                "than its interval",
}
"""Word -> what it says of a case's samples (docs/method.md)."""
