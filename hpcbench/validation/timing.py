"""Clocks: where the time comes from, and how far the nodes' clocks are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.trace.clock import SyncRecord
from hpcbench.units import format_seconds
from hpcbench.validation.lines import Line, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, by_value, reasons

_SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
"""Clock sources whose every reading takes a system call and about a microsecond, or which tick too
seldom: Documentation/timers/timekeeping.rst of Linux."""
_WIDE_NS = 50_000
"""Clocks that are known no better hide what a start together has to show (docs/method.md)."""
_APART_S = 1.0


def clock_lines(job: JobReport) -> Iterator[Line]:
    """Yield the clock source, the offset between nodes, and that of the time of day."""
    yield _source(job)
    errors = reasons(job.ranks, lambda report: report.clock_error)
    if errors and job.lost:
        yield not_applicable("clock offset", "cannot be measured before all ranks answer")
    elif errors:
        yield fail("clock offset", spread(errors), "see that the ranks reach one another; a "
                   "run measures it in the same way before its first case")
    else:
        yield from _offsets([record for report in job.ranks if (record := report.sync_record())])


def _source(job: JobReport) -> Line:
    sources = by_value(job.ranks, lambda report: report.of("kernel", "clocksource"))
    if set(sources) == {None}:
        return not_applicable("clock source", "the kernel does not tell it")
    slow = [name for name in sources if name in _SLOW]
    if slow:
        return warn("clock source", f"{spread(sources)}: reading it takes about a microsecond",
                    "boot with tsc (clocksource=tsc tsc=reliable) if the hardware allows it")
    if len(sources) > 1:
        return warn("clock source", f"not alike: {spread(sources)}",
                    "use the same on all nodes, or leave the others out")
    return ok("clock source", spread(sources))


def _offsets(records: Sequence[SyncRecord]) -> Iterator[Line]:
    if not records:
        yield not_applicable("clock offset", "the ranks' clocks were not compared")
        return
    if max(record.n_clocks for record in records) == 1:
        yield ok("clock offset", "0: all ranks read one clock")
        return
    bound_ns = max(record.model.bound_ns for record in records)
    drift = max(abs(record.model.slope) for record in records) * 1e6
    offsets = (f"{records[0].n_clocks} clocks, known within {format_seconds(bound_ns / 1e9)}; they "
               f"drift apart by up to {drift:.2g} us/s")
    if any(record.check and record.check.refutes(record.model) for record in records):
        yield fail("clock offset", f"{offsets}; but a check found them further off than that",
                   "a clock was set or stepped while it was compared: see chronyc or ntpq there")
    elif bound_ns > _WIDE_NS:
        yield warn("clock offset", f"{offsets}: too wide to compare starts between nodes",
                   "use a quicker network for MPI, or cores that are not overloaded")
    else:
        yield ok("clock offset", offsets)
    yield _time_of_day(records)


def _time_of_day(records: Sequence[SyncRecord]) -> Line:
    """Compare what each node's time of day was at one global time."""
    real = [record.realtime_ns - record.model.to_global(record.local_ns) for record in records]
    apart_s = (max(real) - min(real)) / 1e9
    if apart_s > _APART_S:
        return warn("time of day", f"differs by up to {format_seconds(apart_s)} between nodes: "
                    "logs do not line up (measurements do not use it)",
                    "run chrony or ntpd on all nodes")
    return ok("time of day", f"within {format_seconds(apart_s)} between nodes")
