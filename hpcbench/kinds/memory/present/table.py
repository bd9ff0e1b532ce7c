"""The tables of what trainings hold: measured, and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.memory.derive.deriver import NOTHING_KNOWN, PARTS, MemoryRecord
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.words import degrees_text, model_text, telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns
from hpcbench.views.table import Cell, Column, Group, Line, Row, Show, Table
from hpcbench.views.words import backend_text, device_type, options_text

Records = Mapping[str, MemoryRecord]
_OF = "in the peak of the rank with most"
_WHO = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    Column("step", "step", meaning="how it is taken, where that is unusual", optional=True))
TITLES = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer",
          "activations": "activations", "temporary": "temporary"}
"""Part -> what people read above it."""
_MEASURED = (
    *_WHO, *(Column(name, title, Show.MIB, "MiB", _OF) for name, title in TITLES.items()),
    Column("overhead", "overhead", Show.MIB, "MiB", "taken by the allocator beyond the peak",
           "less", optional=True),
    Column("peak", "peak", Show.MIB, "MiB", "the sum without overhead", "less"),
    Column("predicted", "predicted", Show.MIB, "MiB", "what the plan says of the peak",
           optional=True),
    Column("deviation", "deviation %", Show.PERCENT, "", "peak / predicted - 1", optional=True),
    Column("utilisation", "of capacity %", Show.PERCENT, "", "peak / capacity", optional=True),
    Column("efficiency", "efficiency", Show.RATIO, "", "least memory / memory of all ranks", "more",
           optional=True), columns.STATUS)
_PREDICTED = (
    *_WHO, *(column for name, title in TITLES.items() for column in (
        Column(name, title, Show.MIB, "MiB", "what the plan says of it"),
        Column(f"{name}_deviation", "dev. %", Show.PERCENT, "", "measured / predicted - 1",
               optional=True))),
    Column("moment", "at the"))
DEFINITIONS = (
    "memory: parts of the most that the rank with most held at once, in a step that was followed;",
    "  temporary = copies of weights, exchanged gradients, what the optimizer works on, the batch;",
    "  deviation = peak / predicted - 1; efficiency = parameters, gradients and states of the",
    "  whole model, each once / peaks of all ranks (docs/memory.md)")


def tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield what was measured, then what was predicted, a row a case."""
    listed = [item for item in items if item.status in columns.TABLED]
    if not listed:
        return
    options = telling_options(work_of(item.case).training for item in listed)
    groups = grouped((where_text(item), item) for item in listed)

    def known(item: CaseResult) -> MemoryRecord:
        return derived.get(item.case.case_id, NOTHING_KNOWN)

    def who(item: CaseResult) -> tuple[Cell, ...]:
        return who_cells(work_of(item.case).training, options)

    yield Table(title, _MEASURED, tuple(Group(where, tuple(
        Row((*who(item), *_measured(known(item)), item.status), item.status, item.case.case_id)
        for item in same)) for where, same in groups.items()), notes=tuple(_notes(listed, derived)))
    told = {where: [item for item in same if known(item).predicted_bytes]
            for where, same in groups.items()}
    if any(told.values()):
        yield Table(f"{title}: predicted", _PREDICTED, tuple(Group(where, tuple(
            Row((*who(item), *_predicted(known(item))), item.status, item.case.case_id)
            for item in same)) for where, same in told.items() if same))


def where_text(item: CaseResult) -> str:
    """Return what was trained where."""
    work, case = work_of(item.case).training, item.case
    return "  ".join((f"{work.model} ({model_text(work)})",
                      f"{backend_text(case)} ({device_type(item)})",
                      plural(case.world_size, "rank"), work.dtype, work.optimizer))


def who_cells(work: Training, options: Mapping[Training, str]) -> tuple[Cell, ...]:
    """Return the strategy, its options and degrees, the batch, and how a step is unusual."""
    unusual = [("accumulation", work.accumulation)] if work.accumulation > 1 else []
    return (work.strategy if work.trains else f"{work.strategy} (communication off)",
            options[work] or None, degrees_text(work) or None, work.batch_size,
            options_text([*unusual, *work.unusual()]) or None)


def _measured(record: MemoryRecord) -> tuple[Cell, ...]:
    held = record.held_bytes or {}
    return (*(held.get(part) for part in PARTS), record.overhead_bytes, record.peak_bytes,
            record.predicted_peak_bytes, record.deviation, record.utilisation, record.efficiency)


def _predicted(record: MemoryRecord) -> tuple[Cell, ...]:
    predicted, held = record.predicted_bytes or {}, record.held_bytes or {}
    return (*(cell for part in PARTS for cell in (
        predicted.get(part), record.deviation_of(part) if held else None)), record.moment)


def _notes(items: Sequence[CaseResult], derived: Records) -> Iterator[Line]:
    """Yield how peaks were measured, and what the capacity is."""
    records = [record for item in items if (record := derived.get(item.case.case_id))]
    for words, values in (("the peak is of:", {one.peak_of for one in records}),
                          ("the capacity is", {one.capacity_of for one in records})):
        told = ", ".join(sorted(filter(None, values)))
        if told:
            yield Line(f"{words} {told}", "quiet")
