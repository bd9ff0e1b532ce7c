"""What a case used of the machine: readings around each of its passes, over all its ranks.

A pass counts for a table if readings bracket its record on every rank that fills the table, and
the bracket is at most twice as long as the record. Differences of counters are over the bracket.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.registry import kinds
from hpcbench.kinds.spec import in_this_package
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.stack import PassKey
from hpcbench.reduce.usage import Usage
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record
from hpcbench.trace.source import TraceSource, told_of
from hpcbench.trace.telemetry import BY_NODE, KEYS, TABLES, THROTTLE_REASONS, Rows

WIDEST = 2
"""A bracket may be this many times as long as the record in it."""
_FLAGS = SAMPLE_COLUMNS.index("flags")
_LOOPBACK = "lo"
Marks = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Bracketed:
    """One device's readings around one record: ``rows`` from the one before to the one after."""

    table: str
    rows: Rows

    @property
    def seconds(self) -> float:
        """Return how long the bracket is."""
        return float(self.rows[-1, 0] - self.rows[0, 0]) / 1e9

    def column(self, name: str) -> Rows:
        """Return the values of a column that were read."""
        values = self.rows[:, len(KEYS) + TABLES[self.table].names.index(name)]
        return values[values >= 0]

    def rise(self, name: str) -> float | None:
        """Return by how much a counter rose; None if it was not read at both ends, or fell."""
        values = self.column(name)
        if len(values) < len(self.rows) or values[-1] < values[0]:
            return None
        return float(values[-1] - values[0])


@dataclass(slots=True)
class PassUse:
    """What is known of one pass: its attempt, its calls, and what each rank read around it."""

    attempt: int
    calls: int
    span_ns: tuple[int, int]
    """Of the lowest rank, which is rank 0: its clock is the global one."""
    ranks: Counter[str] = field(default_factory=Counter)
    """How many ranks fill each table."""
    read: dict[str, dict[int, dict[str, Bracketed]]] = field(
        default_factory=lambda: defaultdict(dict))
    """Table -> rank -> device -> readings."""

    def whole(self, table: str) -> Mapping[int, Mapping[str, Bracketed]] | None:
        """Return what each rank read for a table; None if some rank's is missing."""
        found = self.read.get(table, {})
        return found if found and len(found) == self.ranks[table] else None


class Usages:
    """What each case used, put together while cases and then traces go by."""

    def __init__(self) -> None:
        self.newest = 0
        self._passes: dict[str, dict[PassKey, PassUse]] = defaultdict(dict)

    def add_case(self, case: Case, records: Mapping[int, Sequence[Record]]) -> None:
        """Note which attempt of each pass is used, and how often it called the operation."""
        for _, items in sorted(records.items()):
            for record in items:
                self.newest = max(self.newest, record.attempt)
                key = PassKey(record.launch, record.pass_index)
                known = self._passes[case.case_id].get(key)
                if record.end_ns > record.begin_ns and (
                        known is None or known.attempt < record.attempt):
                    self._passes[case.case_id][key] = PassUse(
                        record.attempt, _calls(case, record),
                        (record.begin_ns, record.end_ns))

    def add_source(self, source: TraceSource, tables: Mapping[str, Rows]) -> None:
        """Note what one rank read around its records."""
        told = told_of(source)
        records = [record for record in source.records(samples=False)
                   if (use := self._use_of(record)) and use.attempt == record.attempt]
        if told is None or not records:
            return
        header = source.header
        for record in records:
            if (use := self._use_of(record)) is not None:
                use.ranks.update(_tables_of(record, is_first=header.local_rank == 0))
        for table, rows in tables.items():
            names = told.devices.get(table, ())
            for number in np.unique(rows[:, 1]).tolist():
                of_device = rows[rows[:, 1] == number]
                device = names[number] if number < len(names) else str(number)
                for record, part in _brackets(of_device, records):
                    if (use := self._use_of(record)) is not None:
                        use.read[table].setdefault(header.rank, {})[device] = Bracketed(table, part)

    def _use_of(self, record: Record) -> PassUse | None:
        of_case = self._passes.get(record.case_id, {})
        return of_case.get(PassKey(record.launch, record.pass_index))

    def passes(self, case: Case) -> list[PassUse]:
        """Return what is known of each pass of a case."""
        return [*self._passes.get(case.case_id, {}).values()]


