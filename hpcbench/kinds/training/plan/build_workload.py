"""The points of a block of trainings, multiplied out, and the workload or skip of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcbench.config.axes import BACKENDS, is_backend, unknown_name
from hpcbench.config.section import OptionAxes
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.block import TrainingBlock
from hpcbench.kinds.training.plan import any_model
from hpcbench.kinds.training.plan.any_model import (
    RESNETS,
    bottlenecks,
    extents_named,
    resnet_of,
    why_no_model,
)
from hpcbench.kinds.training.plan.experts import unfit_experts
from hpcbench.kinds.training.plan.model_file import EXTENTS, untrained
from hpcbench.kinds.training.plan.models import ATTENTION, count, keeps_products, shape_of
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.spec import (
    AUTO,
    Degrees,
    StrategySpec,
    adapters_of,
    is_ours,
    layout_of,
    ranks_of,
    registry,
    strategies,
    unknown_strategy,
    usable,
)
from hpcbench.kinds.training.plan.step import has_large_logits, is_dynamic, stages_of, step_of
from hpcbench.kinds.training.plan.workload import (
    BF16,
    CHUNKED,
    CROSS_ENTROPY,
    IN_8_BITS,
    LINEAR,
    MIXED,
    OFFLOAD,
    SYNTHETIC,
    USUAL,
    Training,
)
from hpcbench.operations.models import OWN_LIBRARY, ModelShape
from hpcbench.plan import points
from hpcbench.plan.case import PlanRequest

_MULTIPLE = 16
"""What extents of products in 8 bits are multiples of: torch 2.13, `_scaled_mm` on CUDA."""


def why_not(work: Training, spec: StrategySpec) -> str | None:
    if work.of_images:
        return (_otherwise_held(work, spec) or _undivided_images(work) or unfit_experts(work)
                or _indivisible(work) or spec.unfit(work) or _too_few_values(work)
                or _no_communication(work))
    return (untrained(shape_of(work)) or _unfit_latents(work) or unfit_experts(work)
            or _of_library(work) or _unpacked(work) or _otherwise_held(work, spec)
            or _uncompiled(work) or _not_in_parts(work) or _indivisible(work) or spec.unfit(work)
            or _no_communication(work))


def _unfit_latents(work: Training) -> str | None:
    if not shape_of(work).latent:
        return None
    reasons = (
        (work.tp > 1, "heads are not divided among ranks: take tp=1"),
        (work.cp > 1, "ranks that share tokens would exchange whole keys: take cp=1"),
        (adapters_of(work) is not None, "its products have no adapters here"),
        (work.in_8_bits, f"its products are not in 8 bits here: give precision {MIXED}"),
        (keeps_products(work.checkpointing), f"checkpointing {work.checkpointing} is not built for "
         f"its products: take {ATTENTION}"),
        (work.library != OWN_LIBRARY, f"library {OWN_LIBRARY} has it, {work.library} not here"))
    return next((f"{work.model} has attention with latents: {why}" for holds, why in reasons
                 if holds), None)


def _unpacked(work: Training) -> str | None:
    """Return why samples cannot be of several documents, or None."""
    if work.documents > work.seq_length:
        return (f"documents={work.documents}: a sample of {work.seq_length} tokens has no more: "
                f"take documents={work.seq_length} or less")
    reasons = (
        (work.library != OWN_LIBRARY, f"library {work.library} masks other documents, and so "
         f"computes all pairs of tokens: take library={OWN_LIBRARY}, or documents=1"),
        (work.cp > 1, "ranks that share the tokens of a sample exchange all of them: take "
         "documents=1, or another strategy"))
    return next((f"documents={work.documents}: {reason}" for holds, reason in reasons if holds),
                None) if work.documents > 1 else None


def _otherwise_held(work: Training, spec: StrategySpec) -> str | None:
    """Return why numbers cannot be held or multiplied as is asked, or None."""
    unusual = [f"precision {work.precision}"] * (work.precision != MIXED) + [
        f"optimizer {IN_8_BITS}"] * (work.optimizer == IN_8_BITS) + [
        "offload_state"] * work.offload_state
    if not unusual:
        return None
    reasons = (
        (work.precision != MIXED and work.dtype != "bf16", "its arithmetic is bf16: give dtype "
         "bf16"),
        (not spec.holds, f"strategy {spec.name} holds its numbers in its own way; leave it out"),
        (work.library != OWN_LIBRARY or work.of_images,
         "it is built for hpcbench's own transformers"),
        (work.is_narrow and dict(work.options).get("comm_hook", "none") != "none",
         "gradients are bf16 as they are; leave comm_hook out"),
        (work.checkpoint_every > 0 and (
            work.has_master or work.offload_state or work.optimizer == IN_8_BITS),
         "a checkpoint would lack states that are held apart; leave checkpoint_every out"),
        (work.in_8_bits and work.compile, "compile is not tried with products in 8 bits"),
        (work.in_8_bits and layout_of(work).experts, "the grouped product of experts has no scales "
         f"here; take {BF16}"),
        (work.in_8_bits and work.tp * work.cp > 1, "scales of the part of an operand that a rank "
         f"has are not those of one process, by which results are judged; take {BF16}"))
    why = next((why for holds, why in reasons if holds), None) or _unfit_in_8_bits(work)
    return why and f"{unusual[0]}: {why}"


def _unfit_in_8_bits(work: Training) -> str | None:
    if not work.in_8_bits:
        return None
    shape = shape_of(work)
    extents = {"hidden": shape.hidden, "columns of queries": shape.q_hidden,
               "columns of keys": shape.kv_hidden, "inner": shape.inner,
               "tokens of a part of the batch": step_of(work).tokens}
    return next((f"torch's scaled product on GPUs takes multiples of {_MULTIPLE}, not {what} "
                 f"{extent}" for what, extent in extents.items() if extent % _MULTIPLE), None)


def _uncompiled(work: Training) -> str | None:
    layout = layout_of(work)
    if work.checkpointing == OFFLOAD and work.tp > 1:
        return (f"checkpointing {OFFLOAD}: ranks that divide layers keep tensors of torch's that "
                "know of the others, which are not moved here: take full")
    if not work.compile:
        return None
    if work.tp > 1 and work.checkpointing not in ("none", "operators"):
        return (f"torch compiles no block that is divided among ranks and, with checkpointing "
                f"{work.checkpointing}, computed again whole; operators it does")
    if work.checkpointing == OFFLOAD:
        return f"compile: torch runs no hooks of what blocks keep, by which {OFFLOAD} moves it"
    if is_dynamic(work):
        return ("compile: balance=dynamic changes how many samples a rank has, and torch would "
                "compile again within the steps that are timed")
    if layout.adapters and layout.adapters.packed and layout.groups:
        return ("compile: bitsandbytes exchanges the data of gathered 4 bits within a block, of "
                "which torch makes no graph; over single and data it does")
    return None


def _not_in_parts(work: Training) -> str | None:
    reasons = (
        (work.pp > 1, "torch's pipelines compute the loss of what the last stage returns"),
        (work.tp > 1, "ranks that divide the words have loss_parallel instead"),
        (work.library != OWN_LIBRARY,
         f"models of library {work.library} return all logits at once"),
        (work.compile, "compile is of the loss of all logits; leave one of the two out"))
    return next((f"loss {work.loss}: {reason}" for holds, reason in reasons if holds), None) if (
        work.loss != CROSS_ENTROPY) else None


def _of_library(work: Training) -> str | None:
    adapters = adapters_of(work)
    if work.library == OWN_LIBRARY:
        return None
    if shape_of(work).experts:
        return f"library {work.library} has no experts here; library {OWN_LIBRARY} has"
    if work.replica_ranks > 1:
        *names, last = [spec.name for spec in strategies() if not spec.divides_model]
        return (f"{work.strategy} divides hpcbench's own model, which has the exact shape: the one "
                f"of library {work.library} is trained whole, by {', '.join(names)} and {last}")
    if work.checkpointing == ATTENTION:
        return (f"checkpointing {ATTENTION} is of the part by that name in hpcbench's own blocks; "
                f"those of library {work.library} are computed again whole, or their operators")
    if work.kv_heads != work.heads and work.family != "llama":
        return (f"library {work.library} has no {work.model} whose queries share keys and values; "
                f"library {OWN_LIBRARY} has")
    if shape_of(work).embedding_scaled:
        return (f"library {work.library} has the weights of {work.model}'s norms less 1; library "
                f"{OWN_LIBRARY} computes the same")
    if adapters and adapters.packed and work.family == "gpt":
        return (f"library {work.library} has weights of {work.model} as (inputs, outputs), which "
                "bitsandbytes has no 4 bits for; library hpcbench has them the other way round")
    return None


def _no_communication(work: Training) -> str | None:
    if work.communication == "off" and is_dynamic(work):
        return ("communication off: with balance=dynamic ranks that hear nothing of one another "
                "would keep even shares, and so take other steps")
    if work.checkpoint_every and not work.trains:
        return (f"communication {work.communication}: checkpoints are of a training; leave "
                "checkpoint_every out")
    computing = [word for word, given in (
        (f"optimizer {work.optimizer}", work.optimizer == IN_8_BITS),
        (f"precision {work.precision}", work.in_8_bits),
        ("offload_state=True", work.offload_state)) if given]
    if work.communication == "only" and computing:
        return f"{computing[0]} has no effect with communication only: nothing is computed"
    if work.trains or work.ranks > 1:
        return None
    return f"communication {work.communication}: one rank has none to talk to"


def _undivided_images(work: Training) -> str | None:
    reasons = (
        (work.tp > 1, f"{work.model} is made of convolutions, for which no strategy here has a "
         "plan to divide them among ranks (tp)"),
        (work.documents > 1, f"documents divide tokens; {work.model} takes images"),
        (work.data != SYNTHETIC, f"data={work.data}: files hold tokens, {work.model} takes images"),
        (is_dynamic(work),
         "balance=dynamic would have batch norms see other samples whenever shares change"),
        (adapters_of(work) is not None,
         f"{work.model} has no products of attention and MLP for adapters"),
        (work.library != OWN_LIBRARY,
         f"{work.model} is hpcbench's own: library {work.library} has transformers here"),
        (work.loss != CROSS_ENTROPY,
         f"loss {work.loss} divides tokens; {work.model} takes images, of few logits"),
        (work.compile, f"compile is for blocks that are all alike; those of {work.model} have "
         "other extents from stage to stage, each a graph of its own"),
        (work.checkpointing != "none", f"checkpointing would count each batch of {work.model} "
         "twice in the running statistics of its batch norms"))
    return next((reason for holds, reason in reasons if holds), None)


def _too_few_values(work: Training) -> str | None:
    """Return why the last batch norm has no statistics, or None; they are of one micro-batch."""
    samples, extent = step_of(work).samples, bottlenecks(resnet_of(work))[-1].extent_behind
    if samples * extent**2 > 1:
        return None
    return ("a batch norm of one pixel of one image has nothing to norm: give more samples for "
            "each part of a batch, or image_size above 32")


def _keys(work: Training) -> tuple[int, str]:
    """Return what tensor-parallel ranks divide of keys: heads, or if several have one, its rows."""
    if work.tp > work.kv_heads and work.tp % work.kv_heads == 0:
        return shape_of(work).kv_hidden, "rows of keys"
    return work.kv_heads, "key-value heads"


def _indivisible(work: Training) -> str | None:
    samples = (
        work.batch_size, "samples (batch_size)", work.accumulation, "equal parts (accumulation)")
    extents = (samples,) if work.of_images else (
        (work.heads, "attention heads", work.kv_heads, "key-value heads"),
        samples,
        (work.heads, "attention heads", work.tp, "ranks (tp)"),
        (*_keys(work), work.tp, "ranks (tp)"),
        (work.inner, "columns of the MLP", work.tp, "ranks (tp)"),
    )
    return next((f"{extent} {what} cannot be divided evenly among {count} {parts}"
                 for extent, what, count, parts in extents if extent % count), None)


_RING_MODULE = "torch.distributed.tensor.experimental._context_parallel"
_RANK = "rank"  # the option of strategies that a block's lora_rank sets


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
    precision: str
    offload_state: bool
    count_step: bool
    loss: str
    documents: int
    checkpoint_every: int
    checkpoint_folder: str


class TrainingPoint(NamedTuple):
    """One value of every axis."""

    common: points.CommonPoint
    model: str
    extents: tuple[tuple[str, int], ...]  # those that the sweep gives instead of the model's own
    setting: Setting
    strategy: StrategySpec
    options: tuple[tuple[str, points.Option], ...]


_UNLESS_GIVEN: Mapping[str, object] = MappingProxyType({**USUAL, "loss": AUTO})
"""Axes that a block need not have. Later ones are among them: without one it is the same plan as
before, whose run may be resumed."""


def training_points(
    title: str, block: TrainingBlock, job: PlanRequest,
) -> Iterator[TrainingPoint]:
    """Yield the points of a block. Raises ConfigError that lists every unknown name or value."""
    problems = dict.fromkeys(block_problems(block))
    if problems:
        raise ConfigError(*(f"benchmarks: {title}: {problem}" for problem in problems))
    choices = tuple(_choices(block))
    steps = {"iterations": block.max_steps} if block.max_steps else {}
    inner = points.measurements(block.model_copy(update=steps), job.config)
    single = {"count_step": (block.count_step is not False,), "checkpoint_folder": (
        job.config.output.folder if block.checkpoint_every else "",)}
    settings = product(*(single.get(name) or getattr(block, name) or (_UNLESS_GIVEN[name],)
                         for name in Setting._fields))
    for (model, extents), values, device, env, size in product(
            _models(block), settings, block.device, points.environments(block), block.world_size):
        for spec, options, backends in choices:
            every = ranks_of(spec, dict(options)) or job.world_size
            ranks = every if size == "all" else int(size)
            for backend, measured in product(backends, inner):
                setting = Setting(*values)
                yield TrainingPoint(
                    points.CommonPoint(setting.dtype, backend, device, env, ranks, *measured),
                    model, extents, setting, spec, options)


def _models(block: TrainingBlock) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
    for model in block.model:
        lists = {key: values for key in extents_named(model) if (values := getattr(block, key))}
        for extents in product(*lists.values()):
            yield model, tuple(zip(lists, extents, strict=True))


def _choices(block: TrainingBlock) -> Iterator[
        tuple[StrategySpec, tuple[tuple[str, points.Option], ...], tuple[str, ...]]]:
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            assert spec is not None  # noqa: S101  (an unknown name has been refused)
            rank = block.lora_rank if _RANK in spec.options else None
            own = spec.axes({**({_RANK: rank} if rank is not None else {}), **axes})
            axis = tuple((str(backend),) for backend in axes.get("backend", ()))
            for backends, values in product(axis or (block.backend,), product(*own.values())):
                yield spec, points.in_order(dict(zip(own, values, strict=True))), backends


def block_problems(block: TrainingBlock) -> Iterator[str]:
    wrong = [f"model: {problem}" for name in block.model if (problem := why_no_model(name))]
    yield from wrong
    extents = {key for name in block.model for key in extents_named(name)}
    all_keys = dict.fromkeys((*EXTENTS, *extents_named(next(iter(RESNETS)))))
    yield from (f"{key}: {' and '.join(block.model)} has no such extent; take away {key}, or name "
                f"a model that has it" for key in all_keys
                if key not in extents and getattr(block, key) and not wrong)
    yield from _bad_ranks(block)
    for name, sets in block.strategies.items():
        for axes in sets:
            spec = usable(name, axes)
            if spec is None:
                yield f"strategies.{name}: {unknown_strategy(name)}"
            else:
                yield from _bad_options(f"strategies.{name}", axes, spec)


def _bad_ranks(block: TrainingBlock) -> Iterator[str]:
    if block.lora_rank is None:
        return
    strategies = registry()
    having = [name for name, spec in strategies.items() if _RANK in spec.options]
    if not set(having) & set(block.strategies) and set(block.strategies) <= set(strategies):
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
                        for value in values if not is_backend(value))
        elif option not in spec.options:
            yield f"{where}: {unknown_name(option, [*spec.options, 'backend'])}"
        else:
            allowed = spec.options[option]
            yield from (f"{where}.{option}: {points.wanted(value, [allowed])}"
                        for value in values if not allowed.allows(value))


def make_training(point: TrainingPoint) -> tuple[Training, str | None]:
    """Return the workload of a point, and why it can run nowhere, or None."""
    try:
        return _training(point)
    except Exception as error:
        if is_ours(point.strategy):
            raise
        plain = replace(point.strategy, idle=lambda _options: {})  # which may have raised it
        return (_draft(point._replace(strategy=plain), _extents_of(point), Degrees()),
                f"its plug-in cannot plan it: {type(error).__name__}: {error}")


def _training(point: TrainingPoint) -> tuple[Training, str | None]:
    """Return the same of a point whose strategy answers; one of no shape has no parameters."""
    spec, ranks = point.strategy, point.common.world_size
    shape = any_model.shape_with(point.model, **dict(point.extents))
    if isinstance(shape, str):
        return _draft(point, _extents_of(point), Degrees()), shape
    extents, degrees = any_model.extents_of(shape), spec.degrees(ranks, dict(point.options))
    if isinstance(degrees, str):
        return _draft(point, extents, Degrees()), degrees
    if degrees.ranks != ranks:
        raise ValueError(f"degrees returned dp={degrees.dp} x cp={degrees.cp} x tp={degrees.tp} x "
                         f"pp={degrees.pp} for {ranks} ranks")
    work = counted(_draft(point, extents, degrees))
    if point.setting.loss == AUTO and is_ours(spec):
        work = _with_small_logits(work)
    work = replace(work, flops=any_model.flops_of(
        any_model.model_of(work), work.global_batch, adapters_of(work)))
    if not is_ours(spec):
        _try_all(spec, work)
    reason = spec.ineffective(dict(point.options)) or why_not(work, spec)
    calls = () if work.communication == "off" else spec.calls(work)
    return (work, reason) if reason else (replace(work, calls=calls), None)


def _with_small_logits(work: Training) -> Training:
    """Return a training whose loss is chunked if logits are large and the strategy takes that."""
    chunked = replace(work, loss=CHUNKED)
    return chunked if has_large_logits(work) and _not_in_parts(chunked) is None else work


def counted(work: Training) -> Training:
    shape, adapters = any_model.model_of(work), adapters_of(work)
    return replace(work, parameters=any_model.parameters_of(shape), adapters=(
        count(shape, adapters) if adapters and isinstance(shape, ModelShape) else 0))


def _extents_of(point: TrainingPoint) -> dict[str, Any]:
    return {**any_model.extents_of(any_model.published(point.model)), **dict(point.extents)}


def _draft(point: TrainingPoint, extents: Mapping[str, Any], degrees: Degrees) -> Training:
    library, model, loss = point.setting.library, point.model, point.setting.loss
    return Training(
        strategy=point.strategy.name,
        options=points.in_order(point.strategy.without_idle(dict(point.options))),
        **any_model.model_fields(model), **any_model.differences(model, extents), **extents,
        **{**point.setting._asdict(), "loss": CROSS_ENTROPY if loss == AUTO else loss},
        dp=degrees.dp, tp=degrees.tp, pp=degrees.pp, cp=degrees.cp,
        parameters=0, flops=(), calls=(),
        modules=(*point.strategy.modules, *((_RING_MODULE,) if degrees.cp > 1 else ()),
                 *(() if library == OWN_LIBRARY else (library,)),
                 *((f"torch.nn.modules.{LINEAR}",) if loss == LINEAR else ()),
                 *(("bitsandbytes",) if point.setting.optimizer == IN_8_BITS else ())))


def _try_all(spec: StrategySpec, work: Training) -> None:
    """Raise what a function of a plug-in raises: here it costs only its own case."""
    if spec.unfit(work):
        return  # the other functions are called only for trainings that suit the strategy
    spec.layout(work)
    for stage in stages_of(work):
        tuple(spec.traffic(work, stage.tensors(any_model.model_of(work))))
    predict(work)  # fails if a layout divides by more ranks than there are, and the like
