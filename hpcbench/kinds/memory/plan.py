"""The workload of kind memory, and its planner.

A case takes steps of a training, of which the last are followed, or searches for the largest batch
that fits: many tries. Cases are those of trainings, with few steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hpcbench.config.axes import UNCHECKED
from hpcbench.config.section import Block
from hpcbench.errors import ConfigError
from hpcbench.kinds.memory.block import MemoryBlock
from hpcbench.kinds.training.plan import any_model
from hpcbench.kinds.training.plan.build_workload import (
    TrainingPoint,
    make_training,
    training_points,
)
from hpcbench.kinds.training.plan.memory import rank_parameters, states_of
from hpcbench.kinds.training.plan.planner import Instead, TrainingPlanner, case_of, predicted
from hpcbench.kinds.training.plan.predict import is_predicted
from hpcbench.kinds.training.plan.spec import adapters_of
from hpcbench.kinds.training.plan.step import Stage
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case, PlanRequest, case_id
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.plan.points import too_large
from hpcbench.plan.workload import Choice, Ended, Features, Label, Tried, Workload
from hpcbench.records import dataclass
from hpcbench.units import format_bytes


def least_bytes(work: Training) -> int:
    whole = Stage(blocks=tuple(range(work.layers)))
    own = rank_parameters(replace(work, tp=1), whole).local
    return own.held_bytes + own.trained.held_bytes + states_of(work, own.trained, 1)


PARTS = ("parameters", "gradients", "optimizer_state", "activations", "temporary")
"""The parts of the peak; they add up to it: each byte in use is of one of them."""
MOST_SAMPLES = 2**31
_SHARE = 20  # the answer is known when it is known to one part in so many, or to one unit
_FIRST_STEP = 8  # the first step away from what was predicted is one part in so many of it


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the largest batch: multiples of ``unit`` samples, from ``first`` on.

    ``limit_bytes``: of a rank; 0: its share of a grant. ``batch``: that of one try, else 0."""

    unit: int
    first: int
    limit_bytes: int = 0
    batch: int = 0


