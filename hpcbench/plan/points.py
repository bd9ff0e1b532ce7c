"""The points of a sweep: what cases of every kind have in common, their number, and options.

Points are counted before they are written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbench.config.axes import UNCHECKED, Checks, quote, unknown_name
from hpcbench.errors import ConfigError
from hpcbench.operations.arrival import TOGETHER, ArrivalPattern
from hpcbench.plan import support
from hpcbench.plan.case import Case, Planner, PlanRequest, case_id
from hpcbench.plan.workload import Workload
from hpcbench.records import dataclass
from hpcbench.units import round_bytes

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware
    from hpcbench.config.section import Block, OptionAxes


Option = str | int | bool
NO_OPTIONS: Mapping[str, Values] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Values:
    """An option's values: one of ``allowed``, or, if there are none, a number from ``least``, or
    any text that ``parse`` takes (of a number its digits), of these ``forms``. It returns the one
    way to write it, and raises ValueError, with what is wrong, for others."""

    default: Option
    allowed: tuple[Option, ...] = ()
    least: int = 1
    parse: Callable[[str], str] | None = None
    forms: str = ""

    def allows(self, value: object) -> bool:
        """Return whether the option may be this; true is not the number 1."""
        if self.allowed:
            return any(value == one and type(value) is type(one) for one in self.allowed)
        if self.parse:
            return not self.problem(value)
        return type(value) is int and value >= self.least

    def canonical(self, value: Option) -> Option:
        return self.parse(str(value)) if self.parse else value

    def problem(self, value: object) -> str:
        """Return what is wrong with a text that `parse` has to take; else ""."""
        try:
            if self.parse:
                self.parse(str(value))
        except ValueError as error:
            return str(error)
        return ""


def described(options: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Return options as JSON values: the default, and what is allowed or the least number."""
    return {name: {"default": values.default,
                   **({"allowed": list(values.allowed)} if values.allowed
                      else {} if values.parse else {"least": values.least})}
            for name, values in options.items()}


def wanted(value: Option, several: Sequence[Values]) -> str:
    """Return the message on an option whose ``value`` some of those of its name do not allow."""
    against = [values for values in several if not values.allows(value)]
    elsewhere = ("" if len(against) == len(several) else
                 "; not all that have it take it: give it in implementations, to those that do")
    allowed = dict.fromkeys(item for values in against for item in values.allowed)
    if allowed:
        return unknown_name(value, [str(item) for item in allowed]) + elsewhere
    if problems := list(filter(None, (values.problem(value) for values in against))):
        return problems[0] + elsewhere
    least = max(values.least for values in against)
    return f"{quote(value)} must be a whole number from {least}{elsewhere}"


def in_order(options: Mapping[str, Option]) -> tuple[tuple[str, Option], ...]:
    return tuple((name, options[name]) for name in sorted(options))


MAX_POINTS = 200_000
"""Larger products are refused before they are written out."""


class CommonPoint(NamedTuple):
    """One value of every axis that blocks of all kinds have: where a case runs, how it is measured.

    Fields have the names of a block's keys. Those with a default are also of `Case`, and part of
    its identity where they have another value. ``env`` is sorted by name, ``iterations`` may be
    ``auto``."""

    dtype: str
    backend: str
    device: str
    env: tuple[tuple[str, str], ...]
    world_size: int
    mode: str
    warmup: int
    iterations: int | str
    check: Checks
    poll_interval_s: float
    cuda_graph: bool = False
    arrival: ArrivalPattern = TOGETHER

    @property
    def optional(self) -> dict[str, Any]:
        """Return the values of the axes that have a default."""
        return {name: getattr(self, name) for name in self._field_defaults}

    @property
    def validate(self) -> bool:
        """Return whether results are checked."""
        return self.check.is_on


def common_points(block: Block, job: PlanRequest) -> Iterator[CommonPoint]:
    """Yield the points of the common axes; ``all`` becomes the job's world size."""
    sizes = [job.world_size if size == "all" else int(size) for size in block.world_size]
    for dtype, backend, device, env, size, measured in product(
            block.dtype, block.backend, block.device, environments(block), sizes,
            measurements(block, job.config)):
        yield CommonPoint(dtype, backend, device, env, size, *measured)


