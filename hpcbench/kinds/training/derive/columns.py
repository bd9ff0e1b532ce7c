"""The columns of trainings in ``/cases`` of results.h5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.case_columns import CaseColumn, settings, texts, whole_numbers
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_COLUMNS, column_values_of
from hpcbench.statistics.overlap import told
from hpcbench.trace.described import PURE, TEXT

if TYPE_CHECKING:
    from hpcbench.kinds.training.derive.deriver import TrainingRecord
    from hpcbench.kinds.training.derive.pop import Pop


_OF_WORK = (*texts(
    strategy="name of the strategy", model="name of the model",
    optimizer="name of the optimizer", checkpointing="what is computed again in backward",
    data="file of the data, or synthetic", library="whose model it is",
    loss="how the loss is computed",
    communication="on: a training; off, only: its steps without, or of nothing else",
), *whole_numbers(
    layers="layers, or blocks of a ResNet", hidden="width of the model; 0 of a ResNet",
    seq_length="tokens of a sample; 0 of images", image_size="pixels of a side; 0 of tokens",
    parameters="parameters of the model", adapters="parameters beside a frozen model; 0 of none",
    batch_size="samples of a replica in a step",
    accumulation="equal parts of batch_size, one after another",
    global_batch="samples of all replicas in a step", dp="replicas",
    tp="ranks that share a layer", pp="stages of the pipeline", compile="1 if compiled, else 0"))
_RATES = (
    CaseColumn("samples_per_s", "1/s", "global_batch / median_s"),
    CaseColumn("tokens_per_s", "1/s", "tokens of all replicas in a second; NaN of images"),
    CaseColumn("mfu", PURE, "share of the declared peak of the devices, by the FLOPs of the model"),
    CaseColumn("mfu_of_measured", PURE, "the same beside the best product measured in the run"),
    CaseColumn("hfu", PURE, "share of the declared peak, with what checkpointing computes again"),
    CaseColumn("cost_per_step", "currency", "cost of a step at the price in the sweep file"),
)
_PHASES = {"data_wait_s": "data", **{f"{name}_s": name for name in (
    "forward", "backward", "exchange", "forward_backward", "optimizer", "balance", "other")}}
_HELD = ("parameters", "gradients", "optimizer_state", "activations", "peak")
_EXPOSURE = {
    "exposed_s": ("s", "time beyond the step without communication"),
    "exposed_share": (PURE, "exposed_s as a share of the step"),
    "communication_overhead": (PURE, "step over the step without communication, less 1"),
    "overlap_efficiency": (PURE, "share of the shorter part that passed under the longer one"),
}
_FACTORS = {
    "load_balance": ("load_balance", "mean useful time of the ranks over the greatest"),
    "communication_efficiency": ("communication", "greatest useful time over the step"),
    "serialisation": ("serialisation", "greatest useful time over the step of an ideal network"),
    "transfer": ("transfer", "step of an ideal network over the step"),
}
OF_TRAINING = (
    *_OF_WORK, CaseColumn("options", TEXT, "options: NAME=VALUE, separated by spaces", str))
"""What is trained, and how."""
COLUMNS = (
    *OF_TRAINING, *_RATES,
    *(CaseColumn(name, "s", f"median of phase {phase} on the middle rank")
      for name, phase in _PHASES.items()),
    *(CaseColumn(f"{name}_bytes", "bytes", f"{name.replace('_', ' ')} of the rank with most", int)
      for name in _HELD),
    CaseColumn("off_s", "s", "median of the step without communication"),
    CaseColumn("only_s", "s", "median of the communication alone"),
    *(CaseColumn(name, units, f"{text}; NaN if it may be chance")
      for name, (units, text) in _EXPOSURE.items()),
    CaseColumn("scaling_efficiency", PURE, "samples/s over those of the base times the ratio of "
               "their ranks; NaN without a base"),
    CaseColumn("efficiency_score", PURE, "useful time of all ranks over ranks x step; NaN if "
               "unknown"),
    *(CaseColumn(name, PURE, f"{text}; NaN if unknown") for name, (_, text) in _FACTORS.items()),
    *ROOFLINE_COLUMNS,
    CaseColumn("computation_scaling", PURE, "useful time for a sample in the scaling's base over "
               "that here; NaN without a base"),
)


def column_values(item: CaseResult, record: TrainingRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS."""
    values = training_values(item)
    if record is None:
        return values
    found = record.exposure
    passes = (found.exposed_s, found.exposed_share, found.overhead, found.efficiency)
    return {
        **values, **{column.name: getattr(record, column.name) for column in _RATES},
        **{name: record.phase_s.get(phase) for name, phase in _PHASES.items()},
        **{f"{name}_bytes": record.held_bytes.get(name) for name in _HELD},
        "off_s": found.off_s, "only_s": found.only_s,
        **dict(zip(_EXPOSURE, map(told, passes), strict=True)),
        "scaling_efficiency": record.scaling and record.scaling.efficiency,
        **_efficiency(record.pop),
        **column_values_of(record.rooflines[0] if record.rooflines else None)}


def _efficiency(pop: Pop | None) -> dict[str, float | None]:
    if pop is None:
        return {}
    return {"efficiency_score": pop.score, "computation_scaling": pop.computation_scaling,
            **{name: getattr(pop.efficiency, field) for name, (field, _) in _FACTORS.items()}}


def training_values(item: CaseResult) -> dict[str, Any]:
    """Return a case's values of OF_TRAINING."""
    work = training_of(item.case)
    return {**{column.name: getattr(work, column.name) for column in _OF_WORK},
            "options": settings(work.options)}
