"""The rows of a plan's table that are about trainings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hpcbench.kinds.kind import CountedCall
from hpcbench.kinds.training.plan.predict import predict, predict_stage
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, SYNTHETIC, Training, training_of
from hpcbench.kinds.training.present.words import strategy_text, telling_options
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.plan.case import Case
from hpcbench.units import grouped, plural
from hpcbench.views.columns import COST, cost_cells
from hpcbench.views.table import Column, Group, Line, Row, Show, Table, cell_text
from hpcbench.views.words import backend_text, batch_text, distinct, span_text

_OF_STEP = "predicted of one step, the most of any rank"
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), Column("model", "model"),
    *(Column(name, name, Show.COUNT, optional=True) for name in (
        "layers", "hidden", "heads", "kv heads", "inner", "vocab", "seq", "width", "classes",
        "image")),
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("degrees", "dp x tp x pp"), Column("type", "type"),
    Column("batch", "batch", Show.COUNT), Column("parts", "parts", Show.COUNT),
    Column("optimizer", "optimizer"),
    *(Column(name, name, optional=True) for name in (
        "checkpointing", "data", "library", "compiled", "loss", "communication")),
    Column("flops", "flops", Show.GFLOP, "1e9", _OF_STEP, "less"),
    Column("wire", "wire", Show.COUNT, "B", _OF_STEP, "less", optional=True),
    Column("calls", "calls", Show.COUNT, "", _OF_STEP, "less", optional=True),
    Column("memory", "memory", Show.MB, "MB", _OF_STEP, "less"), *COST,
)
"""A transformer has neither width nor image, a ResNet neither hidden nor seq."""
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), Column("model", "model"), Column("strategy", "strategy"),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("types", "types"), Column("batches", "batches"),
    Column("samples_of", "samples of"), Column("memory", "memory", better="less"), *COST,
)


def plan_table(title: str, cases: Sequence[Case], *, listed: bool) -> Table:
    """Return a row for each case, or for each strategy on each backend."""
    if listed:
        options = telling_options(training_of(case) for case in cases)
        rows = tuple(_case_row(case, options[training_of(case)]) for case in cases)
        return Table(title, _CASE_COLUMNS, (Group("", rows),), notes=tuple(
            Line(f"#{case.index} {case.note}", "warning") for case in cases if case.note))
    groups = grouped((
        (training_of(case).model, strategy_text(training_of(case)), case.backend, case.env,
         case.device, case.world_size, batch_text(case), case.needs), case) for case in cases)
    tried = Counter(case.note for case in cases if case.note)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),),
                 notes=tuple(Line(f"{plural(count, 'case')}: {note}", "warning")
                             for note, count in tried.items()))


def _megabytes(count: int) -> str:
    return f"{cell_text(count, Show.MB)} MB"


def _calls_text(calls: Iterable[CountedCall]) -> str:
    """Return ``5 all_reduce (5560320 B)`` of each, comma-separated; the bytes are of all calls."""
    return ", ".join(f"{count} {name} ({size} B)"
                     for name, count, size in calls) or "no collective"


def dry_run_lines(work: Training, calls: Sequence[CountedCall] | None) -> Iterator[str]:
    """Yield what a step called on rank 0, if it did, and what each of its ranks will need."""
    if calls is not None:
        expected = {(one.collective, one.count, one.size_bytes)
                    for one in predict_stage(work, stages_of(work)[0]).calls}
        how = "as" if set(calls) == expected else "other than"
        yield f"called by rank 0, {how} predicted: {_calls_text(calls)}"
    yield from demand_lines(work)


def demand_lines(work: Training) -> Iterator[str]:
    """Yield what a step will need of each rank that differs from the others."""
    if work.adapters:
        yield (f"trained: {work.adapters:,} parameters of adapters beside {work.parameters:,} of "
               "the model, which are frozen")
    for stage in stages_of(work):
        expected = predict_stage(work, stage)
        where = ("each rank" if stage.first and stage.last else
                 f"the ranks with blocks {span_text(stage.blocks)}")
        calls = _calls_text((one.collective, one.count, one.size_bytes) for one in expected.calls)
        yield (f"predicted for {where}: {calls}; {expected.wire_bytes} B on the wire; "
               f"{cell_text(expected.hardware_flops, Show.GFLOP)} GFLOP")
        parts = ", ".join(f"{name} {_megabytes(size)}"
                          for name, size in expected.memory.parts().items())
        yield (f"  at most {_megabytes(expected.memory.total)}, at the {expected.memory.moment}: "
               f"{parts}")


def _case_row(case: Case, options: str) -> Row:
    work, expected = training_of(case), predict(training_of(case))
    named = dict(work.named_extents)
    return Row((
        case.index, work.model, work.layers, work.hidden or None,
        *map(named.get, ("heads", "kv_heads", "inner", "vocab")), work.seq_length or None,
        work.width or None, named.get("classes"), work.image_size or None,
        strategy_text(work), options, backend_text(case), case.device,
        case.world_size, f"{work.dp} x {work.tp} x {work.pp}", work.dtype,
        work.batch_size, work.accumulation, work.optimizer,
        work.checkpointing if work.checkpointing != "none" else None,
        work.data if work.data != SYNTHETIC else None,
        work.library if work.library != OWN_LIBRARY else None,
        "yes" if work.compile else None, work.loss if work.loss != CROSS_ENTROPY else None,
        None if work.trains else work.communication,
        expected.hardware_flops, expected.wire_bytes or None, expected.collectives or None,
        case.memory_bytes, *cost_cells([case])), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    first, works = cases[0], [training_of(case) for case in cases]
    return Row((
        len(cases), works[0].model, strategy_text(works[0]), backend_text(first),
        first.device, first.world_size, distinct(work.dtype for work in works),
        span_text(work.batch_size for work in works),
        (f"{span_text(work.image_size for work in works)} pixels" if works[0].of_images else
         f"{span_text(work.seq_length for work in works)} tokens"),
        f"up to {_megabytes(max(case.memory_bytes for case in cases))}", *cost_cells(cases)))
