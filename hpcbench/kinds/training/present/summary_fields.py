"""The fields of summary.json and summary.csv that only trainings have (docs/method.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from hpcbench.kinds.training.derive.exposed import UNPAIRED, Exposure
from hpcbench.kinds.training.derive.problems import shown_definition
from hpcbench.kinds.training.derive.rates import hfu, mfu, rates
from hpcbench.kinds.training.derive.scaling import Scaling, samples_per_s
from hpcbench.kinds.training.plan.any_model import NAMES, flops_again
from hpcbench.kinds.training.plan.flops import DEFINITIONS
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.reduce.results import CaseResult, Steps
from hpcbench.report.text import options_text

MODEL_FIELDS = ("strategy", "model", "shrunk", "layers", "hidden", "vocab", "seq_length",
                "width", "classes", "image_size", "parameters", "adapters")
"""Extents that a model of this kind lacks are None: a ResNet's hidden, a transformer's width."""
STEP_FIELDS = ("batch_size", "accumulation", "dp", "tp", "pp", "optimizer", "checkpointing",
               "data", "library", "compile")
PHASES = {"data": "data_wait_s", "forward": "forward_s", "backward": "backward_s",
          "exchange": "exchange_s", "forward_backward": "forward_backward_s",
          "optimizer": "optimizer_s", "balance": "balance_s"}
"""Phase -> its field: the median of the middle rank."""
MEMORY = {"parameters": "parameters_bytes", "gradients": "gradients_bytes",
          "optimizer_state": "optimizer_state_bytes", "activations": "activations_bytes",
          "peak": "peak_bytes"}
"""What a rank holds -> its field: of the rank that holds most of it."""
RATE_FIELDS = ("samples_per_second", "tokens_per_second", "step_time_ms", "mfu", "hfu",
               "mfu_definition", "mfu_missing")
SCALING_FIELDS = ("scaling", "scaling_efficiency", "scaling_base_case", "scaling_base_ranks",
                  "scaling_base_samples_per_second")
_RANGED = {"exposed_s": "exposed_s", "exposed_share": "exposed_share",
           "communication_overhead": "overhead", "overlap_efficiency": "efficiency"}
"""Field -> what it is of the exposure; each has the least and the greatest of a pass beside it."""
_RANGED_NAMES = {name: (name, f"{name}_least", f"{name}_greatest") for name in _RANGED}
EXPOSURE_FIELDS = (
    "off_s", "only_s", *_RANGED_NAMES["exposed_share"], *_RANGED_NAMES["communication_overhead"],
    "own_step_s", "idle_share", "bubble_predicted", "bubble_of_own_times", "not_paired")
"""Beside ``exposed_s`` and ``overlap_efficiency``, which primitives have, too."""
TRAINING_FIELDS = (*MODEL_FIELDS, *STEP_FIELDS, "global_batch", *RATE_FIELDS, *PHASES.values(),
                   "other_s", *MEMORY.values(), "peak_of", "communication", "parity",
                   *EXPOSURE_FIELDS, *SCALING_FIELDS)
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env", "options",
    *MODEL_FIELDS[1:], *STEP_FIELDS, "global_batch", "n", "median_s", "p95_s", "ci_low_s",
    "ci_high_s", "ci_reliable", *RATE_FIELDS, *PHASES.values(), "other_s", "parity",
    *_RANGED_NAMES["exposed_s"], *_RANGED_NAMES["overlap_efficiency"], *EXPOSURE_FIELDS,
    *SCALING_FIELDS,
)
MEMORY_FIELDS = ("case_id", "strategy", "options", "model", "world_size", "dtype", "batch_size",
                 "accumulation", *MEMORY.values(), "peak_of")
"""Fields of each row of ``results.memory``."""


def training_fields(
    item: CaseResult, work: Training, hardware: Mapping[str, Any], told: Exposure = UNPAIRED,
) -> dict[str, Any]:
    """Return a case's `TRAINING_FIELDS` and its options; None where there is no number."""
    row: dict[str, Any] = {**dict.fromkeys(TRAINING_FIELDS), **_exposure(told)}
    row |= {"communication": work.communication, "parity": parity_text(item)}
    row |= {name: getattr(work, name) for name in (*MODEL_FIELDS, *STEP_FIELDS, "global_batch")}
    lacked = (("hidden", "vocab", "seq_length") if work.of_images else
              ("width", "classes", "image_size"))
    row |= dict.fromkeys(lacked)
    row["options"] = [options_text([option]) for option in work.options]
    row |= {MEMORY[name]: most for name, most in most_bytes(item).items() if name in MEMORY}
    row["peak_of"] = peak_of(item) or None
    return {**row, **_rates(item, work, hardware), **_phases(steps_of(item))}


def _exposure(told: Exposure) -> dict[str, Any]:
    row: dict[str, Any] = {
        "off_s": told.off_s, "only_s": told.only_s, "bubble_predicted": told.bubble,
        "bubble_of_own_times": list(told.uneven_bubble) or None,
        "not_paired": list(told.missing) or None,
        "own_step_s": [own.median for own in told.own_s] or None,
        "idle_share": [idle.median for idle in told.idle_share] or None}
    for field, name in _RANGED.items():
        found = getattr(told, name)
        row |= dict(zip(_RANGED_NAMES[field], (
            found.median, found.least, found.greatest) if found else (None,) * 3, strict=True))
    return row


