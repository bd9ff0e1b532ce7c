"""The runner of sleeps; the only side that may import torch, and this one has no use for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpcbench.plugins import Place, Runner
from hpcbench_sleep.planner import Sleep


class SleepRunner(Runner):
    """Opens sleeps."""

    def open(self, work: Sleep, place: Place, *, validate: bool) -> Nap:
        """Return the operation; nothing is allocated."""
        return Nap(work, place)


@dataclass(frozen=True)
class TooShort:
    """What is wrong with a sleep."""

    words: str
    n_wrong: int = 1


class Nap:
    """One rank that sleeps."""

    def __init__(self, work: Sleep, place: Place) -> None:
        self.name, self.place = work.name, place
        self._wanted_s, self._slept_s = work.milliseconds / 1e3, 0.0

    def prepare(self) -> None:
        """Forget the last sleep."""
        self._slept_s = 0.0

    def run(self) -> None:
        """Sleep."""
        began_s = time.perf_counter()
        time.sleep(self._wanted_s)
        self._slept_s = time.perf_counter() - began_s

    def corrupt_output(self) -> None:
        """Make the last sleep too short, for tests of the check."""
        self._slept_s = 0.0

    def check(self) -> TooShort | None:
        """Return what is wrong if the last sleep was too short."""
        return None if self._slept_s >= self._wanted_s else TooShort(f"{self._slept_s} s")
