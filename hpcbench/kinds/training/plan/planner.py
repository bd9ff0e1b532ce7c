"""The planner of trainings: points become cases, or skips with their reasons.

What sweep files can name of trainings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from hpcbench.config.section import Block
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.training.plan import build_workload
from hpcbench.kinds.training.plan.any_model import NAMES, parameters_of, published
from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.fits import advice, untimed_s
from hpcbench.kinds.training.plan.memory import ERROR
from hpcbench.kinds.training.plan.predict import Demands, predict
from hpcbench.kinds.training.plan.registry import strategies
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, SYNTHETIC, Training
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.plan.case import Case
from hpcbench.plan.estimate import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s
from hpcbench.plan.points import (
    COMMON_AXES,
    Draft,
    PlanRequest,
    assemble,
    described,
    least_calls,
    listed_lengths,
    number_of_sets,
    too_large,
)
from hpcbench.plan.support import resolve_device, unfit_world, unsupported
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware


_AXES = ("model", "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length",
         "width", "classes", "image_size", "batch_size", "accumulation", "optimizer",
         "checkpointing", "communication", "data", "library", "compile", "loss", "max_steps",
         "lora_rank",
         *COMMON_AXES)
_FOLLOWS = ("family", "changed", "shrunk", "named_extents", "dp", "tp", "pp", "parameters",
            "flops", "calls", "adapters", "modules", "count_step")
"""What follows from the rest of a training, and what is no part of it: it is this one anyhow."""


class TrainingPlanner(Planner):
    """Plans trainings."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, TrainingBlock)
        return {**listed_lengths(block, _AXES), "strategies": number_of_sets(block.strategies)}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, TrainingBlock)
        for point in build_workload.training_points(title, block, job):
            yield case_of(title, block, job, point)

    def problems(self, block: Block) -> Iterator[str]:
        assert isinstance(block, TrainingBlock)
        return build_workload.block_problems(block)

    def workload_from_json(self, data: Mapping[str, Any]) -> Training:
        """Rebuild a training; earlier versions stored the place of its strategy's class, too.

        They had smaller models only, and no word for others.
        """
        kept = {name: value for name, value in data.items() if name != "runner"}
        return Training(**{
            **kept, "options": tuple((str(name), value) for name, value in data["options"]),
            "flops": tuple((str(name), int(count)) for name, count in data["flops"]),
            "changed": data.get("changed", data["shrunk"]),
            "named_extents": tuple(
                (str(name), int(value)) for name, value in data.get("named_extents", ())),
            "calls": tuple(data["calls"]), "modules": tuple(data.get("modules", ()))})

    def advice(self, work: Workload, available_bytes: int) -> str:
        assert isinstance(work, Training)
        return advice(work, available_bytes)


def case_of(
    title: str, block: TrainingBlock, job: PlanRequest, point: build_workload.TrainingPoint,
) -> Case:
    return assemble(title, block, job, point.common, _draft(point, job))


def _draft(point: build_workload.TrainingPoint, job: PlanRequest) -> Draft:
    common = point.common
    work, reason = build_workload.make_training(point)
    device = resolve_device(common.backend, common.device)
    reason = (unfit_world(common.backend, common.world_size, job.world_size) or reason
              or unsupported(common.backend, device, work.collective_calls()))
    expected = Demands() if reason else predict(work)
    hardware = job.config.hardware
    reason = reason or too_large(expected.memory.total, 0, device, hardware, ERROR)
    if expected.memory.total and reason:
        reason += f"; {advice(work, int((hardware.memory_per_device_gb or 0) * 1e9))}"
    checked = common.validate and work.communication != "only"  # which has no result
    step_s = _step_s(work, expected, device, hardware)
    return Draft(
        workload=work, device=device, validate=checked,
        memory_bytes=expected.memory.total, memory_error=ERROR, skip=reason,
        estimate_s=(setup_s(work, device_kind(device)) + least_calls(common, job.config) * step_s
                    + untimed_s(work, step_s, device_kind(device), checked=checked)),
        identity=_identity(work, point.strategy))


def _step_s(work: Training, expected: Demands, device: str, hardware: Hardware) -> float:
    """Return the assumed seconds of a step: of the rank with most to do, all it does together."""
    kind = device_kind(device)
    rate = bytes_per_s(kind, hardware, work.dp * work.tp * work.pp)
    return max(one.hardware_flops / FLOPS_PER_S[kind] + one.collectives * ALPHA_S[kind]
               + one.wire_bytes / rate for one in expected.of_ranks)


def _identity(work: Training, spec: StrategySpec) -> dict[str, Any]:
    """Return what makes it this training; what follows from that is left out.

    Where it is as usual, that is not named which was no choice at first: old ids remain.
    """
    usual = {"communication": "on", "data": SYNTHETIC, "library": OWN_LIBRARY, "compile": False,
             "loss": CROSS_ENTROPY}
    every = ((item.name, getattr(work, item.name)) for item in fields(work))
    stated = {name: value for name, value in every if name not in _FOLLOWS
            and value != 0  # an extent that its kind of model lacks
            and usual.get(name) != value}
    return {"kind": "training", **stated, "options": spec.identifying(work.options)}


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the models with their published extents, and the strategies with their options."""
    shapes = {name: published(name) for name in NAMES}
    return {
        "models": {name: {**asdict(shape), "layers": shape.layers,
                          "parameters": parameters_of(shape)} for name, shape in shapes.items()},
        "strategies": {spec.name: {"meaning": spec.meaning, "options": described(spec.options)}
                       for spec in strategies()},
    }
