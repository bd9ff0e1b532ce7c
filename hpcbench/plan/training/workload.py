"""A point of a sweep over trainings becomes a workload, or a reason to skip it."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.plan.options import in_order
from hpcbench.plan.training.adapters import adapters_of, count
from hpcbench.plan.training.flops import flops
from hpcbench.plan.training.models import MODELS, ModelShape, parameters, shape_of, shrink
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
    work = counted(_draft(point, shape, degrees))
    work = replace(work, flops=flops(shape, work.global_batch, adapters_of(work)))
    reason = spec.ineffective(dict(point.options)) or why_not(work, spec)
    return (work, reason) if reason else (replace(work, calls=spec.calls(work)), None)


def counted(work: Training) -> Training:
    """Return a training with its parameters counted, of the model and of adapters."""
    shape, adapters = shape_of(work), adapters_of(work)
    return replace(work, parameters=parameters(shape).total,
                   adapters=count(shape, adapters) if adapters else 0)


def _asked_for(asked: Asked) -> ModelShape:
    given = {key: value for key, value in asked._asdict().items()
             if key != "model" and value is not None}
    return replace(MODELS[asked.model], **given)


def _draft(point: TrainingPoint, shape: ModelShape, degrees: Degrees) -> Training:
    """Return the workload without what is counted from it."""
    return Training(
        strategy=point.strategy.name,
        options=in_order(point.strategy.without_idle(dict(point.options))),
        model=point.asked.model,
        shrunk=shape != MODELS[point.asked.model], family=shape.family, layers=shape.layers,
        hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads, inner=shape.inner,
        vocab=shape.vocab, seq_length=shape.seq_length, **point.setting._asdict(),
        dp=degrees.dp, tp=degrees.tp, pp=degrees.pp,
        parameters=0, flops=(), calls=(), runner=point.strategy.runner,
        modules=point.strategy.modules)
