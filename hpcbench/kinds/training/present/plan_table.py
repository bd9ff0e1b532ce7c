"""The rows of a plan's table that are about trainings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from hpcbench.kinds.training.plan.predict import predict, predict_stage
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training, training_of
from hpcbench.kinds.training.present.options import telling_options
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.plan.case import Case
from hpcbench.report.text import (
    MISSING,
    Column,
    distinct,
    env_text,
    format_number,
    span_text,
    strategy_text,
)
from hpcbench.report.timing import batch_text, samples_text
from hpcbench.units import format_seconds

_MODEL = (Column("model", words=True), Column("layers"), Column("hidden"), Column("seq"),
          Column("width"), Column("image"))
"""Of these a transformer has neither width nor image, a ResNet neither hidden nor seq."""
_COST = (Column("samples", words=True), Column("needs", words=True),
         Column("estimate", "(a pass)"))
CASE_COLUMNS = (
    Column("#"), *_MODEL, Column("strategy", words=True), Column("options", words=True),
    Column("backend", words=True), Column("device", words=True), Column("ranks"),
    Column("dp x tp x pp", words=True), Column("type", words=True), Column("batch"),
    Column("parts"), Column("optimizer", words=True), Column("checkpointing", words=True),
    Column("data", words=True), Column("library", words=True), Column("compiled", words=True),
    Column("communication", words=True), Column("flops", "(1e9)"), Column("wire", "(B)"),
    Column("calls"), Column("memory", "(MB)"), *_COST,
)
"""Flops, bytes, calls and memory are predicted of one step, of the rank that has most of each."""
GROUP_COLUMNS = (
    Column("cases"), Column("model", words=True), Column("strategy", words=True),
    Column("backend", words=True), Column("device", words=True), Column("ranks"),
    Column("types", words=True), Column("batches", words=True), Column("samples of", words=True),
    Column("memory", words=True), *_COST,
)
Table = tuple[Sequence[Column], list[list[str]]]


def case_rows(cases: Sequence[Case]) -> Table:
    """Return the columns, and a row for each case."""
    options = telling_options(training_of(case) for case in cases)
    rows = [_case_row(case, options[training_of(case)]) for case in cases]
    dropped = {*(column.title for column in _MODEL), "data", "library", "compiled",
               "communication"}
    kept = [at for at, column in enumerate(CASE_COLUMNS)
            if column.title not in dropped or any(row[at] != MISSING for row in rows)]
    return [CASE_COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows]


def group_rows(cases: Sequence[Case]) -> Table:
    """Return the columns, and a row for each strategy on each backend."""
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        work = training_of(case)
        groups[work.model, strategy_text(work), case.backend, case.env, case.device,
               case.world_size, batch_text(case), case.needs].append(case)
    return GROUP_COLUMNS, [_group_row(group) for group in groups.values()]


def megabytes(count: int) -> str:
    """Return ``30.5 MB`` (1e6 B)."""
    return f"{format_number(count / 1e6)} MB"


def calls_text(calls: Iterable[tuple[str, int, int]]) -> str:
    """Return ``5 all_reduce (5560320 B)`` of (collective, count, bytes of all), comma-separated."""
    return ", ".join(f"{count} {name} ({size} B)"
                     for name, count, size in calls) or "no collective"


def demand_lines(work: Training) -> Iterator[str]:
    """Yield what a step will need of each rank that differs from the others."""
    if work.adapters:
        yield (f"trained: {work.adapters:,} parameters of adapters beside {work.parameters:,} of "
               "the model, which are frozen")
    for stage in stages_of(work):
        expected = predict_stage(work, stage)
        whole = stage.first and stage.last
        blocks = span_text(stage.blocks)
        where = "each rank" if whole else f"the ranks with blocks {blocks}"
        told = calls_text((one.collective, one.count, one.size_bytes) for one in expected.calls)
        yield (f"predicted for {where}: {told}; {expected.wire_bytes} B on the wire; "
               f"{format_number(expected.hardware_flops / 1e9)} GFLOP")
        memory = expected.memory
        parts = ", ".join(f"{name} {megabytes(getattr(memory, name))}" for name in (
            "parameters", "gradients", "optimizer", "activations", "buffers"))
        yield f"  at most {megabytes(memory.total)}: {parts}"


def _case_row(case: Case, options: str) -> list[str]:
    work, expected = training_of(case), predict(training_of(case))
    return [
        str(case.index), work.model, *(str(extent or MISSING) for extent in (
            work.layers, work.hidden, work.seq_length, work.width, work.image_size)),
        strategy_text(work), options, _backend(case), case.device,
        str(case.world_size), f"{work.dp} x {work.tp} x {work.pp}", work.dtype,
        str(work.batch_size), str(work.accumulation), work.optimizer,
        work.checkpointing if work.checkpointing != "none" else MISSING,
        work.data if work.data != SYNTHETIC else MISSING,
        work.library if work.library != OWN_LIBRARY else MISSING,
        "yes" if work.compile else MISSING,
        MISSING if work.trains else work.communication,
        format_number(expected.hardware_flops / 1e9),
        str(expected.wire_bytes) if expected.wire_bytes else MISSING,
        str(expected.collectives) if expected.collectives else MISSING,
        format_number(case.memory_bytes / 1e6), *_cost([case])]


def _group_row(cases: Sequence[Case]) -> list[str]:
    first, works = cases[0], [training_of(case) for case in cases]
    return [
        str(len(cases)), works[0].model, strategy_text(works[0]), _backend(first),
        first.device, str(first.world_size), distinct(work.dtype for work in works),
        span_text(work.batch_size for work in works),
        (f"{span_text(work.image_size for work in works)} pixels" if works[0].of_images else
         f"{span_text(work.seq_length for work in works)} tokens"),
        f"up to {megabytes(max(case.memory_bytes for case in cases))}", *_cost(cases)]


def _cost(cases: Sequence[Case]) -> list[str]:
    return [f"{samples_text(cases)} {batch_text(cases[0])}", ",".join(cases[0].needs) or MISSING,
            format_seconds(sum(case.estimate_s for case in cases) or 0.0)]


def _backend(case: Case) -> str:
    return f"{case.backend} {env_text(case)}".rstrip()
