"""The points of a block of trainings: models, sizes, strategies and options, multiplied out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from hpcbench.config.implementations import OptionAxes
from hpcbench.config.names import BACKENDS, unknown_name
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.plan.any_model import EXTENTS, NAMES
from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.lookup import ranks_of
from hpcbench.kinds.training.plan.registry import registry, usable
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.plan.options import Option, in_order, wanted
from hpcbench.plan.points import PlanRequest, environments, measurements


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


class TrainingPoint(NamedTuple):
    """One value of every axis."""

    choice: ModelChoice
    setting: Setting
    device: str
    env: tuple[tuple[str, str], ...]
    world_size: int
    strategy: StrategySpec
    options: tuple[tuple[str, Option], ...]
    backend: str
    mode: str
    warmup: int
    iterations: int | str
    validate: bool
    wakeup_s: float


def training_points(title: str, block: TrainingBlock, job: PlanRequest) -> Iterator[TrainingPoint]:
    """Yield the points of a block. Raises ConfigError that lists every unknown name or value."""
    problems = dict.fromkeys(_problems(block))
    if problems:
        raise ConfigError("\n".join(f"benchmarks: {title}: {problem}" for problem in problems))
    choices = tuple(_choices(block))
    inner = measurements(block, job.config)
    for model, setting, device, env, size in product(
            _models(block), _settings(block), block.device, environments(block),
            block.world_size):
        for spec, options, backends in choices:
            every = ranks_of(spec, dict(options)) or job.world_size
            ranks = every if size == "all" else int(size)
            for backend, measured in product(backends, inner):
                yield TrainingPoint(
                    model, setting, device, env, ranks, spec, options, backend, *measured)


def _models(block: TrainingBlock) -> Iterator[ModelChoice]:
    """Yield each model with the extents that are of its kind: others are no axes of it."""
    for model in block.model:
        given = {key: values for key in EXTENTS[model] if (values := getattr(block, key))}
        for extents in product(*given.values()):
            yield ModelChoice(model, tuple(zip(given, extents, strict=True)))


def _settings(block: TrainingBlock) -> Iterator[Setting]:
    for values in product(*(getattr(block, name) for name in Setting._fields)):
        yield Setting(*values)


def _choices(block: TrainingBlock) -> Iterator[
        tuple[StrategySpec, tuple[tuple[str, Option], ...], tuple[str, ...]]]:
    """Yield each strategy with one value for each option, and its backends or the block's."""
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            assert spec is not None  # noqa: S101  (an unknown name has been refused)
            own = {key: axes.get(key, (values.default,)) for key, values in spec.options.items()}
            given = tuple((str(backend),) for backend in axes.get("backend", ()))
            for backends, values in product(given or (block.backend,), product(*own.values())):
                yield spec, in_order(dict(zip(own, values, strict=True))), backends


def _problems(block: TrainingBlock) -> Iterator[str]:
    """Yield what names nothing: models, strategies, options, values."""
    yield from (f"model: {unknown_name(name, NAMES)}" for name in block.model
                if name not in EXTENTS)
    taken = {key for name in block.model for key in EXTENTS.get(name, ())}
    all_keys = dict.fromkeys(key for keys in EXTENTS.values() for key in keys)
    yield from (f"{key}: {' and '.join(block.model)} has no such extent; take away {key}, or name "
                f"a model that has it" for key in all_keys
                if key not in taken and getattr(block, key) and set(block.model) <= set(EXTENTS))
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            if spec is None:
                yield f"strategies.{name}: {unknown_name(name, registry().strategies)}"
            else:
                yield from _bad_options(f"strategies.{name}", axes, spec)


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
