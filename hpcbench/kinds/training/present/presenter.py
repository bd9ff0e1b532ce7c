"""The presenter of trainings, and their fields of summary.json and summary.csv (docs/method.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.training.derive.counted import Counted
from hpcbench.kinds.training.derive.deriver import NOTHING_KNOWN, TrainingRecord
from hpcbench.kinds.training.derive.exposed import Exposure
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present import charts as _charts
from hpcbench.kinds.training.present import (
    counted_table,
    pop,
    result_table,
    roofline,
    scaling,
    stall_chart,
    words,
)
from hpcbench.kinds.training.present import listing as _listing
from hpcbench.kinds.training.present import plan_table as _plan_table
from hpcbench.kinds.training.present import stalls as _stalls
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS
from hpcbench.units import to_ms
from hpcbench.views.chart import Chart
from hpcbench.views.columns import ends_of, names_of
from hpcbench.views.roofline import roofline_charts, roofline_definitions, roofline_tables
from hpcbench.views.table import Table
from hpcbench.views.words import options_text

_OF_TEXT = ("hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")
_OF_IMAGES = ("width", "classes", "image_size")
MODEL_FIELDS = ("strategy", "model", "changed", "shrunk", "layers", *_OF_TEXT, *_OF_IMAGES,
                "parameters", "adapters")
"""Extents that a model of this kind lacks are None: a ResNet's hidden, a transformer's width."""
STEP_FIELDS = ("batch_size", "accumulation", "dp", "tp", "pp", "optimizer", "checkpointing",
               "data", "library", "compile", "loss")
PHASES = {"data_wait_s": "data", **{f"{phase}_s": phase for phase in (
    "forward", "backward", "exchange", "forward_backward", "optimizer", "balance", "other")}}
"""Field -> its phase: the median of the middle rank."""
MEMORY = {f"{name}_bytes": name for name in (
    "parameters", "gradients", "optimizer_state", "activations", "peak")}
"""Field -> what a rank holds: of the rank that holds most of it."""
COUNTED = {"step_calls": "calls", "wire_bytes": "wire_bytes", "flops": "flops"}
"""Field -> what of a step it is that was counted, beside activations."""
PREDICTED = {f"{field}_predicted": name for field, name in {
    **COUNTED, "activations_bytes": "activations_bytes"}.items()}
"""Field -> what the plan says of it."""
COUNTED_FIELDS = (*COUNTED, *PREDICTED, "scores_again_flops", "activations_of", "not_counted")
RATES = {"samples_per_second": "samples_per_s", "tokens_per_second": "tokens_per_s",
         "step_time_ms": "step_s", "mfu": "mfu", "hfu": "hfu",
         **{name: name for name in ("mfu_of_measured", "hfu_nominal", "mfu_definition",
                                    "mfu_missing", "cost_per_step", "cost_per_million_tokens",
                                    "cost_per_million_samples")}}
"""Field -> what it is of the record."""
SCALING = {"scaling": "kind", "scaling_efficiency": "efficiency", "scaling_base_case": "base_case",
           "scaling_base_ranks": "base_ranks",
           "scaling_base_samples_per_second": "base_samples_per_s"}
"""Field -> what it is of the scaling."""
_RANGED = {"exposed_s": "exposed_s", "exposed_share": "exposed_share",
           "communication_overhead": "overhead", "overlap_efficiency": "efficiency"}
"""Field -> what it is of the exposure; each has more fields beside it (`names_of`)."""
_RANGED_NAMES = {name: names_of(name) for name in _RANGED}
EXPOSURE_FIELDS = (
    "off_s", "only_s", *_RANGED_NAMES["exposed_share"], *_RANGED_NAMES["communication_overhead"],
    "own_step_s", "idle_share", "bubble_predicted", "bubble_of_own_times", "not_paired")
"""Beside ``exposed_s`` and ``overlap_efficiency``, which primitives have, too."""
POP_FIELDS = (*pop.FIELDS, *pop.FACTOR_FIELDS)
TRAINING_FIELDS = (*MODEL_FIELDS, *STEP_FIELDS, "global_batch", *RATES, *PHASES,
                   *MEMORY, "peak_of", *COUNTED_FIELDS, "communication", "parity",
                   *EXPOSURE_FIELDS, *SCALING, "same_program_as", *POP_FIELDS, *ROOFLINE_FIELDS,
                   "phase_bounds")
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env", "options",
    *MODEL_FIELDS[1:], *STEP_FIELDS, "global_batch", "n", "median_s", "p95_s", "ci_low_s",
    "ci_high_s", "ci_reliable", *RATES, *PHASES, "parity",
    *COUNTED_FIELDS, *_RANGED_NAMES["exposed_s"], *_RANGED_NAMES["overlap_efficiency"],
    *EXPOSURE_FIELDS, *SCALING, "same_program_as", *POP_FIELDS, *ROOFLINE_FIELDS,
    "phase_bounds",
)
MEMORY_FIELDS = ("case_id", "kind", "strategy", "options", "model", "world_size", "dtype",
                 "batch_size", "accumulation", "checkpointing", *MEMORY, "peak_of")
"""Fields of each row of ``results.memory``."""


class TrainingPresenter(Presenter[Training, TrainingRecord]):
    """Presents trainings."""

    fields = TRAINING_FIELDS
    listing = staticmethod(_listing.listing)
    plan_table = staticmethod(_plan_table.plan_table)
    dry_run_lines = staticmethod(_plan_table.dry_run_lines)
    span_words = staticmethod(words.span_words)
    profile = staticmethod(_stalls.profile)
    heat_map_case = staticmethod(_charts.heat_map_case)
    part_looks = _charts.PART_LOOKS

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
    ) -> Iterator[Table]:
        """Yield the times of a block, then what was counted of its steps."""
        yield from result_table.result_tables(title, items, derived)
        yield from counted_table.counted_tables(title, items, derived)

    def overviews(
        self, items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
    ) -> Iterator[Table]:
        """Yield how trainings scale, and which share of the ranks' time is useful."""
        yield from scaling.overviews(items, derived)
        yield from pop.efficiencies(items, derived)
        yield from roofline_tables("trainings", roofline.rooflines(items, derived),
                                   of=any(item.status == "ok" for item in items))

    def definitions(
        self, items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
    ) -> Iterator[str]:
        """Yield what the columns of the tables that are shown mean."""
        yield from result_table.definitions(items, derived)
        records = [record for item in items if (record := derived.get(item.case.case_id))]
        if any(record.scaling for record in records):
            yield from scaling.DEFINITION
        if any(record.pop for record in records):
            yield from pop.DEFINITION
        yield from roofline_definitions(roofline.rooflines(items, derived))

    def charts(
        self, items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
    ) -> Iterator[Chart]:
        """Yield the steps of each model, who waits for whom if something stands out, rooflines."""
        yield from _charts.charts(items, derived)
        yield from stall_chart.stall_charts(items, derived)
        yield from roofline_charts("trainings", roofline.rooflines(items, derived))

    def row(self, item: CaseResult, record: TrainingRecord | None) -> dict[str, Any]:
        """Return a case's `TRAINING_FIELDS` and its options; None where there is no number."""
        work, record = training_of(item.case), record or NOTHING_KNOWN
        values: dict[str, Any] = {**dict.fromkeys(TRAINING_FIELDS), **_exposure(record.exposure)}
        values |= {field: getattr(record, name) for field, name in RATES.items()}
        values |= {field: getattr(record.scaling, name, None) for field, name in SCALING.items()}
        values |= {name: getattr(work, name) for name in (
            *MODEL_FIELDS, *STEP_FIELDS, "global_batch", "communication")}
        values |= dict.fromkeys(_OF_TEXT if work.of_images else _OF_IMAGES)
        values |= {field: record.held_bytes.get(name) for field, name in MEMORY.items()}
        values |= {field: record.phase_s.get(phase) for field, phase in PHASES.items()}
        values |= {**_counted(record.counted), **pop.values(record.pop),
                   **roofline.values(record)}
        return values | {
            "step_time_ms": None if record.step_s is None else to_ms(record.step_s),
            "options": [options_text([option]) for option in work.options],
            "parity": words.parity_text(item, record), "peak_of": record.peak_of or None,
            "same_program_as": record.same_program_as}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, TrainingRecord],
    ) -> dict[str, Any]:
        """Return ``training``, ``memory`` and ``not_measured`` of summary.json's results.

        The first holds the ok rows by strategy, each with ``steps``, its phases rank by rank, with
        ``memory``, rank by rank, and with MFU by every definition. What did not communicate, or did
        nothing else, is no training: only the row of its training holds its numbers.
        """
        planned = [(row, item) for row, item in zip(rows, items, strict=True)
                   if row["communication"] == "on"]
        measured = [(row, item) for row, item in planned if row["status"] == "ok"]
        held = [row for row, item in measured if item.memory]
        listed = {name: [_listed(row, item, derived) for row, item in measured
                         if row["strategy"] == name]
                  for name in dict.fromkeys(row["strategy"] for row, _ in measured)}
        missing = {}
        if not measured:
            missing["training"] = ("no case of kind training is ok" if planned else
                                   "the sweep has no case of kind training")
        if not held:
            missing["memory"] = ("no rank told what it held" if measured else missing["training"])
        return {"training": listed or None, "not_measured": missing,
                "memory": [{name: row[name] for name in MEMORY_FIELDS} for row in held] or None}