def environments(block: Block) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return each combination of the block's environment variables, sorted by name."""
    return tuple(product(*([(name, value) for value in block.env[name]]
                           for name in sorted(block.env))))


COMMON_AXES = tuple(name for name in CommonPoint._fields if name != "env")
"""The axes that blocks of every kind have, but for ``env``."""
_MEASURED = CommonPoint._fields[CommonPoint._fields.index("mode"):]


def measurement_axes(block: Block, config: Config) -> dict[str, tuple[Any, ...]]:
    """Return each axis by which a case is measured -> the block's values, else the sweep's."""
    usual = {**CommonPoint._field_defaults, **dict(config.launch), **dict(config.measure)}
    return {name: getattr(block, name) or (usual[name],) for name in _MEASURED}


def measurements(block: Block, config: Config) -> tuple[tuple[Any, ...], ...]:
    """Return every combination, the values in the order of `CommonPoint`'s fields."""
    return tuple(product(*measurement_axes(block, config).values()))


def refuse_huge(blocks: Sequence[tuple[Planner, Block]], config: Config) -> None:
    """Raise ConfigError if the blocks have more than MAX_POINTS points together."""
    lengths = [{**planner.lengths(block, config),
                **{f"env.{name}": len(values) for name, values in block.env.items()}}
               for planner, block in blocks]
    total = sum(math.prod(axes.values()) for axes in lengths)
    if total <= MAX_POINTS:
        return
    largest = max(lengths, key=lambda axes: math.prod(axes.values()))
    from hpcbench.config.section import Block as Usual

    keys = {name: key.alias for name, key in Usual.model_fields.items() if key.alias}
    axes = " x ".join(f"{keys.get(name, name)} {length}"
                      for name, length in largest.items() if length > 1)
    raise ConfigError(f"benchmarks: the sweep has {total:,} points, more than {MAX_POINTS:,}; "
                      f"shorten an axis of the largest block: {axes}")


def listed_lengths(block: Block, names: Sequence[str]) -> dict[str, int]:
    """Return the lengths of these axes of a block; one that is not given has one value."""
    return {name: len(getattr(block, name) or (None,)) for name in names}


def number_of_sets(named: Mapping[str, Sequence[OptionAxes]]) -> int:
    """Return how many combinations of options named sets have together."""
    return sum(math.prod(map(len, axes.values())) for sets in named.values() for axes in sets)


@dataclass(frozen=True, slots=True)
class Draft:
    """The part of a case that its kind adds to a point.

    ``identity``: the values that identify the workload; ``estimate_s``: of one pass, 0 if skipped;
    ``memory_error``: by what share the estimate of its memory may be off."""

    workload: Workload
    device: str
    validate: bool
    memory_bytes: int
    skip: str | None
    estimate_s: float
    identity: Mapping[str, Any]
    host_bytes: int = 0
    memory_error: float = 0.0


def assemble(title: str, block: Block, job: PlanRequest, point: CommonPoint, draft: Draft) -> Case:
    config = job.config
    env = tuple(sorted({**dict(support.traits_of(point.backend).env), **dict(point.env)}.items()))
    least, most = sample_bounds(point, config)
    skip = next(filter(None, _obstacles(point, draft)), None)
    note = "" if skip else _hardly_fits(draft, config.hardware)
    return Case(
        case_id=case_id(_identity(point, draft, env, config)), index=0, block=title,
        kind=block.kind, backend=point.backend, device=draft.device,
        world_size=point.world_size, env=env, mode=point.mode, warmup=point.warmup,
        iterations=most, check=point.check if draft.validate else UNCHECKED,
        timeout_s=block.timeout_s or config.launch.timeout_s, wakeup_s=point.poll_interval_s,
        workload=draft.workload, skip=skip,
        needs=() if skip else (
            *support.needs(point.backend, draft.device), *draft.workload.features.needs),
        estimate_s=0.0 if skip else draft.estimate_s + _late_s(point, config),
        memory_bytes=draft.memory_bytes,
        host_bytes=draft.host_bytes, min_iterations=least, batch=calls_of_sample(point, config),
        memory_error=draft.memory_error, note=note, **point.optional)


