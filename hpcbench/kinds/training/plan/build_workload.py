"""A point of a sweep over trainings becomes a workload, or a reason to skip it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcbench.config.names import unknown_name
from hpcbench.kinds.training.plan import any_model
from hpcbench.kinds.training.plan.adapters import count
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.lookup import adapters_of
from hpcbench.kinds.training.plan.points import ModelChoice, TrainingPoint
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.registry import is_ours
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.validity import why_not
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.collectives import collectives
from hpcbench.operations.models import OWN_LIBRARY, ModelShape
from hpcbench.plan.options import in_order


def make_training(point: TrainingPoint) -> tuple[Training, str | None]:
    """Return the workload of a point, and why it can run nowhere, or None."""
    try:
        return _training(point)
    except Exception as error:
        if is_ours(point.strategy):
            raise
        plain = replace(point.strategy, idle=lambda _options: {})  # which may have raised it
        return (_draft(point._replace(strategy=plain), _as_given(point.choice), Degrees()),
                f"its plug-in cannot plan it: {type(error).__name__}: {error}")


def _training(point: TrainingPoint) -> tuple[Training, str | None]:
    """Return the same of a point whose strategy answers.

    Ranks that cannot be divided have the degrees of one; a shape that is none keeps what was
    asked for, and no parameters.
    """
    choice, spec = point.choice, point.strategy
    shape = any_model.shrunk(choice.model, **dict(choice.extents))
    degrees = spec.degrees(point.world_size, dict(point.options))
    if isinstance(shape, str):
        return _draft(point, _as_given(choice), Degrees()), shape
    if isinstance(degrees, str):
        return _draft(point, any_model.extents_of(shape), Degrees()), degrees
    _check_degrees(degrees, point.world_size)
    work = counted(_draft(point, any_model.extents_of(shape), degrees))
    work = replace(work, flops=any_model.flops_of(shape, work.global_batch, adapters_of(work)))
    if not is_ours(spec):
        _check_answers(spec, work)
    reason = spec.ineffective(dict(point.options)) or why_not(work, spec)
    calls = () if work.communication == "off" else spec.calls(work)
    return (work, reason) if reason else (replace(work, calls=calls), None)


def counted(work: Training) -> Training:
    """Return a training with its parameters counted, of the model and of adapters."""
    shape, adapters = any_model.model_of(work), adapters_of(work)
    return replace(work, parameters=any_model.parameters_of(shape), adapters=(
        count(shape, adapters) if adapters and isinstance(shape, ModelShape) else 0))


def _as_given(choice: ModelChoice) -> dict[str, Any]:
    return {**any_model.extents_of(any_model.published(choice.model)), **dict(choice.extents)}


def _draft(point: TrainingPoint, extents: Mapping[str, Any], degrees: Degrees) -> Training:
    """Return the workload without what is counted from it."""
    library = point.setting.library
    return Training(
        strategy=point.strategy.name,
        options=in_order(point.strategy.without_idle(dict(point.options))),
        model=point.choice.model,
        shrunk=extents != any_model.extents_of(any_model.published(point.choice.model)), **extents,
        **point.setting._asdict(), dp=degrees.dp, tp=degrees.tp, pp=degrees.pp,
        parameters=0, flops=(), calls=(),
        modules=(*point.strategy.modules, *(() if library == OWN_LIBRARY else (library,))))


def _check_degrees(degrees: object, ranks: int) -> None:
    """Raise TypeError or ValueError if this divides so many ranks in no way."""
    if not isinstance(degrees, Degrees):
        raise TypeError(f"degrees returned {degrees!r}, no Degrees")
    if degrees.dp * degrees.tp * degrees.pp != ranks:
        raise ValueError(f"degrees returned dp={degrees.dp} x tp={degrees.tp} x pp={degrees.pp} "
                         f"for {ranks} ranks")


def _check_answers(spec: StrategySpec, work: Training) -> None:
    """Raise what a function of a plug-in raises, or an error for an answer of another kind.

    It is other people's code, and Python checks no types: what is wrong costs only its own case.
    """
    if not isinstance(reason := spec.unfit(work), str | None):
        raise TypeError(f"unfit returned {reason!r}, neither text nor None")
    if reason:
        return  # the other functions are called only for trainings that suit the strategy
    if not isinstance(layout := spec.layout(work), Layout):
        raise TypeError(f"layout returned a {type(layout).__name__}, no Layout")
    for name in spec.calls(work):
        if name not in collectives():
            raise ValueError(f"calls: {unknown_name(name, collectives())}")
    for stage in stages_of(work):
        for item in spec.traffic(work, stage.tensors(any_model.model_of(work))):
            if not isinstance(item, Calls):
                raise TypeError(f"traffic yielded a {type(item).__name__}, no Calls")
    predict(work)  # fails if a layout divides by more ranks than there are, and the like
