"""The points of a block of trainings become cases, or skips with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.build_workload import make_training
from hpcbench.kinds.training.plan.estimate import estimate_training_s
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
from hpcbench.plan.points import Job
from hpcbench.plan.support import BACKEND_TRAITS, resolve_device, unsupported

_FOLLOWS = ("family", "shrunk", "dp", "tp", "pp", "parameters", "flops", "calls",
            "adapters", "modules")
"""What follows from the rest of a training: no part of what makes it this one."""


def training_cases(title: str, block: TrainingBlock, job: Job) -> Iterator[Case]:
    """Yield the case of every point. Raises ConfigError that lists every unknown name."""
    for point in training_points(title, block, job):
        yield assemble(title, block, job, point, _draft(point, job))


def _draft(point: TrainingPoint, job: Job) -> Draft:
    work, reason = make_training(point)
    device = resolve_device(point.backend, point.device)
    reason = _unfit_world(point, job.world_size) or reason or _unsupported(point, work, device)
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
        estimate_s=estimate_training_s(work, expected, device, calls, hardware),
        identity=_identity(work, point.strategy))


def _unfit_world(point: TrainingPoint, job_size: int) -> str | None:
    if point.world_size > job_size:
        return f"world_size {point.world_size} is more than the job's {job_size} ranks"
    if point.world_size < BACKEND_TRAITS[point.backend].min_world_size:
        return f"{point.backend} makes no group of {point.world_size} rank"
    return None


def _unsupported(point: TrainingPoint, work: Training, device: str) -> str | None:
    """Return why the backend cannot do what a step calls, or None."""
    traits = BACKEND_TRAITS[point.backend]
    if device not in traits.devices:
        return f"{point.backend} does not run on {device}, only on {' or '.join(traits.devices)}"
    reasons = (unsupported(point.backend, device, call.collective, call.dtype, call.op, None)
               for call in work.collective_calls())
    return next((reason for reason in reasons if reason), None)


def _identity(work: Training, spec: StrategySpec) -> dict[str, Any]:
    """Return what makes it this training; what follows from that is left out.

    Where it is as usual, that is not named which was no choice at first: old ids remain.
    """
    usual = {"communication": "on", "data": SYNTHETIC, "library": OWN_LIBRARY, "compile": False}
    stated = {name: value for name, value in asdict(work).items() if name not in _FOLLOWS
            and value != 0  # an extent that its kind of model lacks
            and usual.get(name) != value}
    return {"kind": "training", **stated, "options": spec.identifying(work.options)}
