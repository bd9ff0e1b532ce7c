"""The table of what one step of each training called, computed and took, beside what is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.training.derive.counted import Counted, Demand
from hpcbench.kinds.training.derive.deriver import NOTHING_KNOWN, TrainingRecord
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present import words
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns
from hpcbench.views.table import Cell, Column, Group, Line, Row, Show, Table

_MOST = "counted in one step that was not timed, on the rank that has most"
_PLAN = "what the plan says of it"
_KINDS = (("calls", "calls", Show.COUNT, ""), ("wire", "wire", Show.MIB, "MiB"),
          ("flops", "GFLOP", Show.GFLOP, "1e9"),
          ("activations", "activations", Show.MIB, "MiB"))
COLUMNS = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    *(column for name, title, show, unit in _KINDS for column in (
        Column(name, title, show, unit, _MOST, optional=True),
        Column(f"{name}_predicted", "predicted", show, unit, _PLAN, optional=True))),
)


def counted_tables(
    title: str, items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
) -> Iterator[Table]:
    """Yield the table of a block's trainings whose steps were counted; none if none was."""
    members = [(item, record.counted) for item in items if item.status in columns.TABLED
               and (record := derived.get(item.case.case_id, NOTHING_KNOWN)).counted
               and training_of(item.case).trains]
    listed = [(item, found) for item, found in members if found]
    if not listed:
        return
    options = words.telling_options(training_of(item.case) for item, _ in listed)
    groups = grouped((training_of(item.case).model, (item, found)) for item, found in listed)
    yield Table(f"{title}: one step, counted", COLUMNS, tuple(
        Group(name, tuple(_row(item, options[training_of(item.case)], found)
                          for item, found in group))
        for name, group in groups.items()), notes=tuple(_notes(listed)))


def _row(item: CaseResult, options: str, found: Counted) -> Row:
    work = training_of(item.case)
    pairs = zip(_cells(found.measured), _cells(found.predicted), strict=True)
    return Row((words.strategy_text(work), options, words.degrees_text(work) or None,
                work.batch_size, *(cell for pair in pairs for cell in pair)),
               case_id=item.case.case_id)


def _cells(demand: Demand) -> tuple[Cell, ...]:
    return demand.calls, demand.wire_bytes, demand.flops, demand.activations_bytes


def _notes(listed: Sequence[tuple[CaseResult, Counted]]) -> Iterator[Line]:
    """Yield why something was not counted, and what activations are of."""
    reasons = grouped(((name, reason), item) for item, found in listed
                      for name, reason in found.missing.items())
    for (name, reason), items in reasons.items():
        yield Line(f"{plural(len(items), 'row')} without {name}: {reason}", "quiet")
    kinds = ", ".join(dict.fromkeys(
        found.activations_of for _, found in listed if found.activations_of))
    if kinds:
        yield Line("activations = the most bytes at once that forward and backward hold: "
                   f"{kinds}", "quiet")
