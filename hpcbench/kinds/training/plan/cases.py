"""The points of a block of trainings become cases, or skips with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hpcbench.config.schema import Hardware
from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.build_workload import make_training
from hpcbench.kinds.training.plan.fits import advice
from hpcbench.kinds.training.plan.points import TrainingPoint, training_points
from hpcbench.kinds.training.plan.predict import Prediction, predict
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.plan.assemble import (
    Draft,
    assemble,
    calls_of_sample,
    sample_bounds,
    too_large,
)
from hpcbench.plan.case import Case
from hpcbench.plan.estimate import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s
from hpcbench.plan.points import PlanRequest
from hpcbench.plan.support import resolve_device, unfit_world, unsupported

_FOLLOWS = ("family", "shrunk", "dp", "tp", "pp", "parameters", "flops", "calls",
            "adapters", "modules")
"""What follows from the rest of a training: no part of what makes it this one."""


def training_cases(title: str, block: TrainingBlock, job: PlanRequest) -> Iterator[Case]:
    """Yield the case of every point. Raises ConfigError that lists every unknown name."""
    for point in training_points(title, block, job):
        yield assemble(title, block, job, point, _draft(point, job))


def _draft(point: TrainingPoint, job: PlanRequest) -> Draft:
    work, reason = make_training(point)
    device = resolve_device(point.backend, point.device)
    reason = (unfit_world(point.backend, point.world_size, job.world_size) or reason
              or unsupported(point.backend, device, work.collective_calls()))
    expected = Prediction() if reason else predict(work)
    calls = (point.warmup + sample_bounds(point, job.config)[0]) * calls_of_sample(
        point, job.config)
    hardware = job.config.hardware
    reason = reason or too_large(expected.memory.total, 0, device, hardware)
    if expected.memory.total and reason:
        reason += f"; {advice(work, int((hardware.memory_per_device_gb or 0) * 1e9))}"
    return Draft(
        workload=work, device=device,
        validate=point.validate and work.communication != "only",  # which has no result
        memory_bytes=expected.memory.total, skip=reason,
        estimate_s=_estimate_s(work, expected, device, calls, hardware),
        identity=_identity(work, point.strategy))


def _estimate_s(
    work: Training, expected: Prediction, device: str, calls: int, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: set-up, its steps, and one more to check."""
    kind = device_kind(device)
    step_s = (expected.hardware_flops / FLOPS_PER_S[kind] + expected.collectives * ALPHA_S[kind]
              + expected.wire_bytes / bytes_per_s(kind, hardware))
    return setup_s(work) + (calls + 1) * step_s


def _identity(work: Training, spec: StrategySpec) -> dict[str, Any]:
    """Return what makes it this training; what follows from that is left out.

    Where it is as usual, that is not named which was no choice at first: old ids remain.
    """
    usual = {"communication": "on", "data": SYNTHETIC, "library": OWN_LIBRARY, "compile": False}
    stated = {name: value for name, value in asdict(work).items() if name not in _FOLLOWS
            and value != 0  # an extent that its kind of model lacks
            and usual.get(name) != value}
    return {"kind": "training", **stated, "options": spec.identifying(work.options)}
