"""A collective whose calls take turns over several sets of buffers: ``buffers`` is ``cold``."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.check import Mismatch


class Rotation:
    """Sets of buffers, each an operation; a call is one of the set that was used longest ago.

    All are restored when all have been used, the next one first. So what a call touches was last
    touched one set short of a round ago, and nothing is restored right before a call.
    """

    def __init__(self, sets: Sequence[Operation]) -> None:
        self.sets = sets
        self.name, self.place = sets[0].name, sets[0].place
        self._calls = [one.run for one in sets]
        self._at = -1
        self._used = len(sets)

    def prepare(self) -> None:
        """Restore all sets if the next call would find one that was used."""
        if self._used >= len(self.sets):
            self.restore()

    def restore(self) -> None:
        """Restore all sets, the next one first."""
        for step in range(1, len(self.sets) + 1):
            self.sets[(self._at + step) % len(self.sets)].prepare()
        self._used = 0

    def run(self) -> None:
        """Call the operation of the next set."""
        self._at = (self._at + 1) % len(self._calls)
        self._used += 1
        self._calls[self._at]()

    def spoil(self) -> None:
        """Make one element of the last call's output wrong."""
        self.sets[self._at].spoil()

    def check(self) -> Mismatch | None:
        """Compare the output of the last call."""
        return self.sets[self._at].check()
