"""Resource usage of a case: readings around each of its passes, over all its ranks. A pass counts
for a table if readings bracket its record on every rank that fills the table, and the bracket is at
most twice as long. Differences of counters are over the bracket."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import SentBytes, facts_of
from hpcbench.reduce.results import CaseResult, Usage
from hpcbench.reduce.stack import PassKey
from hpcbench.trace.columns import BY_NODE, KEYS, NOT_READ, TABLES, THROTTLE_REASONS, Rows
from hpcbench.trace.schema import SETTLING_CALLS, Flag, Record
from hpcbench.trace.source import TraceSource, telemetry_report

_LOOPBACK = "lo"
_OF_CHANGES = frozenset({"pid", "xid"})
"""Columns whose change from before a pass to after it is recorded."""


@dataclass(slots=True)
class TableReadings:
    """Readings of one table around one pass. ``wanted`` ranks fill the table, readings of ``ranks``
    bracket the pass. ``rises`` and ``rates`` are sums of counters and their rates, ``unread``
    counters without both ends; ``least`` and ``greatest`` of values, ``reasons`` (NVML) and new
    ``xids`` are within the pass. ``sent`` bytes are by rank that reads them. ``is_same``: one
    worker process."""

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
class PassUsage:
    """One pass: its attempt, its calls, and the readings around it."""

    attempt: int
    calls: int
    span_ns: tuple[int, int]
    """Begin and end on the lowest rank, which is rank 0: its clock is the global one."""
    tables: dict[str, TableReadings] = field(default_factory=lambda: defaultdict(TableReadings))

    def whole(self, table: str) -> TableReadings | None:
        found = self.tables.get(table)
        return found if found and 0 < found.wanted == len(found.ranks) else None


WIDEST = 2
"""A bracket may be this many times as long as the record in it."""


class UsageCollector:
    """Usage of each case, collected from cases, then traces."""

    def __init__(self) -> None:
        self.newest = 0
        self._passes: dict[str, dict[PassKey, PassUsage]] = {}

    def add_case(self, case: Case, records: Mapping[int, Sequence[Record]]) -> None:
        passes: dict[PassKey, PassUsage] = {}
        for _, items in sorted(records.items()):
            for record in items:
                self.newest = max(self.newest, record.attempt)
                key = PassKey(record.launch, record.pass_index)
                of_pass = passes.get(key)
                if record.end_ns > record.begin_ns and (
                        of_pass is None or of_pass.attempt < record.attempt):
                    passes[key] = PassUsage(record.attempt, _calls(case, record),
                                          (record.begin_ns, record.end_ns))
        if passes:
            self._passes[case.case_id] = passes

    def add_source(self, source: TraceSource, tables: Mapping[str, Rows]) -> None:
        report = telemetry_report(source)
        if report is None:
            return
        rank, is_first = source.header.rank, source.header.local_rank == 0
        used = [(record, use) for record in source.records(samples=False)
                if (use := self._passes.get(record.case_id, {}).get(
                    PassKey(record.launch, record.pass_index)))
                and use.attempt == record.attempt]
        for record, use in used:
            for table in _tables_of(record, is_first=is_first):
                use.tables[table].wanted += 1
        spans_ns = np.array([(record.begin_ns, record.end_ns) for record, _ in used],
                            dtype=np.int64).reshape(-1, 2)
        for table, rows in tables.items():
            names = report.devices.get(table, ())
            for number in np.unique(rows[:, 1]).tolist():
                device = names[number] if number < len(names) else str(number)
                if table == "energy" and not _is_counted(device):
                    continue
                for at, part in _brackets(rows[rows[:, 1] == number], spans_ns):
                    used[at][1].tables[table].add(table, rank, device, part)

    def passes(self, case: Case) -> list[PassUsage]:
        return [*self._passes.get(case.case_id, {}).values()]


def _calls(case: Case, record: Record) -> int:
    flags = record.samples.flags
    single = int(np.count_nonzero(flags & Flag.SINGLE))
    settling = SETTLING_CALLS * int(np.count_nonzero(flags & Flag.SETTLED))
    return (len(flags) - single + settling) * case.batch + single


def _tables_of(record: Record, *, is_first: bool) -> Iterator[str]:
    for name, table in TABLES.items():
        if table.by == BY_NODE and not is_first:
            continue
        if name != "gpu" or record.device.startswith("cuda"):
            yield name


def _brackets(rows: Rows, spans_ns: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield each span that readings of one device bracket closely enough, with these readings."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    first = np.searchsorted(rows[:, 0], spans_ns[:, 0], side="right") - 1
    last = np.searchsorted(rows[:, 0], spans_ns[:, 1], side="left")
    inside = (first >= 0) & (last < len(rows))
    for at in np.flatnonzero(inside).tolist():
        part = rows[first[at]:last[at] + 1]
        if part[-1, 0] - part[0, 0] <= WIDEST * (spans_ns[at, 1] - spans_ns[at, 0]):
            yield at, part


def _is_counted(domain: str) -> bool:
    """Return whether a RAPL domain is in no other: a package, or memory, but not the platform."""
    return domain.endswith("/dram") or domain.startswith("package-") and "/" not in domain


def with_usage(items: Iterable[CaseResult], used: UsageCollector) -> Iterator[CaseResult]:
    for item in items:
        passes = used.passes(item.case)
        sent = next((fact.count for fact in facts_of(item, None, SentBytes)), None)
        usage = usage_of(passes, sent) if passes else None
        yield replace(item, usage=None if usage is None else replace(usage, spans_ns=tuple(
            use.span_ns for use in passes if use.attempt == used.newest)))


def usage_of(passes: Sequence[PassUsage], sent_a_call: float | None) -> Usage | None:
    read = {table: [whole for use in passes if (whole := use.whole(table))] for table in TABLES}
    most = max(read.values(), key=len)
    if not most:
        return None
    calls = [use.calls for use in passes]
    ecc = [_rise(read["gpu"], column) for column in ("ecc_corrected", "ecc_uncorrected")]
    return Usage(
        passes=len(most), window_s=sum(one.window_s for one in most) / len(most),
        **_energy(read), **_clocks(read), **_throttling(read), **_of_workers(read["process"]),
        **_of_network(read["network"]), steal_share=_steal(read["cpu"]),
        nvlink_bytes=_rise(read["gpu"], "nvlink_sent_bytes"),
        computed_bytes=None if sent_a_call is None else sent_a_call * sum(calls) / len(calls),
        xids=tuple(sorted({xid for one in read["gpu"] for xid in one.xids})),
        ecc_errors=None if None in ecc else float(sum(filter(None, ecc))))


def _rise(uses: Sequence[TableReadings], column: str, scale: float = 1.0) -> float | None:
    if not uses or any(column in one.unread for one in uses):
        return None
    return scale * sum(one.rises[column] for one in uses) / len(uses)


Read = Mapping[str, Sequence[TableReadings]]
"""The readings of each table, of the passes in which all of its ranks have some."""


def _energy(read: Read) -> dict[str, Any]:
    parts: dict[str, tuple[float, float]] = {}
    for name, table, column, scale in (("cpu", "energy", "energy_uj", 1e-6),
                                       ("gpu", "gpu", "energy_mj", 1e-3)):
        if (joules := _rise(read[table], column, scale)) is not None:
            rates = [one.rates[column] * scale for one in read[table]]
            parts[name] = (joules, sum(rates) / len(rates))
    if not parts:
        return {}
    return {"energy_j": sum(energy for energy, _ in parts.values()),
            "mean_power_w": sum(power for _, power in parts.values()),
            "energy_of": " and ".join(parts)}


def _clocks(read: Read) -> dict[str, Any]:
    for name, table, low, high, scale in (
            ("gpu", "gpu", "sm_mhz", "sm_mhz", 1.0),
            ("cpu", "frequency", "lowest_khz", "highest_khz", 1e-3)):
        lows = [one.least[low] for one in read[table] if low in one.least]
        highs = [one.greatest[high] for one in read[table] if high in one.greatest]
        if lows and highs:
            return {"clock_low_mhz": min(lows) * scale, "clock_high_mhz": max(highs) * scale,
                    "clock_of": name}
    return {}


def _throttling(read: Read) -> dict[str, Any]:
    reasons = [one.reasons for one in read["gpu"] if "throttle_reasons" in one.least]
    causes = [cause for bit, cause in THROTTLE_REASONS.items()
              if any(bits & bit for bits in reasons)]
    cores = _rise(read["frequency"], "throttled")
    causes += ["heat of the CPU"] if cores else []
    if not reasons and cores is None:
        return {}
    return {"throttled": bool(causes), "throttled_by": tuple(causes)}


def _of_workers(uses: Sequence[TableReadings]) -> dict[str, Any]:
    """Return means over the passes in which no worker was replaced."""
    alike = [one for one in uses if one.is_same]
    return {"cpu_s": _rise(alike, "cpu_ns", 1e-9), "wait_s": _rise(alike, "wait_ns", 1e-9),
            "minor_faults": _rise(alike, "minor_faults"),
            "major_faults": _rise(alike, "major_faults")}


def _steal(uses: Sequence[TableReadings]) -> float | None:
    stolen, *others = (_rise(uses, f"{name}_ns") for name in ("steal", "user", "system", "idle"))
    if stolen is None or None in others:
        return None
    total = stolen + sum(other for other in others if other is not None)
    return stolen / total if total else None


def _of_network(uses: Sequence[TableReadings]) -> dict[str, Any]:
    if not uses:
        return {}
    by_node = sum((one.sent for one in uses), Counter[int]())
    ranks = sorted({rank for one in uses for rank in one.ranks})
    return {"sent_bytes": sum(by_node.values()) / len(uses),
            "sent_by_node": tuple(by_node[rank] / len(uses) for rank in ranks),
            "loopback_bytes": sum(one.loopback for one in uses) / len(uses),
            "dropped": _rise(uses, "dropped")}
