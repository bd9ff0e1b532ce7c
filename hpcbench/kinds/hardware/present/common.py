"""What tables and charts of all tests have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.derive.own_rates import DEVICE
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table
from hpcbench.views.words import backend_text, device_type, timed_text

Records = Mapping[str, HardwareRecord]
CLOCK = Column("clock", "clock", meaning="whose time the rates are by, where not the host's",
               optional=True)
DECLARED = Look("declared peak of all ranks", "#000000", dotted=True)


def table_of(
    title: str, of: Sequence[Column], items: Sequence[CaseResult],
    row: Callable[[CaseResult], Row], notes: Iterable[Line] = (),
) -> Iterator[Table]:
    """Yield one table: a group of rows for each device and number of ranks; none if none ran."""
    groups = grouped(((where(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    if groups:
        yield Table(title, tuple(of), tuple(
            Group(place, tuple(map(row, same)), timed)
            for (place, timed), same in groups.items()), notes=tuple(notes))


def bandwidth_chart(
    title: str, stem: str, note: str, items: Sequence[CaseResult],
    bar: Callable[[CaseResult, Look], Bar],
    peak: Callable[[CaseResult], float | None] = lambda _: None,
) -> Iterator[BarChart]:
    """Yield the rates of all ranks together, a bar a case that was timed.

    ``peak`` is what is declared of all ranks: a line across the bars of a place.
    """
    timed = [item for item in items if item.statistics is not None]
    look = Look("all ranks together", COLOURS[0])
    if timed:
        sections = grouped((where(item), item) for item in timed)
        peaks = {name: [*dict.fromkeys(filter(None, map(peak, same)))]
                 for name, same in sections.items()}
        yield BarChart(
            title, "GB/s of all ranks together", stem, (note,),
            tuple(item.case.case_id for item in timed), Axis("rate", Show.GB_PER_S, "GB/s"), (),
            tuple(BarSection(name, tuple(bar(item, look) for item in same),
                             tuple((value, DECLARED) for value in peaks[name]))
                  for name, same in sections.items()), (look, *[DECLARED] * any(peaks.values())))


def where(item: CaseResult) -> str:
    """Return the device, the number of ranks, and the backend with its variables."""
    return f"{device_type(item)}  {plural(item.case.world_size, 'rank')}  {backend_text(item.case)}"


def clock_cell(clock: str | None) -> str | None:
    """Return the cell of CLOCK: ``device`` where the rate is by its own time, else nothing."""
    return clock if clock == DEVICE else None


def own_range(record: HardwareRecord | None) -> Range | None:
    """Return the rates of the slowest and of the fastest rank, each in its own times."""
    own = record.rank_rates if record else ()
    return Range(min(own), max(own)) if own else None
