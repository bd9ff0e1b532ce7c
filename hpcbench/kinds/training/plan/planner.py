"""The planner of trainings, how long they take untimed, and what would fit into memory.

A pass takes parity and the counted step beside its timed steps; the runner decides by the same
figures what parity is tried on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbench.config.axes import library_of
from hpcbench.config.section import Block
from hpcbench.kinds.training.block import TrainingBlock
from hpcbench.kinds.training.plan import build_workload
from hpcbench.kinds.training.plan.any_model import NAMES, neighbours, parameters_of, published
from hpcbench.kinds.training.plan.build_workload import why_not
from hpcbench.kinds.training.plan.memory import (
    ERROR,
    activations_on_host,
    memory_of,
    moments,
    offloaded_bytes,
)
from hpcbench.kinds.training.plan.models import ATTENTION
from hpcbench.kinds.training.plan.predict import Demands, predict
from hpcbench.kinds.training.plan.spec import (
    Degrees,
    StrategySpec,
    adapters_of,
    is_ours,
    layout_of,
    strategies,
    strategy,
)
from hpcbench.kinds.training.plan.step import busiest_stages
from hpcbench.kinds.training.plan.workload import (
    CHUNKED,
    CROSS_ENTROPY,
    OFFLOAD,
    USUAL,
    Training,
)
from hpcbench.plan import points
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.order import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s
from hpcbench.plan.support import resolve_device, unfit_world, unsupported
from hpcbench.plan.workload import Workload
from hpcbench.units import grouped, round_bytes

COUNTED_STEPS = 2.5
"""The time of the counted step, in steps, at most; measured on the CPU: 1.2 to 2.5."""
WATCHED_STEPS = 3  # of experts, in which ranks note how long they wait
MOST_PARAMETERS = 20_000_000
"""For a model that is tried itself: the reference takes 16 bytes for each, in fp64."""
MOST_FLOPS = 2e10
"""For its reference, 6 for a parameter and token: seconds of one core in fp64. Larger models are
tried in a short step, beside a small one."""
MOST_S = 15.0
"""For the short step, by the two rates below: a case has 60 s unless it is given others."""
SHORT_TOKENS = 16  # of each sample of a short step
_SMALL_S = 0.5  # a comparison with a model that is made small for it
_WHOLE_S = 0.3
"""For any comparison, however small. Measured: whole cases of 0.35 s (data) to 0.9 s (qlora)."""
_IMPORTS_S = 3.5
"""For modules that a training needs, which new workers import. Measured: 3.5 s of a core more in
the first qlora case of workers."""
_PARAMETER_S = 2.5e-7
"""Time of one host thread for each parameter: the reference, weights and states are passed over
dozens of times, on GPUs, too. Measured: 28 s for 124 M parameters."""
_FLOPS_PER_S = {"cpu": 1e10, "cuda": 5e11}
"""In fp64, assumed: of a core, and of a GPU that is not made for it."""
_FINGERPRINT_S = 1.2e-8
"""For a core and parameter, over three passes; measured: 0.45 s a pass of 124 M parameters."""


def is_compared_whole(parameters: int, tokens: int) -> bool:
    return parameters <= MOST_PARAMETERS and 6.0 * parameters * tokens <= MOST_FLOPS


def comparison_s(parameters: int, tokens: int, kind: str) -> float:
    rate = _FLOPS_PER_S.get(kind, _FLOPS_PER_S["cpu"])
    return parameters * (_PARAMETER_S + 6.0 * tokens / rate)


def untimed_s(work: Training, step_s: float, kind: str, *, checked: bool) -> float:
    """Return the assumed seconds of imports, the counted step and parity."""
    counts = work.count_step and work.communication != "only"
    steps = COUNTED_STEPS + WATCHED_STEPS * (layout_of(work).experts is not None)
    return (bool(work.features.needs) * _IMPORTS_S + counts * steps * step_s
            + (checked and work.trains) * _parity_s(work, step_s, kind))


def _parity_s(work: Training, step_s: float, kind: str) -> float:
    if work.tokens is None:
        return _SMALL_S
    if is_compared_whole(work.parameters, work.tokens):
        return _WHOLE_S + comparison_s(work.parameters, work.tokens, kind)
    samples = work.dp * work.accumulation
    seconds = comparison_s(work.parameters, samples * min(work.seq_length, SHORT_TOKENS), kind)
    return (_SMALL_S + step_s + work.parameters * _FINGERPRINT_S
            + (seconds if seconds <= MOST_S else 0.0))


Setting = Mapping[str, Any]
_KEYS = {"batch_size", "accumulation", "checkpointing", "loss"}
_TRIED = 4096  # the most values of a setting that are tried for one that the strategy can take
_CHECKPOINTINGS = ("none", "operators", "selective", "full")
"""From the least recomputation to the most; operators, which repeat no product, may keep most."""


def advice(work: Training, available: int) -> str:
    """Return a rank's predicted need, and settings that fit into ``available`` bytes.

    ``predicted 5.2 GiB; to fit, as predicted: batch_size 4, or accumulation 2``: see `settings`. A
    prediction that would have fitted was too low: then half of it is aimed at."""
    needed = predicted(work)
    fitting = settings(work, available if needed > available else needed // 2)
    if not fitting:
        fixed = max(memory.total - memory.activations
                    for stage in busiest_stages(work) for memory in moments(work, stage))
        return (f"predicted {round_bytes(needed)}; no batch_size fits: {round_bytes(fixed)} of it "
                "are no activations")
    fitting_text = ", or ".join(" with ".join(
        f"{name} {str(value).lower()}" for name, value in setting.items()) for setting in fitting)
    if needed > available:
        return f"predicted {round_bytes(needed)}; to fit, as predicted: {fitting_text}"
    return f"predicted {round_bytes(needed)}, more was needed; to need half as much: {fitting_text}"


def settings(work: Training, budget: int) -> list[Setting]:
    """Return settings of a sweep file with which a training is predicted to fit.

    The mildest value of each setting alone. If only smaller batches are among them, also several
    settings together that leave the batch as it is; if nothing is, a smaller batch with those."""
    samples = work.batch_size
    alone = [*_mildest(work, budget, "batch_size", range(samples - 1, 0, -1)),
             *_mildest(work, budget, "accumulation", range(work.accumulation + 1, samples + 1)),
             *(setting for group in _choices(work)
               for setting in islice(_fitting(work, budget, group), 1))]
    if any("batch_size" not in setting and "accumulation" not in setting for setting in alone):
        return alone
    together = next(_together(work, budget), None)
    return [*alone, together] if together else alone or [*_smaller(work, budget)]


def predicted(work: Training) -> int:
    return max(memory_of(work, stage).total for stage in busiest_stages(work))


def changed(work: Training, setting: Setting) -> Training | None:
    """Return a training with other settings or options; None where it cannot be trained so."""
    left = dict(setting)
    to = left.pop("strategies", work.strategy)
    spec = strategy(to)
    if spec is None:
        return None
    own = {name: left.pop(name) for name in setting if name in spec.options}
    if left.keys() - _KEYS:
        return None  # an option that another strategy has
    options: dict[str, points.Option] = {
        name: values.default for name, values in spec.options.items()}
    options |= own if to != work.strategy else {**dict(work.options), **own}
    other = replace(work, **left, strategy=to, options=points.in_order(spec.without_idle(options)))
    usable = spec.ineffective(options) is None and why_not(other, spec) is None
    return other if usable else None


def _choices(work: Training) -> list[list[Setting]]:
    """Return settings that leave the batch as it is, the mildest of each list first.

    Options of our strategies are among them if they are on or off: these change no result."""
    spec, now, ranks = strategy(work.strategy), dict(work.options), work.ranks
    ours = spec if spec and is_ours(spec) else None
    switched: list[list[Setting]] = [
        [{name: not now.get(name, values.default)}]
        for name, values in (ours.options.items() if ours else ()) if type(values.default) is bool]
    sharding: list[Setting] = []  # the same training on the same ranks, more divided
    if ours and ranks > 1 and not ours.divides_model and not adapters_of(work):
        for other in strategies():
            options = {name: values.default for name, values in other.options.items()}
            divided = replace(work, strategy=other.name, options=points.in_order(options))
            if (other.order > ours.order and is_ours(other) and not other.divides_model
                    and not adapters_of(divided)
                    and isinstance(other.degrees(ranks, options), Degrees)):
                sharding.append({"strategies": other.name})
    stronger = {**{name: at + 1 for at, name in enumerate(_CHECKPOINTINGS)}, ATTENTION: 1}
    return [[{"checkpointing": value}
             for value in _CHECKPOINTINGS[stronger.get(work.checkpointing, 2):]],
            [{"loss": CHUNKED}] if work.loss == CROSS_ENTROPY else [], *switched, sharding]


def _together(work: Training, budget: int) -> Iterator[Setting]:
    """Yield the fewest settings together that fit; first those that compute nothing again."""
    again, *others = _choices(work)
    helping = [setting for group in (*others, again) for setting in _saving_most(work, group)]
    for count in range(2, len(helping) + 1):
        yield from _fitting(work, budget, map(_all_of, combinations(helping, count)))


def _saving_most(work: Training, group: Iterable[Setting]) -> Sequence[Setting]:
    needed = [(predicted(other), at, setting) for at, setting in enumerate(group)
              if (other := changed(work, setting)) is not None]
    least = min(needed, default=None)
    return [least[2]] if least and least[0] < predicted(work) else []


def _all_of(settings_: Iterable[Setting]) -> Setting:
    return {name: value for one in settings_ for name, value in one.items()}


def _smaller(work: Training, budget: int) -> Iterator[Setting]:
    groups = [_saving_most(work, group) for group in _choices(work)]
    whole, sharded = (_all_of(setting for group in chosen for setting in group)
                      for chosen in (groups[:-1], [*groups[:2], groups[-1]]))
    batches = range(work.batch_size - 1, 0, -1)
    for setting in ({"checkpointing": "full"}, whole, sharded):
        other = changed(work, setting)
        for milder in _mildest(other, budget, "batch_size", batches) if other else ():
            yield {**milder, **setting}
            return


def _fitting(work: Training, budget: int, each: Iterable[Setting]) -> Iterator[Setting]:
    for setting in each:
        other = changed(work, setting)
        if other is not None and predicted(other) <= budget:
            yield setting


def _mildest(work: Training, budget: int, name: str, values: Sequence[int]) -> Iterator[Setting]:
    """Yield the first value that fits, by bisection."""
    def fits(value: int) -> bool:
        setting: Setting = {name: value}
        return predicted(replace(work, **setting)) <= budget

    first = bisect_left(values, True, key=fits)
    usable = ({name: value} for value in values[first:first + _TRIED]
              if changed(work, {name: value}))
    yield from islice(usable, 1)


if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware


_AXES = ("model", "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length",
         "width", "classes", "image_size", "batch_size", "accumulation", "optimizer",
         "checkpointing", "communication", "data", "library", "compile", "precision",
         "offload_state", "loss", "checkpoint_every", "documents", "max_steps", "lora_rank",
         *points.COMMON_AXES)
_FOLLOWS = ("family", "changed", "shrunk", "named_extents", "dp", "tp", "pp", "cp",
            "parameters", "flops", "calls", "adapters", "modules", "count_step",
            "checkpoint_folder")
"""Fields that follow from the rest of a training, or do not identify it."""


class TrainingPlanner(Planner):
    """Plans trainings."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, TrainingBlock)
        return {**points.listed_lengths(block, _AXES),
                "strategies": points.number_of_sets(block.strategies)}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, TrainingBlock)
        instead = Instead(job)
        for point in build_workload.training_points(title, block, job):
            yield case_of(title, block, job, point, instead)

    def problems(self, block: Block) -> Iterator[str]:
        assert isinstance(block, TrainingBlock)
        return build_workload.block_problems(block)

    def workload_from_json(self, data: Mapping[str, Any]) -> Workload:
        """Rebuild a training, also of earlier versions, which had smaller models only."""
        kept = {name: value for name, value in data.items() if name != "runner"}
        return Training(**{
            **kept, "options": tuple((str(name), value) for name, value in data["options"]),
            "flops": tuple((str(name), int(count)) for name, count in data["flops"]),
            "changed": data.get("changed", data["shrunk"]),
            "named_extents": tuple(
                (str(name), int(value)) for name, value in data.get("named_extents", ())),
            "architecture": _unchanging(data.get("architecture", ())),
            "calls": tuple(data["calls"]), "modules": tuple(data.get("modules", ()))})

    def advice(self, work: Workload, available_bytes: int) -> str:
        assert isinstance(work, Training)
        return advice(work, available_bytes)


