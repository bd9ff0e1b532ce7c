"""Strategies ``accelerate`` and ``torchtitan`` as plans know them, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hpcbench.plugins import (
    Buckets,
    Degrees,
    Groups,
    Layout,
    Option,
    StrategySpec,
    Training,
    Values,
)

OVER = {"over": Values("data", ("single", "data", "fsdp"))}
_BYTES = {"fp32": 4, "bf16": 2}
_BUCKET_MB = 25  # torch's default, which Accelerate leaves


def degrees(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return as many replicas as ranks, or why there are none."""
    if (options["over"] == "single") != (ranks == 1):
        return f"over={options['over']} is not for {ranks} ranks: one trains by over=single"
    return Degrees(dp=ranks)


def layout(work: Training, *, copies_by_fsdp: bool) -> Layout:
    """Return how model and gradients lie; ``copies_by_fsdp``: FSDP makes the copies, too."""
    over = str(work.option("over"))
    if not copies_by_fsdp and over != "fsdp":
        return Layout(buckets=Buckets(_BUCKET_MB) if over == "data" else None)
    shards, copies = (1, work.dp) if over == "data" else (work.dp, 1)
    return Layout(groups=Groups(shards, copies, _BYTES.get(work.dtype, 4), reshard=True))


def calls(work: Training) -> tuple[str, ...]:
    """Return the collectives of a step."""
    return {"single": (), "data": ("all_reduce",), "fsdp": ("all_gather", "reduce_scatter")}[
        str(work.option("over"))]


def unfit(work: Training) -> str | None:
    """Return what a training has that these steps are not prepared for, or None."""
    given = {"accumulation": (work.accumulation, 1), "checkpointing": (work.checkpointing, "none"),
             "compile": (work.compile, False), "loss": (work.loss, "cross_entropy"),
             "documents": (work.documents, 1), "precision": (work.precision, "mixed"),
             "offload_state": (work.offload_state, False)}
    changed = next((f"{name} {value}" for name, (value, only) in given.items() if value != only),
                   "images" if work.of_images else "")
    if changed:
        return f"{work.strategy} has no {changed} here"
    if work.dtype not in _BYTES or work.optimizer not in ("adamw", "sgd"):
        return f"{work.strategy} has fp32 and bf16, adamw and sgd here"
    return None


def unfit_for_titan(work: Training) -> str | None:
    """Return what keeps a training from being torchtitan's Llama 3, or None."""
    if reason := unfit(work):
        return reason
    if work.model.startswith("llama") and not work.architecture and work.library == "hpcbench":
        return None
    return "torchtitan has its own Llama here: give a llama model"


ACCELERATE = StrategySpec(
    name="accelerate", meaning="a model prepared by Hugging Face Accelerate, and its step",
    runner="hpcbench_trainers.accelerated:Accelerated", degrees=degrees, calls=calls, unfit=unfit,
    layout=partial(layout, copies_by_fsdp=False), options=OVER, modules=("accelerate",),
    ranks=lambda options: 1 if options["over"] == "single" else None,
    alone_by=lambda work: "over=single" if work.option("over") == "single" else "")
TORCHTITAN = StrategySpec(
    name="torchtitan", meaning="torchtitan's Llama 3 under its FSDP, and its step",
    runner="hpcbench_trainers.titan:Titan", degrees=degrees, calls=calls, unfit=unfit_for_titan,
    layout=partial(layout, copies_by_fsdp=True), options=OVER,
    modules=("torchtitan", "spmd_types", "tyro", "triton"),
    ranks=ACCELERATE.ranks, alone_by=ACCELERATE.alone_by)