def sample_bounds(point: CommonPoint, config: Config) -> tuple[int, int]:
    """Return the least and the most timed samples of a pass; they are equal if fixed."""
    if isinstance(point.iterations, str):
        return config.measure.min_iterations, config.measure.max_iterations
    return point.iterations, point.iterations


def least_calls(point: CommonPoint, config: Config) -> int:
    """Return how many calls a pass makes at least, warm-ups counted, for estimates."""
    return (point.warmup + sample_bounds(point, config)[0]) * calls_of_sample(point, config)


def _late_s(point: CommonPoint, config: Config) -> float:
    """Return how long a pass waits, at least, for ranks that enter late on purpose."""
    return least_calls(point, config) * point.arrival.by_ns / 1e9


def further_checks(point: CommonPoint, config: Config) -> int:
    """Return how many checks a pass makes at least beside those of its ends, for estimates."""
    check = point.check
    return sample_bounds(point, config)[0] if check.has_every else check.further


def calls_of_sample(point: CommonPoint, config: Config) -> int:
    return config.measure.batch if point.mode == "pipelined" else 1


def too_large(
    memory_bytes: int, host_bytes: int, device: str, hardware: Hardware, error: float = 0.0,
) -> str | None:
    """Return why the buffers do not fit the declared device, or None.

    Buffers that are over it by less than the ``error`` of the estimate, a share, are tried. On a
    CPU the device's memory is the host's; otherwise what is declared is not the host's."""
    memory_bytes += host_bytes if device == "cpu" else 0
    limit = hardware.memory_per_device_gb
    if limit is None or hardware.device_type not in (None, device):
        return None
    if memory_bytes <= limit * 1e9 * (1 + error):
        return None
    return (f"needs {round_bytes(memory_bytes)} of memory per rank, more than the "
            f"{round_bytes(int(limit * 1e9))} of hardware.memory_per_device_gb {limit:g}")


def _hardly_fits(draft: Draft, hardware: Hardware) -> str:
    """Return the note of a case that is tried although it may not fit, else ""."""
    over = too_large(draft.memory_bytes, draft.host_bytes, draft.device, hardware)
    if over is None:
        return ""
    return (f"{over}, by less than the {100 * draft.memory_error:g} % that the prediction may be "
            "off: it is tried")


def _obstacles(point: CommonPoint, draft: Draft) -> Iterator[str | None]:
    """Yield why no machine can run a point, or None; the most general first."""
    work, selected = draft.workload, dict(support.traits_of(point.backend).env)
    if draft.device == "mps":
        yield support.unfit_for_mps(point.world_size, work.dtype, work.features.calls)
    yield draft.skip
    yield from (f"env {name}={value} contradicts {point.backend}, which sets {selected[name]}"
                for name, value in point.env if selected.get(name, value) != value)
    yield support.unfit_variables(point.backend, point.env)
    if point.check.has_every and point.mode == "pipelined":
        yield ("check every: a pipelined sample has results of its last call only; take a number, "
               "or mode isolated")
    if point.cuda_graph:
        yield support.unfit_for_graph(point.backend, draft.device, work.features.calls)
        yield work.features.not_captured
    if point.arrival != TOGETHER:
        yield None if work.features.enters_late else (
            "arrival: a sample of this case is no single call that ranks enter")
        yield point.arrival.unfit(max(point.world_size // work.groups, 1), point.mode)


def _identity(
    point: CommonPoint, draft: Draft, env: tuple[tuple[str, str], ...], config: Config,
) -> dict[str, Any]:
    """Return the parameters that identify a case; limits and labels do not."""
    identity: dict[str, Any] = {
        **draft.identity,
        "backend": point.backend, "device": draft.device, "world_size": point.world_size,
        "env": dict(env), "mode": point.mode, "warmup": point.warmup,
        "iterations": point.iterations, "validate": draft.validate,
    }
    if draft.validate and point.check.further:
        identity["checks"] = point.check.further
    if point.mode == "pipelined":
        identity["batch"] = config.measure.batch
    if point.poll_interval_s != config.launch.poll_interval_s:
        identity["wakeup_s"] = point.poll_interval_s
    return identity | {
        name: getattr(value, "text", value) for name, value in point.optional.items()
        if value != point._field_defaults[name]}