def _unchanging(value: Any) -> Any:
    return tuple(map(_unchanging, value)) if isinstance(value, (list, tuple)) else value


def case_of(
    title: str, block: TrainingBlock, job: PlanRequest, point: build_workload.TrainingPoint,
    instead: Instead,
) -> Case:
    return points.assemble(title, block, job, point.common, _draft(point, job, instead))


class _Tried(NamedTuple):
    """What a point becomes, and why it cannot run, or None; ``is_unfit``: by its extents or options
    themselves, whatever the job."""

    work: Training
    device: str
    reason: str | None
    is_unfit: bool


def _tried(point: build_workload.TrainingPoint, job: PlanRequest) -> _Tried:
    common = point.common
    work, unfit = build_workload.make_training(point)
    device = resolve_device(common.backend, common.device)
    elsewhere = unfit_world(common.backend, common.world_size, job.world_size)
    return _Tried(
        work, device, elsewhere or unfit or unsupported(
            common.backend, device, work.features.calls) or _without_effect(work, device),
        bool(unfit) and not elsewhere)


_ON_HOST = ("cpu", "mps")
"""Devices whose memory is the host's."""


def _without_effect(work: Training, device: str) -> str | None:
    if device not in _ON_HOST:  # auto may become a GPU
        return None
    if work.offload_state:
        return (f"offload_state=True has no effect on {device}: states are in the host's memory "
                "already")
    if work.checkpointing == OFFLOAD:
        return (f"checkpointing {OFFLOAD} has no effect on {device}: activations are in the host's "
                "memory already")
    return None


