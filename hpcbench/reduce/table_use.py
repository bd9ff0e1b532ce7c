"""What readings around one pass add up to, table by table, while ranks go by."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from hpcbench.trace.telemetry import KEYS, NOT_READ, TABLES, Rows

_LOOPBACK = "lo"
_OF_CHANGES = frozenset({"pid", "xid"})
"""Columns that tell something by being different before and after a pass."""


@dataclass(slots=True)
class TableUse:
    """What the readings of one table say of one pass, over all ranks and devices.

    Attributes:
        wanted, ranks: how many ranks fill the table, and of how many readings bracket the pass.
        window_s: the longest bracket.
        rises, rates: by how much each counter rose in sum, and the sum of its rises per second.
        unread: counters that some device did not tell at both ends.
        least, greatest: of each value of the moment, of readings within the pass.
        reasons, xids: bits of NVML's reasons for lower clocks, also within it, and XIDs that came.
        sent, loopback: bytes by rank that reads them, and those that stayed on their node.
        is_same: whether the first and the last reading are of the same process.
    """

    wanted: int = 0
    ranks: set[int] = field(default_factory=set)
    window_s: float = 0.0
    rises: Counter[str] = field(default_factory=Counter)
    rates: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    unread: set[str] = field(default_factory=set)
    least: dict[str, int] = field(default_factory=dict)
    greatest: dict[str, int] = field(default_factory=dict)
    reasons: int = 0
    xids: set[int] = field(default_factory=set)
    sent: Counter[int] = field(default_factory=Counter)
    loopback: float = 0.0
    is_same: bool = True

    def add(self, table: str, rank: int, device: str, rows: Rows) -> None:
        """Add the readings of one device, from the one before the pass to the one after it."""
        seconds = float(rows[-1, 0] - rows[0, 0]) / 1e9
        self.ranks.add(rank)
        self.window_s = max(self.window_s, seconds)
        for at, column in enumerate(TABLES[table].columns, len(KEYS)):
            if column.counts:
                self._add_rise(column.name, int(rows[0, at]), int(rows[-1, at]), seconds)
            else:
                values = rows[:, at] if column.name in _OF_CHANGES else rows[1:-1, at]
                self._add_values(column.name, values[values != NOT_READ])
        if table == "network":
            sent = len(KEYS) + TABLES[table].names.index("sent_bytes")
            rise = max(float(rows[-1, sent] - rows[0, sent]), 0.0)  # an interface that began anew
            self.sent[rank] += int(rise)
            self.loopback += rise * (device == _LOOPBACK)

    def _add_rise(self, name: str, first: int, last: int, seconds: float) -> None:
        if first == NOT_READ or last < first:
            self.unread.add(name)
        else:
            self.rises[name] += last - first
            self.rates[name] += (last - first) / seconds

    def _add_values(self, name: str, values: Rows) -> None:
        if not values.size:
            return
        least, greatest = int(values.min()), int(values.max())
        self.least[name] = min(self.least.get(name, least), least)
        self.greatest[name] = max(self.greatest.get(name, greatest), greatest)
        if name == "throttle_reasons":
            self.reasons |= int(np.bitwise_or.reduce(values))
        elif name == "xid":
            if values[-1] != values[0]:  # else it is of an earlier pass
                self.xids.add(int(values[-1]))
        elif name == "pid":
            self.is_same &= least == greatest


@dataclass(slots=True)
class PassUse:
    """What is known of one pass: its attempt, its calls, and what was read around it."""

    attempt: int
    calls: int
    span_ns: tuple[int, int]
    """Of the lowest rank, which is rank 0: its clock is the global one."""
    tables: dict[str, TableUse] = field(default_factory=lambda: defaultdict(TableUse))

    def whole(self, table: str) -> TableUse | None:
        """Return what was read for a table; None if some rank's readings are missing."""
        found = self.tables.get(table)
        return found if found and 0 < found.wanted == len(found.ranks) else None
