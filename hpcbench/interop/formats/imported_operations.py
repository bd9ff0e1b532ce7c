"""Single operations, as ranks report them: the slowest rank of each, then their order statistics.

They are calls of an application, each of which waited for the slowest rank: no samples of
a benchmark, so no interval is made of them. Memory is 20 bytes an operation and rank.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpcbench.errors import FileError
from hpcbench.interop.formats.imported_rows import MOST_CASES, RowPlace
from hpcbench.interop.formats.tables import CommRow, CommTable
from hpcbench.units import plural

MOST_OPERATIONS = 10_000_000


@dataclass(slots=True)
class Reports:
    """Reports of operations of one size: communicators by their index, numbers, times in us.

    ``line`` is the line of the first report.
    """

    line: int
    communicators: array[int] = field(default_factory=lambda: array("i"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    times_us: array[float] = field(default_factory=lambda: array("d"))

    def slowest_s(self) -> npt.NDArray[np.float64]:
        """Return the longest time that a rank reports of each operation, in seconds."""
        communicators = np.frombuffer(self.communicators, dtype=np.int32)
        numbers = np.frombuffer(self.numbers, dtype=np.int64)
        order = np.lexsort((numbers, communicators))
        communicators, numbers = communicators[order], numbers[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (np.diff(communicators) != 0) | (np.diff(numbers) != 0)
        times_us = np.frombuffer(self.times_us, dtype=np.float64)[order]
        longest: npt.NDArray[np.float64] = np.maximum.reduceat(times_us, np.flatnonzero(is_first))
        return longest / 1e6


@dataclass(slots=True)
class Operations:
    """All reports so far, by where they are from and the size of the message as printed."""

    series: dict[tuple[RowPlace, int], Reports] = field(default_factory=dict)
    count: int = 0
    _indices: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)
    _ranks: dict[str, int] = field(default_factory=dict)

    def take(self, table: CommTable, place: RowPlace, row: CommRow, time_us: float) -> None:
        """Keep a report. Raises FileError for more than are held in memory."""
        key = (place, row.size_bytes)
        self.count += 1
        if self.count > MOST_OPERATIONS or key not in self.series and (
                len(self.series) == MOST_CASES):
            raise FileError(f"{table.path}:{row.line}: more than {MOST_OPERATIONS:,} operations, "
                            f"or {MOST_CASES:,} sizes of them: import fewer files at a time")
        series = self.series.setdefault(key, Reports(row.line))
        name = table.communicator or table.path
        series.communicators.append(self._indices.setdefault(name, len(self._indices)))
        series.numbers.append(row.number or 0)
        series.times_us.append(time_us)
        self._ranks[name] = place.ranks
        self._seen.setdefault(name, set()).add(-1 if table.rank is None else table.rank)

    def note(self) -> str:
        """Return how many reports there are, and of which share of the ranks."""
        seen, ranks = sum(map(len, self._seen.values())), sum(self._ranks.values())
        of = f"{plural(ranks, 'rank')} of {plural(len(self._ranks), 'communicator')}"
        return (f"{plural(self.count, 'report')} of operations, by {seen} of {of}; times include "
                "waiting for others")