def _calls(case: Case, record: Record) -> int:
    """Return how often a pass called the operation: warm-ups and calls for checks included."""
    single = int(np.count_nonzero(record.samples[:, _FLAGS] & Flag.SINGLE))
    return (len(record.samples) - single) * case.batch + single


def _tables_of(record: Record, *, is_first: bool) -> Iterator[str]:
    """Yield the tables that the rank of a record fills; ``is_first`` of its node."""
    for name, table in TABLES.items():
        if table.by == BY_NODE and not is_first:
            continue
        if name != "gpu" or record.device.startswith("cuda"):
            yield name


def _brackets(rows: Rows, records: Sequence[Record]) -> Iterator[tuple[Record, Rows]]:
    """Yield each record that readings of one device bracket closely enough, with these readings."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    begins = np.array([record.begin_ns for record in records], dtype=np.int64)
    ends = np.array([record.end_ns for record in records], dtype=np.int64)
    first: Marks = np.searchsorted(rows[:, 0], begins, side="right") - 1
    last: Marks = np.searchsorted(rows[:, 0], ends, side="left")
    for record, low, high in zip(records, first.tolist(), last.tolist(), strict=True):
        if low >= 0 and high < len(rows) and (
                rows[high, 0] - rows[low, 0] <= WIDEST * (record.end_ns - record.begin_ns)):
            yield record, rows[low:high + 1]


def with_usage(items: Iterable[CaseResult], used: Usages) -> Iterator[CaseResult]:
    """Yield the cases with what they used."""
    for item in items:
        passes = used.passes(item.case)
        usage = usage_of(passes, _sent(item)) if passes else None
        yield replace(item, usage=None if usage is None else replace(usage, spans_ns=tuple(
            use.span_ns for use in passes if use.attempt == used.newest)))


def _sent(item: CaseResult) -> float | None:
    """Return what a call of a case sends, as its kind says it; a plug-in's fault costs only that.
    """
    spec = kinds().get(item.case.kind)
    try:
        return None if spec is None else spec.deriver().sent_bytes(item)
    except Exception:
        if spec is not None and in_this_package(spec.deriver_path):
            raise
        return None


def usage_of(passes: Sequence[PassUse], sent_a_call: float | None) -> Usage | None:
    """Return what a mean pass used, None if nothing was read around any."""
    counts = {table: sum(use.whole(table) is not None for use in passes) for table in TABLES}
    if not any(counts.values()):
        return None
    most = max(counts, key=lambda table: counts[table])
    windows = [max(one.seconds for devices in whole.values() for one in devices.values())
               for use in passes if (whole := use.whole(most))]
    calls = [use.calls for use in passes if use.whole(most)]
    return Usage(
        passes=counts[most], window_s=sum(windows) / len(windows),
        **_energy(passes), **_clocks(passes), **_throttling(passes), **_of_workers(passes),
        **_of_network(passes), steal_share=_steal(passes),
        nvlink_bytes=_rise(passes, "gpu", "nvlink_sent_bytes"),
        computed_bytes=None if sent_a_call is None else sent_a_call * sum(calls) / len(calls),
        xids=tuple(sorted({int(one.column("xid")[-1]) for one in _every(passes, "gpu")
                           if one.column("xid").size} - {0})),
        ecc_errors=_plus(_rise(passes, "gpu", "ecc_corrected"),
                         _rise(passes, "gpu", "ecc_uncorrected")))


def _every(passes: Sequence[PassUse], table: str) -> Iterator[Bracketed]:
    """Yield all readings of the passes in which all ranks have them."""
    for use in passes:
        for devices in (use.whole(table) or {}).values():
            yield from devices.values()


def _n(passes: Sequence[PassUse], table: str) -> int:
    return sum(use.whole(table) is not None for use in passes)


def _rise(
    passes: Sequence[PassUse], table: str, column: str, scale: float = 1.0,
) -> float | None:
    """Return by how much a counter rose in a mean pass, over all ranks and devices."""
    rises = [one.rise(column) for one in _every(passes, table)]
    known = [rise for rise in rises if rise is not None]
    return scale * sum(known) / _n(passes, table) if known and len(known) == len(rises) else None


def _plus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def _energy(passes: Sequence[PassUse]) -> dict[str, Any]:
    """Return energy and mean power of packages with their memory, of GPUs, or of both."""
    parts: dict[str, tuple[float, float]] = {}
    for name, table, column, scale in (("cpu", "energy", "energy_uj", 1e-6),
                                       ("gpu", "gpu", "energy_mj", 1e-3)):
        kept = [one for use in passes for devices in (use.whole(table) or {}).values()
                for device, one in devices.items() if table == "gpu" or _is_counted(device)]
        joules = [one.rise(column) for one in kept]
        if kept and None not in joules:
            pairs = [(scale * float(rise or 0), one.seconds)
                     for rise, one in zip(joules, kept, strict=True)]
            n = _n(passes, table)
            parts[name] = (sum(joule for joule, _ in pairs) / n,
                           sum(joule / seconds for joule, seconds in pairs) / n)
    if not parts:
        return {}
    return {"energy_j": sum(energy for energy, _ in parts.values()),
            "mean_power_w": sum(power for _, power in parts.values()),
            "energy_of": " and ".join(parts)}


def _is_counted(domain: str) -> bool:
    """Return whether a RAPL domain is in no other: a package, or memory, but not the platform."""
    return domain.endswith("/dram") or domain.startswith("package-") and "/" not in domain


def _clocks(passes: Sequence[PassUse]) -> dict[str, Any]:
    """Return the least and the greatest clock of GPUs, else of cores."""
    for name, table, low, high, scale in (
            ("gpu", "gpu", "sm_mhz", "sm_mhz", 1.0),
            ("cpu", "frequency", "lowest_khz", "highest_khz", 1e-3)):
        lows = [value for one in _every(passes, table) for value in one.column(low).tolist()]
        highs = [value for one in _every(passes, table) for value in one.column(high).tolist()]
        if lows:
            return {"clock_low_mhz": min(lows) * scale, "clock_high_mhz": max(highs) * scale,
                    "clock_of": name}
    return {}


def _throttling(passes: Sequence[PassUse]) -> dict[str, Any]:
    """Return whether something lowered clocks, and what."""
    words: list[str] = []
    known = False
    for one in _every(passes, "gpu"):
        reasons = one.column("throttle_reasons")
        known |= bool(reasons.size)
        bits = int(np.bitwise_or.reduce(reasons)) if reasons.size else 0
        words += [word for bit, word in THROTTLE_REASONS.items() if bits & bit]
    cores = _rise(passes, "frequency", "throttled")
    words += ["heat of the CPU"] if cores else []
    if not known and cores is None:
        return {}
    return {"throttled": bool(words), "throttled_by": tuple(dict.fromkeys(words))}


def _of_workers(passes: Sequence[PassUse]) -> dict[str, Any]:
    """Return the sums over workers; a worker that was replaced in between tells nothing."""
    same = all(one.column("pid")[0] == one.column("pid")[-1] for one in _every(passes, "process"))
    return {} if not same else {
        "cpu_s": _rise(passes, "process", "cpu_ns", 1e-9),
        "wait_s": _rise(passes, "process", "wait_ns", 1e-9),
        "minor_faults": _rise(passes, "process", "minor_faults"),
        "major_faults": _rise(passes, "process", "major_faults")}


def _steal(passes: Sequence[PassUse]) -> float | None:
    stolen, *others = (_rise(passes, "cpu", f"{name}_ns")
                       for name in ("steal", "user", "system", "idle"))
    if stolen is None or None in others:
        return None
    total = stolen + sum(other for other in others if other is not None)
    return stolen / total if total else None


def _of_network(passes: Sequence[PassUse]) -> dict[str, Any]:
    """Return what interfaces sent: all of them, those of each node, and loopback."""
    by_node: Counter[int] = Counter()
    loopback, n = 0.0, _n(passes, "network")
    for use in passes:
        for rank, devices in (use.whole("network") or {}).items():
            for device, one in devices.items():
                rise = one.rise("sent_bytes") or 0.0  # an interface that began anew
                by_node[rank] += int(rise)
                loopback += rise * (device == _LOOPBACK)
    if not n:
        return {}
    return {"sent_bytes": sum(by_node.values()) / n, "loopback_bytes": loopback / n,
            "sent_by_node": tuple(by_node[rank] / n for rank in sorted(by_node)),
            "dropped": _rise(passes, "network", "dropped")}
