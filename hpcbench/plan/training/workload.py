"""A point of a sweep over trainings becomes a workload, or a reason to skip it."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.plan.training.flops import flops
from hpcbench.plan.training.models import MODELS, ModelShape, parameters, shrink
from hpcbench.plan.training.points import Asked, TrainingPoint
from hpcbench.plan.training.spec import Degrees
from hpcbench.plan.training.validity import why_not
from hpcbench.plan.workload import Training


def make_training(point: TrainingPoint) -> tuple[Training, str | None]:
    """Return the workload of a point, and why it can run nowhere, or None.

    Ranks that cannot be divided have the degrees of one; a shape that is none keeps what was
    asked for, and no parameters.
    """
    asked, spec = point.asked, point.strategy
    shape = shrink(asked.model, asked.layers, asked.hidden, asked.seq_length, asked.vocab)
    degrees = spec.degrees(point.world_size, dict(point.options))
    misfits = [found for found in (shape, degrees) if isinstance(found, str)]
    if misfits:
        plain = _asked_for(asked) if isinstance(shape, str) else shape
        return _draft(point, plain, Degrees()), misfits[0]
    assert isinstance(shape, ModelShape) and isinstance(degrees, Degrees)  # noqa: S101
    work = _draft(point, shape, degrees)
    work = replace(work, parameters=parameters(shape).total,
                   flops=flops(shape, work.global_batch))
    reason = why_not(work, spec)
    calls = () if work.communication == "off" else spec.calls(work)
    return (work, reason) if reason else (replace(work, calls=calls), None)


def _asked_for(asked: Asked) -> ModelShape:
    given = {key: value for key, value in asked._asdict().items()
             if key != "model" and value is not None}
    return replace(MODELS[asked.model], **given)


def _draft(point: TrainingPoint, shape: ModelShape, degrees: Degrees) -> Training:
    """Return the workload without what is counted from it."""
    return Training(
        strategy=point.strategy.name, options=point.options, model=point.asked.model,
        shrunk=shape != MODELS[point.asked.model], family=shape.family, layers=shape.layers,
        hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads, inner=shape.inner,
        vocab=shape.vocab, seq_length=shape.seq_length, **point.setting._asdict(),
        dp=degrees.dp, tp=degrees.tp, pp=degrees.pp,
        parameters=0, flops=(), calls=(), runner=point.strategy.runner)