def _too_large(tried: _Tried, expected: Demands, job: PlanRequest) -> str | None:
    return points.too_large(expected.memory.total, 0, tried.device, job.config.hardware, ERROR)


_MOST_SEARCHES = 32
"""Of a block: one tries some hundred values, which takes a tenth of a second."""


class Instead:
    """Single extents with which unfit points of a block could run: the nearest values that are
    planned. They are searched once for each reason, and tried for each further point that has it.
    """

    def __init__(self, job: PlanRequest) -> None:
        self._job = job
        self._found: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {}

    def words(self, point: build_workload.TrainingPoint, reason: str) -> str:
        """Return ``hidden=256 or 384, or heads=4``; nothing where no single value is found."""
        key = (point.strategy.name, reason)
        found = self._found.get(key)
        if found is None and len(self._found) < _MOST_SEARCHES:
            found = self._found[key] = tuple(self._search(point))
        else:
            found = tuple(one for one in found or () if self._runs(point, *one))
        named = grouped(found)
        return ", or ".join(f"{name}={' or '.join(map(str, values))}"
                            for name, values in named.items())

    def _search(self, point: build_workload.TrainingPoint) -> Iterator[tuple[str, int]]:
        for name, value, near in neighbours(point.model, dict(point.extents)):
            for side in ([other for other in near if other < value][::-1],
                         [other for other in near if other > value]):
                for other in side:
                    if self._runs(point, name, other):
                        yield name, other
                        break

    def _runs(self, point: build_workload.TrainingPoint, name: str, value: int) -> bool:
        extents = tuple({**dict(point.extents), name: value}.items())
        tried, limit = _tried(point._replace(extents=extents), self._job), self._job.config.hardware
        return tried.reason is None and (limit.memory_per_device_gb is None or _too_large(
            tried, predict(tried.work), self._job) is None)  # else nothing needs the prediction


