"""Specifications of strategies for plans (docs/training.md, docs/plugins.md), and their registry.

How a training lies on its ranks, the schedules of pipelines, which are those of
torch.distributed.pipelining under its names, and what data-parallel ranks exchange in a step. Sizes
are those of nccl-tests; bytes on the wire are sizes times busbw factors. Counts are those of torch
2.13: a test compares them with the calls that a step makes.

Strategies of this package are ``SPECS`` of `strategies`. A plug-in names its `StrategySpec` by an
entry point of the group ``hpcbench.strategies``. Where the strategy of a training is not installed,
defaults are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from functools import cache, lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from hpcbench.config.axes import unknown_name
from hpcbench.config.section import OptionAxes
from hpcbench.kinds.training.plan.models import Adapters, Parameters, Tensor, of_each
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.collectives import collective_spec
from hpcbench.operations.loads import Load
from hpcbench.plan.points import NO_OPTIONS, Option, Values, in_order
from hpcbench.records import dataclass
from hpcbench.registry import Registry


@dataclass(frozen=True, slots=True)
class Schedule:
    """One order of forwards and backwards of micro-batches, by torch's name.

    Stages per rank: from ``stages_per_rank`` to ``most_stages`` (None: any). ``placement`` ``v``:
    the first and the last stage are on rank 0. ``full``: needs as many micro-batches as stages.
    ``rounds``: micro-batches go in equal rounds. ``halves``: gradients of activations and weights
    are apart."""

    name: str
    stages_per_rank: int
    most_stages: int | None
    placement: Literal["loop", "v"] = "loop"
    full: bool = False
    rounds: bool = False
    halves: bool = False


SCHEDULES = (
    Schedule("1F1B", 1, 1, full=True),
    Schedule("GPipe", 1, 1),
    Schedule("Interleaved1F1B", 2, None, rounds=True),
    Schedule("LoopedBFS", 2, None),
    Schedule("InterleavedZeroBubble", 2, None, rounds=True, halves=True),
    Schedule("ZBVZeroBubble", 2, 2, placement="v", halves=True),
    Schedule("DualPipeV", 2, 2, placement="v", full=True, halves=True),
)
AUTO = "auto"  # for ``stages_per_rank``: as many as the schedule needs
SCHEDULE_NAMES = tuple(schedule.name for schedule in SCHEDULES)


def schedule_of(name: str) -> Schedule:
    return {schedule.name: schedule for schedule in SCHEDULES}[name]


class Pipelining(NamedTuple):
    """The schedule, stages and micro-batches of a pipeline."""

    schedule: Schedule
    stages_per_rank: int
    microbatches: int


def stages_on(schedule: Schedule, ranks: int, rank: int, stages_per_rank: int) -> tuple[int, ...]:
    if schedule.placement == "v":
        return rank, 2 * ranks - 1 - rank
    return tuple(range(rank, ranks * stages_per_rank, ranks))


def layers_on(layers: int, stages: int, stage: int) -> range:
    """Return the layers of a stage. Those that are left over go to one stage each, from the second
    on: so the first and the last, which have embedding and head, have fewer (Llama 3, arXiv
    2407.21783, section 3.3.2; torchtitan)."""
    each, more = divmod(layers, stages)

    def begin(of: int) -> int:
        return of * each + min(max(of - (more < stages - 1), 0), more)

    return range(begin(stage), begin(stage + 1))


def unscheduled(
    schedule: Schedule, ranks: int, stages_per_rank: int, microbatches: int,
) -> str | None:
    name, stages = schedule.name, ranks * stages_per_rank
    if stages_per_rank < schedule.stages_per_rank:
        return f"{name} needs {schedule.stages_per_rank} stages per rank, not {stages_per_rank}"
    if schedule.most_stages is not None and stages_per_rank > schedule.most_stages:
        return f"stages per rank: {name} has {schedule.most_stages}, not {stages_per_rank}"
    if schedule.full and microbatches < stages:
        return (f"{name} needs as many micro-batches as stages: {microbatches} micro-batches are "
                f"fewer than {stages} stages")
    count = max(1, microbatches // ranks)
    if schedule.rounds and microbatches % count:
        return (f"{name} deals micro-batches in rounds of equal size: {microbatches} cannot be "
                f"divided evenly into {count} rounds")
    return None


def fewer_microbatches(pipelined: Pipelining, ranks: int) -> tuple[int, ...]:
    """Return two numbers of micro-batches that the schedule takes, from which the calls of all
    follow; nothing where that saves less than half."""
    schedule, per_rank, microbatches = pipelined
    step = ranks if schedule.rounds else 1
    fewest = ranks * per_rank
    counts = fewest, fewest + step
    fit = (microbatches - fewest) % step == 0 and 2 * sum(counts) <= microbatches
    return counts if fit and not any(
        unscheduled(schedule, ranks, per_rank, count) for count in counts) else ()


@dataclass(frozen=True, slots=True)
class Groups:
    """How parameters that are gathered block by block are spread.

    ``copies`` groups of ``shards`` ranks; an element is gathered in ``element_bytes``, its gradient
    exchanged in ``gradient_bytes``. ``reshard``: freed between forward and backward. ``rounds`` of
    gathering and ``exchanges`` of gradients a step."""

    shards: int = 1
    copies: int = 1
    element_bytes: int = 4
    gradient_bytes: int = 4
    reshard: bool = False
    rounds: int = 1
    exchanges: int = 1


@dataclass(frozen=True, slots=True)
class Buckets:
    """How DistributedDataParallel exchanges gradients: in buckets of ``mib`` MiB.

    ``are_views``: gradients lie in the buckets. ``hook``: in what form they travel."""

    mib: int
    are_views: bool = False
    hook: str = "none"


@dataclass(frozen=True, slots=True)
class TokenSharing:
    """How attention reaches the tokens of other ranks, which share each sample.

    ``by_heads``: each has some heads of all tokens meanwhile (Ulysses), else keys and values pass
    by (ring): ``gathered`` at once, or from neighbour to neighbour. ``zigzag``: a rank has two
    parts of a sample, one counted from each end, which under a causal mask are equally much work.
    """

    by_heads: bool = False
    zigzag: bool = False
    gathered: bool = True


SCALED_BLOCK = 128
"""Values of a row that share a scale where they travel to experts in 8 bits, as in DeepEP."""
_SCALE_BYTES = 4  # fp32


class Spread(NamedTuple):
    """``ep``: ranks that divide the experts; ``dedup``: see `operations.loads.DEDUPS`.

    ``load`` is balanced where the ``router`` decides in each step: all that follows from it is then
    no prediction, but what a balanced load would be.
    ``capacity_factor``: how many of a rank's tokens an expert takes at most, over the mean of all
    (GShard, arXiv:2006.16668, section 2.2); 0: all. As in Megatron-LM, the first ones stay, and
    what is dropped leaves the weights of the others as they are.
    ``in_8_bits``: what goes to experts is e4m3, tokens and in backward gradients of results
    (DeepSeek-V3, arXiv:2412.19437, section 3.3.3); what comes back is in the dtype."""

    ep: int
    load: Load
    dedup: str
    capacity_factor: Fraction
    router: bool
    in_8_bits: bool = False

    def sent_bytes(self, hidden: int, element: int) -> int:
        """Return the bytes of a row on its way to experts; a block that is not full travels whole.
        """
        blocks = -(-hidden // SCALED_BLOCK)
        return blocks * (SCALED_BLOCK + _SCALE_BYTES) if self.in_8_bits else hidden * element


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts that are divided, copied and cast, and the exchange of gradients: a strategy states
    the differences from a rank that trains the whole model by itself.

    ``groups``: parameters that are handled block by block (FSDP). ``buckets``: DDP.
    ``state_ranks``: ranks that divide optimizer states alone (ZeRO stage 1). ``by_tokens``:
    sequence parallel, ``by_words``: loss parallel. ``adapters``: all that is trained, if set.
    ``balanced``: dynamic shares. ``context``: ranks share the tokens of a sample. ``experts``: how
    experts are spread over neighbours, those with other samples or parts of them."""

    groups: Groups | None = None
    buckets: Buckets | None = None
    state_ranks: int = 1
    by_tokens: bool = False
    by_words: bool = False
    pipeline: Pipelining | None = None
    adapters: Adapters | None = None
    balanced: bool = False
    context: TokenSharing | None = None
    experts: Spread | None = None

    @property
    def shards(self) -> int:
        return self.groups.shards if self.groups else 1

    @property
    def expert_groups(self) -> Groups | None:
        """Return how experts that ranks divide are spread over those that have the same."""
        groups, ep = self.groups, self.experts.ep if self.experts else 1
        if groups is None or ep == 1:
            return None
        return (replace(groups, shards=groups.shards // ep) if groups.shards > 1 else
                replace(groups, copies=groups.copies // ep))


_WIRE = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Times (n - 1) / n: the busbw factor on n ranks."""
_COMPRESSED = {"bf16": 2, "fp16": 2}
"""Bytes of a gradient's element under a comm hook of DDP."""
_KEPT = 256  # counts of calls that are kept: a sweep asks for them again with each batch
_WORTH = 2
"""PowerSGD compresses a matrix if that saves more than this factor (its min_compression_rate)."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one collective in one step: how many, their sizes, these times busbw factors."""

    collective: str
    count: int
    size_bytes: int
    wire_bytes: int

    def carried_on(self, library: str) -> int:
        """Return the bytes that the links of a backend's library carry."""
        return self.wire_bytes * collective_spec(self.collective).carried_on(library)


def calls(collective: str, ranks: int, sizes: Sequence[int]) -> Calls:
    if ranks == 1:
        return Calls(collective, 0, 0, 0)
    size = sum(sizes)
    wire = _WIRE[collective] * size * (ranks - 1) // ranks if collective in _WIRE else size
    return Calls(collective, len(sizes), size, wire)


def together(parts: Iterable[Calls]) -> tuple[Calls, ...]:
    totals: dict[str, Calls] = {}
    for part in parts:
        total = totals.get(part.collective, Calls(part.collective, 0, 0, 0))
        totals[part.collective] = Calls(
            part.collective, total.count + part.count, total.size_bytes + part.size_bytes,
            total.wire_bytes + part.wire_bytes)
    return tuple(part for part in totals.values() if part.count)


@lru_cache(maxsize=_KEPT)
def ddp_calls(
    parameters: Parameters, ranks: int, bucket_mb: int, hook: str = "none",
) -> tuple[Calls, ...]:
    """Return DDP's calls: an all_reduce of each bucket of gradients.

    Of fp32 the hooks ``bf16`` and ``fp16`` halve them. ``powersgd`` of rank 1 (Vogels et al., arXiv
    1905.13727) has three for each bucket: uncompressed tensors, all P and all Q."""
    filled = buckets(parameters.tensors, bucket_mb)
    if hook != "powersgd":
        sizes = [sum(item.elements * _COMPRESSED.get(hook, item.element_bytes) for item in bucket)
                 for bucket in filled]
        return (calls("all_reduce", ranks, sizes),)
    return (calls("all_reduce", ranks, [4 * part for bucket in filled
                                        for part in _powersgd(bucket)]),)


def buckets(parameters: Sequence[Tensor], bucket_mb: int) -> list[list[Tensor]]:
    """Return the buckets of DDP in backward's order; each is full once it has ``bucket_mb`` MiB."""
    filled: list[list[Tensor]] = []
    space = 0
    for parameter in reversed(parameters):
        if space <= 0:
            filled.append([])
            space = bucket_mb * 2**20
        filled[-1].append(parameter)
        space -= parameter.held_bytes
    return filled


def _powersgd(bucket: Sequence[Tensor]) -> tuple[int, int, int]:
    """Return the elements that are not compressed, those of all P, and those of all Q."""
    shapes = [(item.extents[0], item.elements // item.extents[0]) for item in bucket]
    worth = [(rows, columns) for rows, columns in shapes
             if (rows + columns) * _WORTH < rows * columns]
    rest = sum(rows * columns for rows, columns in shapes if (rows, columns) not in worth)
    return rest, sum(rows for rows, _ in worth), sum(columns for _, columns in worth)


@lru_cache(maxsize=_KEPT)
def sharded_bytes(group: Parameters, shards: int, element_bytes: int) -> int:
    """Return the size of parameters that FSDP gathers together, each padded to equal shards."""
    return sum(-(-item.extents[0] // shards) * shards * (item.elements // item.extents[0])
               * travelling_bytes(item, element_bytes) for item in group.tensors)


def travelling_bytes(item: Tensor, element_bytes: int) -> int:
    return 1 if item.element_bytes == 1 else element_bytes


def fsdp_calls(
    blocks: Sequence[Parameters], roots: Sequence[Parameters], groups: Groups,
) -> list[Calls]:
    """Return FSDP's calls for blocks, and for the roots that are gathered with none of them.

    Blocks are gathered in forward and, if ``reshard``, again in backward; gradients are scattered
    and averaged over copies (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 7)."""
    again = blocks if groups.reshard else ()
    gathered = of_each(lambda group: sharded_bytes(group, groups.shards, groups.element_bytes),
                       (*blocks, *roots, *again))
    scattered = of_each(lambda group: sharded_bytes(group, groups.shards, groups.gradient_bytes),
                        [group.trained for group in (*blocks, *roots) if group.trained.tensors])
    averaged = [size // groups.shards for size in scattered] * groups.exchanges
    traffic = []
    if groups.shards > 1:
        traffic = [calls("all_gather", groups.shards, gathered * groups.rounds),
                   calls("reduce_scatter", groups.shards, scattered * groups.exchanges)]
    if groups.copies > 1:
        traffic.append(calls("all_reduce", groups.copies, averaged))
    return traffic


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the ranks of a job are divided: replicas, and ranks of each by tensor, pipeline and
    context, the tokens of a sample."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """One strategy to spread a training step over ranks: plain data and pure functions, without
    torch.

    Attributes:
        runner: ``module:class`` of its `Strategy`, or of a function that returns one.
        degrees: how so many ranks are divided under these options, or why they cannot be.
        calls: the collectives of torch.distributed that a step makes.
        unfit: why a training does not suit it (heads, layers, micro-batches ...), or None.
        layout: what is divided, copied and cast; memory and traffic are predicted from it.
        traffic: calls of a rank with these parameters beyond what follows from the layout.
        options: its options; degrees are options named ``tp``, ``pp`` and ``cp``.
        together: defaults where a sweep sets none of these options.
        idle: which options have no effect, and under which of the others (``with tp=1``).
        later_options: options that are newer than results; their defaults are no part of an id.
        ranks: on how many it runs where a sweep has ``all``; None: on all of the job.
        modules: Python modules that it needs beside torch.
        divides_model: whether a rank has a part of each layer, or some of the layers.
        trained_part: the trained part if not the whole model; the same for all layouts.
        alone_by: setting by which a training is one of one rank (``over=single``), or nothing.
        cuts: options that only cut calls into pieces: with equal predicted calls, one program.
        also: other names for it, which messages translate.
        holds: whether it takes every precision and optimizer, also offloaded.
        order: strategies are listed by it, then by name."""

    name: str
    meaning: str
    runner: str
    degrees: Callable[[int, Mapping[str, Option]], Degrees | str]
    calls: Callable[[Training], tuple[str, ...]]
    unfit: Callable[[Training], str | None] = lambda _work: None
    layout: Callable[[Training], Layout] = lambda _work: Layout()
    traffic: Callable[[Training, Sequence[Tensor]], Iterable[Calls]] = lambda _work, _tensors: ()
    options: Mapping[str, Values] = field(default_factory=lambda: NO_OPTIONS)
    together: Mapping[str, Option] = field(default_factory=lambda: MappingProxyType({}))
    idle: Callable[[Mapping[str, Option]], Mapping[str, str]] = lambda _options: MappingProxyType(
        {})
    later_options: tuple[str, ...] = ()
    ranks: Callable[[Mapping[str, Option]], int | None] = lambda _options: None
    modules: tuple[str, ...] = ()
    divides_model: bool = False
    trained_part: Callable[[Training], tuple[object, ...]] = lambda _work: ()
    alone_by: Callable[[Training], str] = lambda _work: ""
    cuts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    holds: bool = False
    order: int = 1000

    def axes(self, axes: OptionAxes) -> dict[str, tuple[Option, ...]]:
        unset = {} if axes.keys() & self.together.keys() else self.together
        return {name: tuple(map(values.canonical, axes.get(
                    name, (unset.get(name, values.default),))))
                for name, values in self.options.items()}

    def without_idle(self, options: Mapping[str, Option]) -> dict[str, Option]:
        idle = self.idle(options)
        return {name: value for name, value in options.items()
                if name not in idle or value != self.options[name].default}

    def with_defaults(self, work: Training) -> Training:
        own = dict(work.options)
        if self.options.keys() <= own.keys():
            return work  # as most are: a plan asks for this many times a case
        usual = {name: values.default for name, values in self.options.items()}
        return replace(work, options=in_order({**usual, **own}))

    def ineffective(self, options: Mapping[str, Option]) -> str | None:
        """Return which option was changed without effect, or None: two cases would be one."""
        return next((f"{name}={options[name]} has no effect {why}"
                     for name, why in sorted(self.idle(options).items())
                     if options[name] != self.options[name].default), None)

    def identifying(self, options: Iterable[tuple[str, Option]]) -> dict[str, Option]:
        return {name: value for name, value in options
                if name not in self.later_options or value != self.options[name].default}


ENTRY_POINTS = "hpcbench.strategies"
"""The group of entry points; each is a `StrategySpec` and has its name."""
Result = TypeVar("Result")


@cache
def registry() -> Registry[StrategySpec]:
    return Registry("strategy {}", import_module("hpcbench.kinds.training.plan.strategies").SPECS,
                    ENTRY_POINTS, (StrategySpec,), adopted=_of_plugin)


def strategies() -> tuple[StrategySpec, ...]:
    return tuple(registry().values())


def strategy(name: str) -> StrategySpec | None:
    return registry().get(name)


def is_ours(spec: StrategySpec) -> bool:
    return registry().is_ours(spec)


def unknown_strategy(name: str) -> str:
    """Return the message for a name of no strategy, also by the names that other tools have."""
    also = {alias: known.name for known in strategies() for alias in known.also}
    return unknown_name(name, registry(), of_others=also)


def usable(name: str, axes: OptionAxes) -> StrategySpec | None:
    """Return the strategy of a name, or a stand-in whose cases are skips; None of unknown names.

    It stands for a plug-in that cannot be used; its options are those in ``axes``."""
    if name not in (broken := registry().broken):
        return strategy(name)
    reason = f"strategy {name} cannot be used: {broken[name]}"
    return StrategySpec(
        name, reason, runner="", degrees=lambda _ranks, _options: reason, calls=lambda _work: (),
        options={option: Values(values[0], values) for option, values in axes.items()
                 if option != "backend"})


def _of_plugin(spec: StrategySpec) -> StrategySpec:
    own = spec.runner.partition(":")[0].partition(".")[0]
    return replace(spec, modules=tuple(dict.fromkeys((own, *spec.modules))))


def nearest(option: str, given: int, fitting: Sequence[int]) -> str:
    """Return what to take instead, of these in ascending order the nearest of less and of more."""
    near = [*[one for one in fitting if one < given][-1:],
            *[one for one in fitting if one > given][:1]]
    return f"; take {option}={' or '.join(map(str, near))}" if near else ""


def layout_of(work: Training) -> Layout:
    return _result(work, lambda spec: spec.layout(spec.with_defaults(work)), Layout())


def own_traffic(work: Training, tensors: Sequence[Tensor]) -> Iterable[Calls]:
    return _result(work, lambda spec: tuple(spec.traffic(work, tensors)), ())


def adapters_of(work: Training) -> Adapters | None:
    return layout_of(work).adapters


def context_of(work: Training) -> TokenSharing | None:
    return layout_of(work).context


def pipelining(work: Training) -> Pipelining | None:
    return layout_of(work).pipeline


def parts_of(work: Training) -> int:
    """Return the micro-batches of a step."""
    pipelined = pipelining(work)
    return work.accumulation * (pipelined.microbatches if pipelined else 1)


def trained_part(work: Training) -> tuple[object, ...]:
    return _result(work, lambda spec: spec.trained_part(work), ())


def alone_by(work: Training) -> str:
    return _result(work, lambda spec: spec.alone_by(work), "")


def ranks_of(spec: StrategySpec, options: Mapping[str, Option]) -> int | None:
    return _result(spec, lambda spec: spec.ranks(options), None)


def _result(
    of: Training | StrategySpec, function: Callable[[StrategySpec], Result], default: Result,
) -> Result:
    """Return a function's result; the default if a plug-in raises: its cases are then skips."""
    spec = strategy(of.strategy) if isinstance(of, Training) else of
    if spec is None:
        return default
    try:
        return function(spec)
    except Exception:
        if is_ours(spec):
            raise
        return default