def _counted(found: Counted | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {**{field: getattr(found.measured, name) for field, name in COUNTED.items()},
            **{field: getattr(found.predicted, name) for field, name in PREDICTED.items()},
            "scores_again_flops": found.scores_again_flops,
            "activations_of": found.activations_of or None,
            "not_counted": [f"{name}: {reason}" for name, reason in found.missing.items()] or None}


def _exposure(exposure: Exposure) -> dict[str, Any]:
    row: dict[str, Any] = {
        "off_s": exposure.off_s, "only_s": exposure.only_s, "bubble_predicted": exposure.bubble,
        "bubble_of_own_times": list(exposure.uneven_bubble) or None,
        "not_paired": list(exposure.missing) or None,
        "own_step_s": [own.median for own in exposure.own_s] or None,
        "idle_share": [idle.median for idle in exposure.idle_share] or None}
    for field, name in _RANGED.items():
        row |= ends_of(field, getattr(exposure, name))
    return row


def _listed(
    row: Mapping[str, Any], item: CaseResult, derived: Mapping[str, TrainingRecord],
) -> dict[str, Any]:
    steps = item.timing.steps if item.timing else None
    record = derived.get(item.case.case_id, NOTHING_KNOWN)
    if steps is not None:  # results of older versions have none
        steps = replace(steps, arrivals=tuple(
            replace(arrival, pass_median_s=()) for arrival in steps.arrivals))
    return {**{name: row[name] for name in LISTED_FIELDS}, "memory": item.memory,
            "mfu_by_definition": dict(record.mfu_by_definition),
            "steps": asdict(steps) if steps else None,
            "stalls": asdict(record.stalls) if record.stalls else None}