def _draft(
    point: build_workload.TrainingPoint, job: PlanRequest, instead: Instead,
) -> points.Draft:
    common, hardware = point.common, job.config.hardware
    tried = work, device, reason, is_unfit = _tried(point, job)
    expected = Demands() if reason else predict(work)
    if is_unfit and reason and (others := instead.words(point, reason)):
        reason = f"{reason}; take {others}"
    if large := _too_large(tried, expected, job):
        _, _, fitting = advice(
            work, int((hardware.memory_per_device_gb or 0) * 1e9)).partition("; ")
        reason = f"{large}; {fitting}"  # without the need, which is stated
    reason = reason or _never_due(work, common, job)
    checked = common.validate and work.communication != "only"  # which has no result
    step_s = _step_s(
        work, expected, device, library_of(common.backend, device), hardware)
    return points.Draft(
        workload=work, device=device, validate=checked,
        memory_bytes=expected.memory.total, memory_error=ERROR, skip=reason,
        host_bytes=0 if reason else _copied_bytes(work, expected) + offloaded_bytes(work),
        estimate_s=(setup_s(work, device_kind(device))
                    + points.least_calls(common, job.config) * step_s
                    + untimed_s(work, step_s, device_kind(device), checked=checked)),
        identity=_identity(work, point.strategy))


def _never_due(work: Training, common: points.CommonPoint, job: PlanRequest) -> str | None:
    most = common.warmup + points.sample_bounds(common, job.config)[1]
    return (f"checkpoint_every={work.checkpoint_every} is never due: a pass takes {most} steps, "
            f"warm-ups counted; take {most} or less") if work.checkpoint_every > most else None


def _step_s(
    work: Training, expected: Demands, device: str, library: str, hardware: Hardware,
) -> float:
    """Return the assumed seconds of a step: the sum for the rank with most to do."""
    kind = device_kind(device)
    rate = bytes_per_s(kind, hardware, work.ranks)
    return max(one.hardware_flops / FLOPS_PER_S[kind] + one.collectives * ALPHA_S[kind]
               + one.carried_on(library) / rate for one in expected.of_ranks)


def _copied_bytes(work: Training, expected: Demands) -> int:
    """Return the bytes of a rank that are copied to the host: parameters and states, by a
    checkpoint, and activations that are offloaded."""
    memory = expected.memory
    copied = (memory.parameters + memory.optimizer) * bool(work.checkpoint_every)
    return copied + max((int(stage.in_flight * activations_on_host(work, stage))
                         for stage in busiest_stages(work)), default=0)


def _identity(work: Training, spec: StrategySpec) -> dict[str, Any]:
    """Return the fields that identify a training, without later defaults: old ids remain."""
    usual = {"architecture": (), "communication": "on", **USUAL}
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
        "strategies": {
            spec.name: {"meaning": spec.meaning, "options": points.described(spec.options)}
            for spec in strategies()}}
