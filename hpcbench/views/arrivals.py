"""The table of cases whose ranks enter late on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcbench.operations.arrival import TOGETHER
from hpcbench.plan.case import Case
from hpcbench.reduce.arrival import MOST_OFF
from hpcbench.reduce.results import CaseResult, LateArrivals, Results
from hpcbench.units import grouped
from hpcbench.views.columns import UNRELIABLE
from hpcbench.views.labels import without_shared
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
)

_COLUMNS = (
    Column("case", "case"), Column("arrival", "arrival"),
    Column("lateness", "delay", Show.US, "us", "achieved, median"),
    Column("missed", "missed", Show.PERCENT, "%",
           "samples in which a rank entered 10 % of the delay off", "less"),
    Column("last_in", "from last", Show.US, "us", "from the last arrival to the last end", "less"),
    Column("own_entry", "own entry", Show.US, "us",
           "from own entry to end, mean of the punctual ranks", "less"),
    Column("absorbed", "absorbed", Show.WHOLE_PERCENT, "%",
           "of the delay; the rest is extra time of the punctual ranks", "more"),
    Column("absorbed_interval", "95 % CI", Show.WHOLE_PERCENT, "%", "of the absorbed share; ? "
           "without a reliable interval of one of the two cases", optional=True))


def arrival_tables(results: Results) -> Iterator[Table]:
    """Yield a row for each case with late ranks and for the same without; nothing without any."""
    measured = [(item, arrivals) for item in results.cases
                if item.timing is not None and (arrivals := item.timing.arrivals) is not None]
    names = dict.fromkeys(_name(item.case) for item, _ in measured)
    shared, own = without_shared([*names])
    short = dict(zip(names, own, strict=True))
    groups = grouped((short[_name(item.case)], (item, arrivals)) for item, arrivals in measured)
    if measured:
        yield Table(" ".join(filter(None, ("late arrivals,", shared or "isolated"))), _COLUMNS, (
            Group("", tuple(_row(name, *each) for name, same in groups.items() for each in same)),),
            notes=tuple(_notes([arrivals for _, arrivals in measured])))


def _notes(measured: Sequence[LateArrivals]) -> Iterator[Line]:
    """Yield what the columns mean, and why a share is missing or below 0, where one is."""
    late = [one for one in measured if one.lateness_s is not None]
    yield Line("  delay: median, from the first rank's entry to the late one's; less than planned "
               "if the first is late itself, as on a busy machine")
    yield Line("  absorbed: share of it that punctual ranks did not wait: 100 none of it, 0 all")
    if any((one.absorbed_share or 0) < -0.005 for one in late):
        yield Line("  below 0: they took longer by more than the delay")
    if any(one.absorbed_share is None for one in late):
        yield Line("  absorbed -: no case together of the same setting, or the delay is 0 or over "
                   f"{100 * MOST_OFF:.0f} % off")


def _name(case: Case) -> str:
    return replace(case, arrival=TOGETHER).label


def _row(name: str, item: CaseResult, arrivals: LateArrivals) -> Row:
    assert item.timing is not None
    return Row((
        name, item.case.arrival.text, arrivals.lateness_s, arrivals.missed_share,
        _with_interval(item.timing.last_in_s, arrivals.last_in_low_s, arrivals.last_in_high_s),
        _with_interval(arrivals.own_entry_s, arrivals.own_entry_low_s, arrivals.own_entry_high_s),
        arrivals.absorbed_share, _share_interval(arrivals)), item.status, item.case.case_id)


def _with_interval(value_s: float | None, low_s: float | None, high_s: float | None) -> Cell:
    if value_s is None or low_s is None or high_s is None:
        return value_s
    return WithInterval(value_s, low_s, high_s)


def _share_interval(arrivals: LateArrivals) -> Cell:
    if arrivals.absorbed_share is None:
        return None
    low, high = arrivals.absorbed_low, arrivals.absorbed_high
    return UNRELIABLE if low is None or high is None else Range(low, high)