def parity_text(item: CaseResult) -> str | None:
    """Return what a comparison with a single process came to, None if the case did not get to it.
    """
    if not training_of(item.case).trains:
        return "n/a: no communication" if training_of(item.case).communication == "off" else (
            "n/a: communication only")
    if item.n_wrong is None:
        return None if item.case.validate else "unchecked"
    if item.n_wrong:
        return f"{item.n_wrong} wrong"
    shares = [left["parity"]["share"] for left in item.detail.values() if "parity" in left]
    return f"{100 * max(shares):.3g}%" if shares else "ok"


def scaling_fields(found: Scaling | None) -> dict[str, Any]:
    """Return `SCALING_FIELDS`; None where there is nothing that a case is compared with."""
    if found is None:
        return dict.fromkeys(SCALING_FIELDS)
    return {"scaling": found.kind, "scaling_efficiency": found.efficiency,
            "scaling_base_case": found.base.case.case_id,
            "scaling_base_ranks": found.base.case.world_size,
            "scaling_base_samples_per_second": samples_per_s(found.base)}


def steps_of(item: CaseResult) -> Steps | None:
    """Return where the time of a case's steps went, None where it is not known."""
    return item.timing.steps if item.timing else None


def _rates(item: CaseResult, work: Training, hardware: Mapping[str, Any]) -> dict[str, Any]:
    stats, definition = item.statistics, shown_definition(work)
    found = rates(work, stats.median_s) if stats else None
    if stats is None or found is None:
        return {}
    if not work.trains:  # nothing is trained: there is no rate of it
        return {"step_time_ms": stats.median_s * 1e3}
    row = {"samples_per_second": found.samples_per_s, "tokens_per_second": found.tokens_per_s,
           "step_time_ms": stats.median_s * 1e3, "mfu_definition": definition}
    if definition is None:
        return {**row, "mfu_missing": "the FLOPs of a step are not known"}
    told = (stats.median_s, item.case.world_size, hardware.get("peak_flops", {}))
    used, executed = mfu(work, definition, *told), _executed(work, definition)
    return {**row, "mfu": used.share, "mfu_missing": used.reason or None,
            "hfu": None if executed is None else hfu(work, executed, *told).share}


def _executed(work: Training, definition: str) -> int | None:
    """Return the FLOPs of a step with what is computed again; None of models unknown here."""
    if work.model not in NAMES or definition not in DEFINITIONS:
        return None
    return dict(work.flops)[definition] + flops_again(work, definition)


def _phases(steps: Steps | None) -> dict[str, float]:
    if steps is None:
        return {}
    known = {PHASES[phase.name]: median(phase.median_s) for phase in steps.phases
             if phase.name in PHASES}
    return {**known, "other_s": median(steps.other_s)}


def most_bytes(item: CaseResult) -> dict[str, int]:
    """Return what of each the rank holds that holds most of it, in bytes."""
    most: dict[str, int] = {}
    for told in (item.memory or {}).values():
        for name, value in told.items():
            if isinstance(value, int):
                most[name] = max(value, most.get(name, 0))
    return most


def peak_of(item: CaseResult) -> str:
    """Return what the peak is of, ``process growth`` or the like; nothing if there is none."""
    found = dict.fromkeys(str(told["peak_of"]) for told in (item.memory or {}).values()
                          if "peak_of" in told)
    return ",".join(found)


def training_results(
    rows: Sequence[Mapping[str, Any]], cases: Sequence[CaseResult], hardware: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``training``, ``memory`` and ``not_measured`` of summary.json's results.

    The first holds the ok rows by strategy, each with ``steps``, its phases rank by rank, with
    ``memory``, rank by rank, and with MFU by every definition. What did not communicate, or did
    nothing else, is no training: it is in what is told of its training only.
    """
    asked = [(row, item) for row, item in zip(rows, cases, strict=True)
             if row["strategy"] is not None and row["communication"] == "on"]
    found = [(row, item) for row, item in asked if row["status"] == "ok"]
    held = [row for row, item in found if item.memory]
    listed = {name: [_listed(row, item, hardware) for row, item in found if row["strategy"] == name]
              for name in dict.fromkeys(row["strategy"] for row, _ in found)}
    missing = {}
    if not found:
        missing["training"] = ("no case of kind training is ok" if asked else
                               "the sweep has no case of kind training")
    if not held:
        missing["memory"] = ("no rank told what it held" if found else missing["training"])
    return {"training": listed or None, "not_measured": missing,
            "memory": [{name: row[name] for name in MEMORY_FIELDS} for row in held] or None}


def _listed(
    row: Mapping[str, Any], item: CaseResult, hardware: Mapping[str, Any]
) -> dict[str, Any]:
    steps = steps_of(item)
    return {**{name: row[name] for name in LISTED_FIELDS}, "memory": item.memory,
            "mfu_by_definition": mfu_by_definition(item, hardware),
            "steps": asdict(steps) if steps else None}


def mfu_by_definition(item: CaseResult, hardware: Mapping[str, Any]) -> dict[str, float | None]:
    """Return MFU under every definition that the plan counted FLOPs by; None without a peak."""
    work, stats, peaks = training_of(item.case), item.statistics, hardware.get("peak_flops", {})
    return {name: mfu(work, name, stats.median_s, item.case.world_size, peaks).share
            for name, _ in work.flops} if stats else {}
