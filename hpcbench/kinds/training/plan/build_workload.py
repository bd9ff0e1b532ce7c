"""The points of a block of trainings, multiplied out, and the workload or skip of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from hpcbench.config.implementations import OptionAxes
from hpcbench.config.names import BACKENDS, unknown_name
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.plan import any_model
from hpcbench.kinds.training.plan.adapters import count
from hpcbench.kinds.training.plan.any_model import EXTENTS, NAMES
from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.registry import (
    adapters_of,
    is_ours,
    ranks_of,
    registry,
    strategies,
    usable,
)
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.validity import why_not
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, Training
from hpcbench.operations.collectives import collectives
from hpcbench.operations.models import OWN_LIBRARY, ModelShape
from hpcbench.plan.options import Option, in_order, wanted
from hpcbench.plan.points import CommonPoint, PlanRequest, environments, measurements

_RANK = "rank"
"""The option of strategies that a block's lora_rank sets."""


class ModelChoice(NamedTuple):
    """A model, and the extents that the sweep gives instead of the model's own, by key."""

    model: str
    extents: tuple[tuple[str, int], ...]


class Setting(NamedTuple):
    """How a step is taken, whatever the strategy: fields of `TrainingBlock` and of `Training`."""

    batch_size: int
    accumulation: int
    dtype: str
    optimizer: str
    checkpointing: str
    communication: str
    data: str
    library: str
    compile: bool
    count_step: bool
    loss: str


class TrainingPoint(NamedTuple):
    """One value of every axis."""

    common: CommonPoint
    choice: ModelChoice
    setting: Setting
    strategy: StrategySpec
    options: tuple[tuple[str, Option], ...]


def training_points(title: str, block: TrainingBlock, job: PlanRequest) -> Iterator[TrainingPoint]:
    """Yield the points of a block. Raises ConfigError that lists every unknown name or value."""
    problems = dict.fromkeys(block_problems(block))
    if problems:
        raise ConfigError("\n".join(f"benchmarks: {title}: {problem}" for problem in problems))
    choices = tuple(_choices(block))
    steps = {"iterations": block.max_steps} if block.max_steps else {}
    inner = measurements(block.model_copy(update=steps), job.config)
    settings = product(*(getattr(block, name) for name in Setting._fields[:-2]),
                       (block.count_step is not False,), block.loss or (CROSS_ENTROPY,))
    for model, values, device, env, size in product(
            _models(block), settings, block.device, environments(block), block.world_size):
        for spec, options, backends in choices:
            every = ranks_of(spec, dict(options)) or job.world_size
            ranks = every if size == "all" else int(size)
            for backend, measured in product(backends, inner):
                setting = Setting(*values)
                yield TrainingPoint(
                    CommonPoint(setting.dtype, backend, device, env, ranks, *measured), model,
                    setting, spec, options)


def _models(block: TrainingBlock) -> Iterator[ModelChoice]:
    """Yield each model with the extents that are of its kind: others are no axes of it."""
    for model in block.model:
        given = {key: values for key in EXTENTS[model] if (values := getattr(block, key))}
        for extents in product(*given.values()):
            yield ModelChoice(model, tuple(zip(given, extents, strict=True)))


def _choices(block: TrainingBlock) -> Iterator[
        tuple[StrategySpec, tuple[tuple[str, Option], ...], tuple[str, ...]]]:
    """Yield each strategy with one value for each option, and its backends or the block's."""
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            assert spec is not None  # noqa: S101  (an unknown name has been refused)
            own = spec.axes(_with_rank(axes, spec, block))
            given = tuple((str(backend),) for backend in axes.get("backend", ()))
            for backends, values in product(given or (block.backend,), product(*own.values())):
                yield spec, in_order(dict(zip(own, values, strict=True))), backends


def _with_rank(axes: OptionAxes, spec: StrategySpec, block: TrainingBlock) -> OptionAxes:
    """Return a strategy's options with the block's rank of adapters, if the strategy has any."""
    if block.lora_rank is None or _RANK not in spec.options:
        return axes
    return {_RANK: block.lora_rank, **axes}


def block_problems(block: TrainingBlock) -> Iterator[str]:
    """Yield what names nothing: models, strategies, options, values."""
    yield from (f"model: {unknown_name(name, NAMES)}" for name in block.model
                if name not in EXTENTS)
    taken = {key for name in block.model for key in EXTENTS.get(name, ())}
    all_keys = dict.fromkeys(key for keys in EXTENTS.values() for key in keys)
    yield from (f"{key}: {' and '.join(block.model)} has no such extent; take away {key}, or name "
                f"a model that has it" for key in all_keys
                if key not in taken and getattr(block, key) and set(block.model) <= set(EXTENTS))
    yield from _bad_ranks(block)
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            if spec is None:
                also = {word: known.name for known in strategies() for word in known.also}
                yield (f"strategies.{name}: "
                       f"{unknown_name(name, registry().strategies, of_others=also)}")
            else:
                yield from _bad_options(f"strategies.{name}", axes, spec)


def _bad_ranks(block: TrainingBlock) -> Iterator[str]:
    """Yield where the block's rank of adapters has no strategy, or contradicts that of one."""
    if block.lora_rank is None:
        return
    known = registry().strategies
    having = [name for name, spec in known.items() if _RANK in spec.options]
    if not set(having) & set(block.strategies) and set(block.strategies) <= set(known):
        yield (f"lora_rank: {' and '.join(block.strategies)} trains no adapters; take lora_rank "
               f"away, or name {' or '.join(having)}")
    for name in having:
        for axes in block.strategies.get(name, ()):
            if axes.get(_RANK, block.lora_rank) != block.lora_rank:
                yield (f"lora_rank: {', '.join(map(str, block.lora_rank))} contradicts "
                       f"strategies.{name}.rank {', '.join(map(str, axes[_RANK]))}; keep one")


def _bad_options(where: str, axes: OptionAxes, spec: StrategySpec) -> Iterator[str]:
    for option, values in axes.items():
        if option == "backend":
            yield from (f"{where}.backend: {unknown_name(value, BACKENDS)}"
                        for value in values if value not in BACKENDS)
        elif option not in spec.options:
            yield f"{where}: {unknown_name(option, [*spec.options, 'backend'])}"
        else:
            allowed = spec.options[option]
            yield from (f"{where}.{option}: {wanted(value, [allowed])}"
                        for value in values if not allowed.allows(value))


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
    shape = any_model.shape_with(choice.model, **dict(choice.extents))
    degrees = spec.degrees(point.common.world_size, dict(point.options))
    if isinstance(shape, str):
        return _draft(point, _as_given(choice), Degrees()), shape
    if isinstance(degrees, str):
        return _draft(point, any_model.extents_of(shape), Degrees()), degrees
    _check_degrees(degrees, point.common.world_size)
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
    library, model = point.setting.library, point.choice.model
    return Training(
        strategy=point.strategy.name,
        options=in_order(point.strategy.without_idle(dict(point.options))),
        model=model, **any_model.differences(model, extents), **extents,
        **point.setting._asdict(), dp=degrees.dp, tp=degrees.tp, pp=degrees.pp,
        parameters=0, flops=(), calls=(),
        modules=(*point.strategy.modules, *(() if library == OWN_LIBRARY else (library,))))


def _check_degrees(degrees: object, ranks: int) -> None:
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
