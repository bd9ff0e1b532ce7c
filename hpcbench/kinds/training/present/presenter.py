"""The presenter of trainings, their fields of summary.json and summary.csv (docs/method.md), what
`hpcbench list` shows of them, and the rows of a plan's table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from hpcbench.kinds.training import block
from hpcbench.kinds.training.derive import deriver
from hpcbench.kinds.training.derive.rates import step_cost
from hpcbench.kinds.training.derive.slow_ranks import NO_STEPS
from hpcbench.kinds.training.plan import predict, workload
from hpcbench.kinds.training.plan.any_model import RESNETS, AnyShape, parameters_of
from hpcbench.kinds.training.plan.context import attention_flops, attention_imbalance
from hpcbench.kinds.training.plan.experts import is_routed
from hpcbench.kinds.training.plan.memory import activations_on_host
from hpcbench.kinds.training.plan.models import CHECKPOINTINGS
from hpcbench.kinds.training.plan.spec import registry, strategies
from hpcbench.kinds.training.plan.step import Stage, stages_of, step_of
from hpcbench.kinds.training.present import charts, tables
from hpcbench.kinds.training.present.charts import Items
from hpcbench.operations.models import MODELS, OWN_LIBRARY
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Records, Values
from hpcbench.reduce.records import median_s
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural, round_bytes, three_digits, to_ms
from hpcbench.views import table as cells
from hpcbench.views.chart import Chart, rooflines_shown
from hpcbench.views.columns import COST, cost_cells, ends_of, median_cell, names_of
from hpcbench.views.metric_tables import column_of, fields_of
from hpcbench.views.presenter import CountedCall, Presenter, Words
from hpcbench.views.table import Column, Group, Line, Row, Show, Table, cell_text

_EXTENTS = {"family": "built as", "layers": "layers", "hidden": "hidden", "heads": "heads",
            "kv_heads": "kv heads", "inner": "inner", "vocab": "vocab", "seq_length": "seq"}
_IMAGE_EXTENTS = {name: name for name in ("layers", "width", "classes", "image")}
"""Extent -> the title of its column."""


def training_listing() -> Iterator[Line | Table]:
    yield Line("models", "title")
    yield _models("model", _EXTENTS, MODELS)
    yield _models("model of images", _IMAGE_EXTENTS, RESNETS)
    yield Line("")
    yield Line("training strategies", "title")
    for spec in strategies():
        yield Line(f"  {spec.name:<20}{spec.meaning}")
        yield from cells.option_lines(spec.options)
    for title, allowed in (
            ("dtypes", block.TRAINING_DTYPES), ("optimizers", block.OPTIMIZERS),
            ("checkpointing", (*CHECKPOINTINGS, "selective:N")),
            ("communication", block.COMMUNICATIONS),
            ("libraries", block.LIBRARIES), ("losses", workload.LOSSES)):
        yield Line(f"  {f'{title} of trainings':<28}{', '.join(allowed)}")
    yield from cells.plugin_lines(registry().offers, lambda spec: f"strategy {spec.name}")


def _models(title: str, extents: Mapping[str, str], shapes: Mapping[str, AnyShape]) -> Table:
    columns = (Column("model", title), *(
        Column(name, name, Show.TEXT if name == "built as" else Show.COUNT)
        for name in (*extents.values(), "parameters")))
    return Table("", columns, (Group("", tuple(
        Row((name, *(getattr(shape, extent) for extent in extents), f"{parameters_of(shape):,}"))
        for name, shape in shapes.items())),))


LEAST_COST = "least_cost_per_1000_samples"
_OF_STEP = "predicted of one step, the most of any rank"
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), Column("model", "model"), Column("parameters", "parameters"),
    *(Column(name, name, Show.COUNT, optional=True, first_to_go=True) for name in (
        "layers", "hidden", "heads", "kv heads", "inner", "vocab", "seq", "width", "classes",
        "image")),
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("degrees", "dp x tp x pp"),
    Column("cp", "cp", Show.COUNT, optional=True), Column("type", "type"),
    Column("batch", "batch", Show.COUNT), Column("parts", "parts", Show.COUNT),
    Column("optimizer", "optimizer"),
    *(Column(name, name, optional=True) for name in (
        "checkpointing", "data", "library", "compiled", "precision", "states", "documents",
        "checkpoint every", "loss", "communication")),
    Column("flops", "flops", Show.GFLOP, "1e9", _OF_STEP, "less", detail=True),
    Column("wire", "wire", meaning=_OF_STEP, optional=True, detail=True),
    Column("calls", "calls", Show.COUNT, "", _OF_STEP, "less", optional=True, detail=True),
    *(replace(column_of(one), detail=one is deriver.ATTENTION) for one in (
        deriver.ATTENTION, deriver.IMBALANCE)),
    Column("memory", "memory", meaning=_OF_STEP),
    Column("least_step_s", "step", Show.DURATION, "at least", "the longer of FLOPs / declared peak "
           "and what crosses a node's link / its declared rate, of num_devices ranks a node",
           "less", optional=True, first_to_go=True),
    Column(LEAST_COST, "least cost", Show.NUMBER, "", "of 1,000 samples at the least step and the "
           "declared price", "less", optional=True), *COST,
)  # a transformer has neither width nor image, a ResNet neither hidden nor seq
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), Column("model", "model"),
    Column("parameters", "parameters"), Column("strategy", "strategy"),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("types", "types"), Column("batches", "batches"),
    Column("samples_of", "samples of"), Column("memory", "memory", better="less"), *COST,
)


def training_plan_table(
    title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
) -> Table:
    if listed:
        options = charts.distinguishing_options(workload.training_of(case) for case in cases)
        rows = tuple(_case_row(case, options[workload.training_of(case)], hardware)
                     for case in cases)
        unit = f"{hardware.get('currency') or 'units'}/1K samples"
        columns = tuple(replace(column, unit=unit) if column.name == LEAST_COST else column
                        for column in _CASE_COLUMNS)
        return Table(title, columns, (Group("", rows),), notes=(*(
            Line(f"#{case.index} {case.note}", "warning") for case in cases if case.note),
            *_unpriced(cases, hardware)))
    groups = grouped((
        (workload.training_of(case).model, charts.strategy_text(workload.training_of(case)),
         case.backend, case.env,
         case.device, case.world_size, cells.batch_text(case), case.needs), case) for case in cases)
    tried = Counter(case.note for case in cases if case.note)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),),
                 notes=tuple(Line(f"{plural(count, 'case')}: {note}", "warning")
                             for note, count in tried.items()))


def _unpriced(cases: Sequence[Case], hardware: Mapping[str, Any]) -> Iterator[Line]:
    """Yield why cases have no least cost, where a price is declared."""
    if hardware.get("price_per_device_hour") is None:
        return
    reasons = Counter(_no_least_step(case, hardware) for case in cases
                      if predict.least_step_s(workload.training_of(case), case, hardware) is None)
    yield from (Line(f"no least cost of {plural(count, 'case')}: {reason}")
                for reason, count in reasons.items())


def _no_least_step(case: Case, hardware: Mapping[str, Any]) -> str:
    work, device = workload.training_of(case), hardware.get("device_type")
    if device not in (None, case.device):
        return f"hardware.device_type is {device}, not {case.device}"
    if not predict.is_predicted(work) or is_routed(work):
        return "what a step computes is not predicted"
    if work.peak_type in (hardware.get("peak_flops") or {}):
        return "hardware.network_bandwidth_gbps or num_devices is not declared, or nothing crosses"
    return f"hardware.peak_flops has no {work.peak_type}"


def _calls_text(calls: Iterable[CountedCall]) -> str:
    return ", ".join(f"{count} {name} ({size} B)" for name, count, size in calls) or "no collective"


def training_dry_run_lines(work: workload.Training,
                           calls: Sequence[CountedCall] | None) -> Iterator[str]:
    if calls is not None:
        expected = {(one.collective, one.count, one.size_bytes)
                    for one in predict.predict_stage(work, stages_of(work)[0]).calls}
        how = "as" if set(calls) == expected else "other than"
        yield f"called by rank 0, {how} predicted: {_calls_text(calls)}"
    yield from demand_lines(work)


def demand_lines(work: workload.Training) -> Iterator[str]:
    if work.adapters:
        yield (f"trained: {work.adapters:,} parameters of adapters, with {work.parameters:,} of "
               "the model, which are frozen")
    if is_routed(work):
        yield "its router decides where tokens go: with a balanced load it would be"
    for where, stage in _places(work):
        expected = predict.predict_stage(work, stage)
        calls = _calls_text((one.collective, one.count, one.size_bytes) for one in expected.calls)
        wire, carried = (expected.carried_on(library) for library in ("", "gloo"))
        on_gloo = f" ({round_bytes(carried)} on gloo)" if carried != wire else ""
        yield (f"predicted for {where}: {calls}; {round_bytes(wire)} by busbw factors{on_gloo}; "
               f"{cell_text(expected.hardware_flops, Show.GFLOP)} GFLOP")
        parts = ", ".join(f"{name} {round_bytes(size)}"
                          for name, size in expected.memory.parts().items())
        if flops := attention_flops(work):
            yield (f"  attention: {cell_text(max(flops), Show.GFLOP)} GFLOP on the rank with most, "
                   f"{attention_imbalance(work):.2f} x the mean of those that share a sample")
        if moved := activations_on_host(work, stage):
            times = step_of(work).parts
            yield (f"  offloaded: {round_bytes(times * moved)} to the host in a step, and as much "
                   "back")
        yield (f"  at most {round_bytes(expected.memory.total)}, at the {expected.memory.moment}: "
               f"{parts}")


def _places(work: workload.Training) -> Iterator[tuple[str, Stage]]:
    """Yield ranks that differ, in words, and what they have; of those with experts two, or the
    busiest of each stage."""
    every = stages_of(work)
    stages = [max(every[rank::work.pp], key=lambda stage: predict.predict_stage(
        work, stage).hardware_flops) for rank in range(work.pp)]
    if len(every) > 1 and work.pp == 1:
        (busiest,) = stages
        yield from (("rank 0", every[0]),) if busiest.rank else ()
        yield f"rank {busiest.rank * work.tp}, which no rank is busier than", busiest
        return
    for stage in stages:
        yield ("each rank" if stage.first and stage.last else
               f"the {'busiest' if len(every) > work.pp else 'ranks'} with blocks "
               f"{cells.span_text(stage.blocks)}"), stage


def _case_row(case: Case, options: str, hardware: Mapping[str, Any]) -> Row:
    work, expected = workload.training_of(case), predict.predict(workload.training_of(case))
    step_s = predict.least_step_s(work, case, hardware)
    cost = None if step_s is None else step_cost(case, step_s, hardware)
    carried = expected.carried_on(case.library)
    named = dict(work.named_extents)
    return Row((
        case.index, work.model, f"{work.parameters:,}", work.layers, work.hidden or None,
        *map(named.get, ("heads", "kv_heads", "inner", "vocab")), work.seq_length or None,
        work.width or None, named.get("classes"), work.image_size or None,
        charts.strategy_text(work), options, cells.backend_text(case), case.device,
        case.world_size, f"{work.dp} x {work.tp} x {work.pp}",
        work.cp if work.cp > 1 else None, work.dtype,
        work.batch_size, work.accumulation, work.optimizer,
        work.checkpointing if work.checkpointing != "none" else None,
        work.data if work.data != workload.SYNTHETIC else None,
        work.library if work.library != OWN_LIBRARY else None,
        "yes" if work.compile else None,
        work.precision if work.precision != workload.MIXED else None,
        "on host" if work.offload_state else None,
        str(work.documents) if work.documents > 1 else None,
        str(work.checkpoint_every) if work.checkpoint_every else None,
        work.loss.partition("_")[0] if work.loss != workload.CROSS_ENTROPY else None,
        None if work.trains else work.communication,
        *((None, None) if is_routed(work) else (
            expected.hardware_flops, round_bytes(carried) if carried else None)),
        expected.collectives or None, max(attention_flops(work), default=None),
        attention_imbalance(work), round_bytes(case.memory_bytes), step_s,
        None if cost is None else 1000 * cost / work.global_batch, *cost_cells([case])),
        case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    first, works = cases[0], [workload.training_of(case) for case in cases]
    return Row((
        len(cases), works[0].model, cells.distinct(f"{work.parameters:,}" for work in works),
        charts.strategy_text(works[0]), cells.backend_text(first),
        first.device, first.world_size, cells.distinct(work.dtype for work in works),
        cells.span_text(work.batch_size for work in works),
        (f"{cells.span_text(work.image_size for work in works)} pixels" if works[0].of_images else
         f"{cells.span_text(work.seq_length for work in works)} tokens"),
        f"up to {round_bytes(max(case.memory_bytes for case in cases))}", *cost_cells(cases)))


_OF_TEXT = ("hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")
_OF_IMAGES = ("width", "classes", "image_size")
"""Extents that a model of the other family lacks are None: a ResNet's hidden, a transformer's
width."""
_OF_WORK = ("changed", "shrunk", *_OF_TEXT, *_OF_IMAGES)
PER_SECOND = {"samples_per_second": deriver.SAMPLES, "tokens_per_second": deriver.TOKENS}
"""Field -> the metric that has a shorter name."""
FIELDS = (
    *_OF_WORK, *PER_SECOND, "step_time_ms", "parity", "not_counted", *(
        field for one in deriver.EXPOSED for field in names_of(one.name)),
    "own_step_s", "idle_share", "bubble_of_own_times", "not_paired", "phase_bounds")
"""Fields beside the metrics."""
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env", "n", "median_s",
    "p95_s", "ci_low_s", "ci_high_s", "ci_reliable", *fields_of(deriver.METRICS), *FIELDS)
MEMORY_FIELDS = ("case_id", "kind", "strategy", "options", "model", "world_size", "dtype",
                 "batch_size", "accumulation", "checkpointing", *deriver.MEMORY, "peak_of")
"""Fields of each row of ``results.memory``."""


def _most_samples(items: Items, derived: Records) -> Iterator[Line]:
    """Yield the training with the most samples a second, its share of communication, and the most
    of each other strategy."""
    rates = [(rate, item) for item in items if item.status == "ok" and (
        rate := derived.get(item.case.case_id, {}).get(deriver.SAMPLES.name))]
    if not rates:
        return
    most, item = max(rates, key=lambda one: one[0])
    work, steps = workload.training_of(item.case), item.timing.steps if item.timing else None
    cell = cells.like_median(most, median_cell(item.statistics))
    text = three_digits(cell) if isinstance(cell, float) else cells.cell_text(cell, Show.NUMBER)
    shares = {phase.name: phase.share for phase in steps.phases} if steps else {}
    share = shares.get("exchange")
    exchange = f", exchange {100 * share:.0f} % of a step" if share else ""
    ways = dict[str, tuple[float, int]]()
    for rate, other in rates:
        of = workload.training_of(other.case)
        if of.title == work.title and of.trains:
            ways[_way_text(of)] = max((rate, of.batch_size), ways.get(_way_text(of), (0.0, 0)))
    beside = "".join(
        f"; {name}{f' batch={batch}' * (batch != work.batch_size)} {three_digits(rate)}"
        for name, (rate, batch) in sorted(ways.items(), key=lambda one: -one[1][0])
        if name != _way_text(work))
    yield Line(f"{text} samples/s ({work.title}; {_way_text(work)} batch={work.batch_size})"
               f"{exchange}{beside}", topic="training")


def _way_text(work: workload.Training) -> str:
    """Return the strategy and, of adapters, what spreads them: ``qlora over=fsdp``."""
    over = dict(work.options).get("over")
    return charts.strategy_text(work) + (f" over={over}" if over else "")


class TrainingPresenter(Presenter[workload.Training, Values]):
    """Presents trainings."""

    fields = FIELDS
    listing = staticmethod(training_listing)
    plan_table = staticmethod(training_plan_table)
    dry_run_lines = staticmethod(training_dry_run_lines)
    profile = staticmethod(charts.profile)
    heat_map_case = staticmethod(charts.heat_map_case)
    part_looks = charts.PART_LOOKS

    def words(self, works: Sequence[workload.Training]) -> Words:
        return Words(list(charts.span_texts(works)), [work.dtype for work in works])

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        yield from tables.result_tables(title, items, derived)
        yield from tables.counted_tables(title, items, derived)

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        yield from _most_samples(items, derived)
        yield from tables.overviews(items, derived)
        yield from tables.efficiencies(items, derived)
        yield from map(Line, tables.definitions(items, derived))
        yield from charts.charts(items, derived)
        yield from charts.stall_charts(items, derived)
        yield from rooflines_shown("trainings", charts.rooflines(items, derived),
                                   of=any(item.status == "ok" for item in items))

    def row(self, item: CaseResult, record: Values | None) -> dict[str, Any]:
        """Return a case's `FIELDS` and its options; None where there is no number."""
        work, values = workload.training_of(item.case), record or {}
        step_s = median_s(item) if record else None
        own = values.get(deriver.OWN_STEPS.name) or NO_STEPS
        not_counted = values.get(deriver.NOT_COUNTED.name) or {}
        row: dict[str, Any] = {name: getattr(work, name) for name in _OF_WORK}
        row |= dict.fromkeys(_OF_TEXT if work.of_images else _OF_IMAGES)
        for one in deriver.EXPOSED:
            row |= ends_of(one.name, values.get(f"{one.name}_passes"))
        return row | {field: one.value(item, values) for field, one in PER_SECOND.items()} | {
            "step_time_ms": step_s and to_ms(step_s),
            "options": [cells.options_text([option]) for option in work.options],
            "parity": charts.parity_text(item, values),
            "own_step_s": [step.median for step in own.own_s] or None,
            "idle_share": [idle.median for idle in own.idle_share] or None,
            "bubble_of_own_times": list(own.uneven_bubble) or None,
            "not_paired": list(values.get(deriver.NOT_PAIRED.name) or ()) or None,
            "not_counted": [f"{name}: {reason}" for name, reason in not_counted.items()] or None,
            "phase_bounds": [
                f"{limit.part}: {limit.bound_by or 'unknown'}: {limit.evidence}"
                for limit in (values.get(deriver.ROOFLINES.name) or ())[1:]] or None}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items,
        derived: Records,
    ) -> dict[str, Any]:
        """Return ``training``, ``memory`` and ``not_measured`` of summary.json's results.

        The first holds the ok rows by strategy, with ``steps`` and ``memory`` rank by rank. Steps
        without communication, or of nothing else, are in the row of their training only."""
        planned = [(row, item) for row, item in zip(rows, items, strict=True)
                   if row["communication"] == "on"]
        measured = [(row, item) for row, item in planned if row["status"] == "ok"]
        recorded = [row for row, item in measured if item.memory]
        listed = {name: [_listed(row, item, derived) for row, item in measured
                         if row["strategy"] == name]
                  for name in dict.fromkeys(row["strategy"] for row, _ in measured)}
        missing = {}
        if not measured:
            missing["training"] = ("no case of kind training is ok" if planned else
                                   "the sweep has no case of kind training")
        if not recorded:
            missing["memory"] = ("no rank recorded its memory" if measured else missing["training"])
        return {"training": listed or None, "not_measured": missing,
                "memory": [{name: row[name] for name in MEMORY_FIELDS} for row in recorded] or None}


def _listed(row: Mapping[str, Any], item: CaseResult, derived: Records) -> dict[str, Any]:
    steps = item.timing.steps if item.timing else None
    values, stalls = derived.get(item.case.case_id, {}), charts.stalls_of(item, derived)
    if steps is not None:  # results of older versions have none
        steps = replace(steps, arrivals=tuple(
            replace(arrival, pass_median_s=()) for arrival in steps.arrivals))
    return {**{name: row[name] for name in LISTED_FIELDS}, "memory": item.memory,
            "mfu_by_definition": values.get(deriver.BY_DEFINITION.name) or {},
            "steps": asdict(steps) if steps else None,
            "stalls": asdict(stalls) if stalls else None}