def next_units(fit: Sequence[int], failed: Sequence[int], first: int, most: int) -> int | None:
    """Return the multiple of the unit that is tried next; None: the largest is known well enough.

    Steps from ``first`` on are doubled until one fits and another does not; then the interval is
    halved."""
    low, high = max(fit, default=0), min(failed, default=None)
    if not fit and not failed:
        return min(first, most)
    step = max(1, first // _FIRST_STEP) << max(len(fit) + len(failed) - 1, 0)
    if high is None:
        return min(low + step, most) if low < most else None
    if high - low <= resolution(low):
        return None
    return (low + high) // 2 if fit else max(high - step, 1)


def resolution(units: int) -> int:
    return max(1, units // _SHARE)


def next_batch(search: Search, ends: Sequence[tuple[int, bool]]) -> int | None:
    """Return the batch that is tried next, after these and whether each fitted; None: none."""
    units = [(batch // search.unit, is_ok) for batch, is_ok in ends]
    units_next = next_units([one for one, is_ok in units if is_ok],
                            [one for one, is_ok in units if not is_ok],
                            max(search.first // search.unit, 1), MOST_SAMPLES // search.unit)
    return None if units_next is None else units_next * search.unit


def bracket_of(tries: Sequence[Mapping[str, Any]]) -> tuple[int, Mapping[str, Any] | None]:
    """Return the largest batch that fitted, 0 if none, and the smallest try that did not."""
    fits = max((one["batch"] for one in tries if one["ended"] == Ended.OK.value), default=0)
    failed = (one for one in tries if one["ended"] != Ended.OK.value)
    return fits, min(failed, key=lambda one: one["batch"], default=None)


def with_batch(work: Training, batch: int) -> Training:
    sized = replace(work, batch_size=batch)
    return replace(sized, flops=any_model.flops_of(
        any_model.model_of(work), sized.global_batch, adapters_of(work)))


def predicted_largest(work: Training, unit: int, limit_bytes: int) -> int | None:
    """Return the largest multiple of the unit that is predicted to fit; 0: none, None: unknown."""
    if not is_predicted(work):
        return None

    def needed(units: int) -> int:
        return predicted(replace(work, batch_size=units * unit))

    most = MOST_SAMPLES // unit
    top = 1
    while top < most and needed(top) <= limit_bytes:
        top = min(2 * top, most)
    return unit * (bisect_right(range(1, top + 1), limit_bytes, key=needed))


@dataclass(frozen=True, slots=True)
class MemoryWork(Workload):
    """The memory of a training: its steps are timed, and two more are followed.

    ``search``: a search for the largest batch that fits, or one try of it."""

    training: Training
    search: Search | None = None

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.training.dtype

    @property
    def groups(self) -> int:  # type: ignore[override]
        return self.training.groups

    def label(self, world_size: int) -> Label:
        first, *rest = self.training.label(world_size).words
        if (search := self.search) is not None:
            limit = [f"limit={format_bytes(search.limit_bytes)}"] if search.limit_bytes else []
            what = f"batch={search.batch}" if search.batch else "batch=largest"
            at = next(at for at, word in enumerate(rest) if word.startswith("batch="))
            rest[at:at + 1] = [what, *limit]
        return Label("memory", [f"memory {first}", *rest])

    def next_try(self, tries: Sequence[Tried]) -> tuple[MemoryWork, Mapping[str, Any]] | None:
        search = self.search
        if search is None or search.batch:
            return None
        batch = next_batch(search, [
            (one.values["batch"], one.ended is Ended.OK) for one in tries])
        return None if batch is None else (MemoryWork(
            with_batch(self.training, batch), replace(search, batch=batch)), {"batch": batch})

    def choice(self) -> Choice:
        """Return the axes without a task: memory counts, not time."""
        axes = dict(self.training.choice().axes)
        if self.search is not None:
            del axes["batch_size"]
            axes |= {"largest_batch": True, "memory_limit": self.search.limit_bytes}
        return Choice(axes, None)

    @property
    def features(self) -> Features:
        """Return the features of the training, but no profiles and no compiled graphs."""
        return self.training.features._replace(profiled_for=frozenset(), compiled_graphs=0,
                                               dry_run_workload=None, is_for_time=False)

    def to_json(self) -> dict[str, Any]:
        searched = {"search": asdict(self.search)} if self.search else {}
        return {"training": self.training.to_json(), **searched}


def work_of(case: Case) -> MemoryWork:
    if not isinstance(case.workload, MemoryWork):
        raise TypeError(f"{case.label} measures no memory")
    return case.workload


if TYPE_CHECKING:
    from hpcbench.config.schema import Config


_MOST_PARTS = 64  # the most that the parts of a batch are multiplied with to find a unit
_TRIES, _TRIES_FROM_ONE = 4, 12
"""Assumed: from what is predicted, and from one unit where no limit is known before."""
_START_S = 1.5  # assumed of new workers for each try


def searches(title: str, block: MemoryBlock, job: PlanRequest) -> Iterator[Case]:
    if block.memory_limit and job.config.launch.memory_limit_gb:
        raise ConfigError(f"benchmarks: {title}: memory_limit and launch.memory_limit_gb both "
                          "limit the workers; take one of the two away")
    instead = Instead(job)
    for point in training_points(title, block, job):
        for limit_bytes in block.memory_limit or (0,):
            yield _search(title, block, job, point, limit_bytes, instead)


def _search(
    title: str, block: MemoryBlock, job: PlanRequest, point: TrainingPoint, limit_bytes: int,
    instead: Instead,
) -> Case:
    unit = _unit(point)
    case = case_of(title, block, job, _with_batch(point, unit), instead)
    hardware, launch = job.config.hardware, job.config.launch
    known_bytes = limit_bytes or (
        int((hardware.memory_per_device_gb or 0) * 1e9)  # what a rank may use as declared
        if hardware.device_type in (None, case.device) else 0)
    first = predicted_largest(training_of(case), unit, known_bytes) if (
        known_bytes and not case.skip) else None
    work = MemoryWork(replace(training_of(case), count_step=False),
                      Search(unit, first or unit, known_bytes))
    skip = case.skip or too_large(limit_bytes, 0, case.device, hardware)
    if not case.skip and (launch.inline or case.backend in INLINE_BACKENDS):
        skip = ("largest_batch needs a new process for each try: not with --inline, torchrun or "
                "backend mpi, whose workers are the ranks' own processes")
    tries = _TRIES if known_bytes else _TRIES_FROM_ONE
    unproved = point._replace(common=point.common._replace(check=UNCHECKED))
    return replace(
        case, workload=work, skip=skip, needs=() if skip else case.needs,
        case_id=case_id({"kind": block.kind, "of": case.case_id, "limit_bytes": limit_bytes}),
        # a requested limit has to be there; of a share of what is there only one unit is needed
        memory_bytes=limit_bytes or case.memory_bytes,
        memory_error=0.0 if limit_bytes else case.memory_error,
        estimate_s=0.0 if skip else tries * (_START_S + case_of(
            title, block, job, _with_batch(unproved, first or unit), instead).estimate_s))


def _with_batch(point: TrainingPoint, batch: int) -> TrainingPoint:
    return point._replace(setting=point.setting._replace(batch_size=batch))


def _unit(point: TrainingPoint) -> int:
    """Return the smallest batch that the point can divide; else one sample a part."""
    parts = point.setting.accumulation
    return next((parts * count for count in range(1, _MOST_PARTS + 1)
                 if make_training(_with_batch(point, parts * count))[1] is None), parts)


_STEPS = {"warmup": (1,), "iterations": (2,)}
"""Steps where a block gives none: a step holds the same again and again, once it has states."""


class MemoryPlanner(TrainingPlanner):
    """Plans the memory use of trainings, as the planner of trainings plans them."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, MemoryBlock)
        return {**super().lengths(block, config),
                "memory_limit": len(block.memory_limit or (None,))}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, MemoryBlock)
        block = block.model_copy(update={
            name: steps for name, steps in _STEPS.items() if getattr(block, name) is None
            and not (name == "iterations" and block.max_steps)})
        if block.largest_batch:
            yield from searches(title, block, job)
            return
        for case in super().cases(title, block, job):
            # steps are followed here: none need be counted, too
            training = replace(training_of(case), count_step=False)
            yield replace(case, workload=MemoryWork(training),
                          case_id=case_id({"kind": block.kind, "of": case.case_id}))

    def workload_from_json(self, data: Mapping[str, Any]) -> MemoryWork:
        search = Search(**data["search"]) if data.get("search") else None
        training = super().workload_from_json(data["training"])
        assert isinstance(training, Training)
        return MemoryWork(training, search)

    def advice(self, work: Workload, available_bytes: int) -> str:
        assert isinstance(work, MemoryWork)
        if work.search:  # it searches for such a setting itself
            return f"give memory_limit {available_bytes} or less" if not work.search.batch else ""
        return super().advice(work.training, available_bytes)

