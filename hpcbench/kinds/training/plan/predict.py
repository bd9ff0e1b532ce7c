"""The demands of one training step on each rank: memory, FLOPs and calls.

For tensor-parallel ranks Shoeybi et al., Megatron-LM (arXiv 1909.08053), section 3: each of the two
halves of a block sums its results in forward and the gradients of its input in backward.
Korthikanti et al. (arXiv 2205.05198), section 4.2.2: with sequence parallelism each sum is a
reduce-scatter, with an all-gather on the other side, of the same bytes on the wire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from hpcbench.kinds.training.plan import any_model, context, models
from hpcbench.kinds.training.plan import spec as traffic
from hpcbench.kinds.training.plan.experts import apart_experts, is_routed
from hpcbench.kinds.training.plan.memory import (
    WEIGHT_BYTES,
    Memory,
    memory_of,
    rank_parameters,
    states_of,
)
from hpcbench.kinds.training.plan.spec import (
    Calls,
    adapters_of,
    buckets,
    calls,
    layout_of,
    own_traffic,
    strategy,
)
from hpcbench.kinds.training.plan.step import (
    Stage,
    Step,
    busiest_stages,
    share_of,
    stages_of,
    step_of,
)
from hpcbench.kinds.training.plan.workload import CHUNKED, Training
from hpcbench.operations.collectives import collective_spec
from hpcbench.operations.models import ModelShape
from hpcbench.plan.case import Case
from hpcbench.records import dataclass

_LOSS_SUMS = 3
"""For a loss of divided logits: the largest logit, the sum of exponentials, the target's logit."""
_TABLES = {"gpt": 1, "llama": 0, "bert": 2}
"""Tables of positions and types, which are gathered under sequence parallelism."""


def tensor_calls(
    shape: ModelShape, stage: Stage, step: Step, recomputed: int, held: int,
) -> Iterator[Calls]:
    """Yield the calls of a step of a rank with these parts; ``recomputed`` counts its blocks,
    ``held``: bytes of an element of weights."""
    kept, parts, bert = step.kept, step.parts, shape.family == "bert"
    hidden, halves = step.tokens * shape.hidden, 2 * len(stage.blocks)
    wide, narrow = hidden * kept.wide, hidden * kept.element
    # The embedding sums in forward, each half of a block in both. Recomputation sums again, but for
    # a last product whose result nothing needs. The head's sum is in backward.
    sums = [wide] * (stage.first + halves) + [narrow] * (halves + recomputed * (1 + bert))
    if kept.adapters:  # before the first of which there is no gradient
        sums = sums[1 if kept.adapters.begins_with_attention else 2:]
    head, norms = [narrow if bert else wide] * stage.last, _norms(shape, stage, step, held)
    if not kept.by_tokens:
        yield calls("all_reduce", kept.tp, [*norms, *(sums + head) * parts])
    else:
        table = step.tokens // step.samples * shape.hidden * kept.wide
        gathers = ([wide] * (stage.first + stage.last + halves + 2 * recomputed)
                   + [narrow] * halves + [table] * stage.first * _TABLES[shape.family])
        # BERT's head has a product of its own, before which it gathers all tokens
        yield calls("reduce_scatter", kept.tp, (sums if bert else sums + head) * parts)
        yield calls("all_gather", kept.tp, gathers * parts)
        yield calls("all_reduce", kept.tp, [*norms, *(head * bert * parts)])
    if stage.last and kept.by_words:
        yield calls("all_reduce", kept.tp, [step.tokens * WEIGHT_BYTES] * _LOSS_SUMS * parts)
    elif stage.last:
        padded = -(-shape.vocab // kept.tp) * kept.tp
        yield calls("all_gather", kept.tp, [step.tokens * padded * kept.element] * parts)


def key_calls(work: Training, shape: ModelShape, stage: Stage, step: Step) -> Iterator[Calls]:
    """Yield the calls of ranks that have parts of a head's keys and values, and need all of it."""
    both = 2 * step.parts * [step.tokens * shape.kv_hidden * step.kept.element]
    again = sum(models.is_recomputed(work.checkpointing, number) for number in stage.blocks)
    yield calls("all_gather", work.tp, both * (len(stage.blocks) + again))
    yield calls("reduce_scatter", work.tp, both * len(stage.blocks))


def _adapter_calls(
    work: Training, shape: ModelShape, stage: Stage, step: Step,
) -> Iterator[Calls]:
    """Yield the calls of adapters that ranks divide by their rank: what A returns is gathered for a
    B of columns, and added up in parts for one of rows; in backward the other way round."""
    adapters, kept = step.layout.adapters, step.kept
    if adapters is None:
        return
    size = step.tokens * adapters.rank * kept.element
    again = [item for _ in range(sum(
        models.is_recomputed(work.checkpointing, number) for number in stage.blocks))
        for item in models.adapters_again(shape, work.checkpointing, adapters)[::2]]
    rows = sum(item.name.removesuffix(".lora_A.weight").endswith(models.ROWWISE) for item in again)
    every = len(stage.blocks) * len(models.block_adapters(shape, adapters)) // 2
    yield calls("all_gather", kept.tp, [size] * (every + len(again) - rows) * step.parts)
    yield calls("reduce_scatter", kept.tp, [size] * (every + rows) * step.parts)


def _norms(shape: ModelShape, stage: Stage, step: Step, held: int) -> list[int]:
    """Return the sizes of the gradients of norms, of which each rank has seen some tokens, or only
    its own heads, and of routers, of which each has a part.

    They are summed when gradients are exchanged: those of one micro-batch as they are, those of
    several as they are held, in which they were added up."""
    exchanges = step.layout.groups.exchanges if step.layout.groups else 1
    size = step.kept.wide if step.parts == exchanges else held
    divided = (".router.", *(("norm.",) if step.kept.by_tokens else ("q_norm.", "k_norm.")))
    named = [] if step.kept.adapters else [
        item for item in stage.tensors(shape) if any(name in item.name for name in divided)]
    if shape.family == "bert":  # its head gathers tokens before it
        named = [item for item in named if not item.name.startswith("head.")]
    return [item.elements * size for item in named] * exchanges


def pipeline_calls(work: Training, shape: any_model.AnyShape, stage: Stage, step: Step) -> Calls:
    """Return a rank's messages: results of blocks ahead, gradients back, of each micro-batch."""
    crossing = (*stage.ahead, *stage.behind)
    if isinstance(shape, any_model.ResNetShape):
        return calls("send_recv", 2, [
            step.samples * any_model.sent_elements(shape, number) * step.kept.element
            for number in crossing] * step.parts)
    hidden = step.kept.of_tokens(step.tokens * shape.hidden, step.kept.wide)
    sizes = [hidden] * len(crossing) * step.parts
    if size := tied_bytes(work, stage):
        sizes.append(size)
    return calls("send_recv", 2, sizes)


def tied_bytes(work: Training, stage: Stage, shard: int = 0) -> int:
    """Return the bytes of this shard of a tied gradient, if a stage exchanges its copy with
    another's."""
    shape = any_model.model_of(work)
    if (isinstance(shape, any_model.ResNetShape) or not shape.tied or stage.first == stage.last):
        return 0
    of_tensor = -(-shape.vocab // work.tp)
    rows = -(-of_tensor // layout_of(work).shards)
    return max(min(rows, of_tensor - shard * rows), 0) * shape.hidden * work.weight_bytes


_KEPT = 256  # roots that are kept: a sweep asks for them again with each batch
_NUMBER_BYTES = 8  # of counts of rows, and of the number of an expert
_OVERFLOWED = 4  # bytes of the all_reduce by which ranks agree whether fp16 gradients overflowed


@dataclass(frozen=True, slots=True)
class Prediction:
    """One rank's memory, executed FLOPs (recomputation included) and collectives of a step."""

    memory: Memory = field(default_factory=Memory)
    hardware_flops: int = 0
    calls: tuple[traffic.Calls, ...] = ()

    def carried_on(self, library: str) -> int:
        """Return the bytes that the links of a backend's library carry."""
        return sum(item.carried_on(library) for item in self.calls)

    @property
    def collectives(self) -> int:
        return sum(item.count for item in self.calls)


@dataclass(frozen=True, slots=True)
class Demands:
    """The predictions of all ranks of a pipeline, or of one where all are alike; each number is the
    most of any rank."""

    of_ranks: tuple[Prediction, ...] = (Prediction(),)

    @property
    def memory(self) -> Memory:
        return max((one.memory for one in self.of_ranks), key=lambda memory: memory.total)

    @property
    def hardware_flops(self) -> int:
        return max(one.hardware_flops for one in self.of_ranks)

    def carried_on(self, library: str) -> int:
        return max(one.carried_on(library) for one in self.of_ranks)

    @property
    def collectives(self) -> int:
        return max(one.collectives for one in self.of_ranks)


def hardware_flops(
    work: Training, definition: str = models.EXECUTED, *, nominal: bool = False,
) -> int:
    """Return the FLOPs of a step on all ranks, with those that checkpointing adds.

    ``definition`` sets how attention counts. ``nominal``: a block that is run again counts a whole
    forward pass, though torch leaves out its end. Raises KeyError of unknown names."""
    return dict(work.flops)[definition] + any_model.flops_again(work, definition, nominal=nominal)


def predict(work: Training) -> Demands:
    return Demands(tuple(predict_stage(work, stage) for stage in busiest_stages(work)))


def least_step_s(work: Training, case: Case, hardware: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step that no rank can beat, None where ``hardware`` declares no rate.

    The longer of a rank's FLOPs / the peak of the dtype and the bytes that cross a node's link in
    one direction / its rate: none of both is ever reached, and at best they overlap wholly. A node
    has ``num_devices`` ranks."""
    if (hardware.get("device_type") not in (None, case.device) or not is_predicted(work)
            or is_routed(work)):
        return None
    peak = (hardware.get("peak_flops") or {}).get(work.peak_type)
    gbps, on_node = hardware.get("network_bandwidth_gbps"), hardware.get("num_devices")
    times_s = [predict(work).hardware_flops / peak] if peak else []
    if gbps and on_node:
        times_s.append(crossing_bytes(work, on_node, case.library) / (gbps * 1e9 / 8))
    return max(times_s, default=0.0) or None


def checkpoint_bytes(work: Training) -> int:
    """Return the bytes of parameters, statistics and optimizer states of the model, each once."""
    last = max(stages_of(work), key=lambda stage: stage.last)
    whole = replace(last, rank=0, blocks=tuple(range(work.layers)), first=True, alone=work.pp > 1)
    shape = any_model.model_of(work)
    all_experts = tuple((name, 1 if name == "ep" else value) for name, value in work.options)
    own = rank_parameters(replace(work, tp=1, options=all_experts), whole).local
    statistics = (any_model.running_bytes(shape, whole.blocks)
                  if isinstance(shape, any_model.ResNetShape) else 0)
    return own.held_bytes + statistics + states_of(work, own.trained, 1)


def crossing_bytes(work: Training, on_node: int, library: str) -> float:
    """Return the bytes of a step that cross the link of a node in one direction, at least.

    Ranks lie in order, ``on_node`` a node, which share its link. Of a collective counts what no
    algorithm can avoid (`CollectiveSpec.crossing`); of a pipeline, messages of a node with one
    stage; of tokens that travel to experts none, as the load may keep them in a node. It is the
    most of the nodes of the first replica."""
    replica, ranks = work.replica_ranks, work.ranks
    has_experts = layout_of(work).experts is not None
    of_stages = [[each for each in _grouped_calls(work, stage)
                  if not has_experts or each.calls.collective != "all_to_all"]
                 for stage in stages_of(work)[:work.pp]]
    passing: defaultdict[tuple[int, int], float] = defaultdict(float)
    for rank in range(min(-(-replica // on_node) * on_node, ranks)):
        for called, size, stride in of_stages[rank // work.tp % len(of_stages)]:
            first = rank - rank // stride % size * stride
            nodes = tuple(member // on_node
                          for member in range(first, first + size * stride, stride))
            own = rank // on_node
            for way, share in enumerate(_crossing_shares(called.collective, nodes, own)):
                passing[own, way] += share * called.carried_on(library)
    return max(passing.values(), default=0.0)


@lru_cache(maxsize=_KEPT)
def _crossing_shares(collective: str, nodes: tuple[int, ...], own: int) -> Sequence[float]:
    """Return what leaves and enters a rank's ``own`` node for it, over its bytes on the wire.

    ``nodes`` are those of its group. Ranks take turns as roots of broadcasts (ZeRO stage 1)."""
    if collective == "send_recv":
        return (float(nodes.count(own) == 1),)
    if collective == "broadcast":
        return ((1 - nodes.count(own) / len(nodes)) / nodes.count(own),)
    shares = collective_spec(collective).crossing_share([*map(str, nodes)]) or {}
    return [share / nodes.count(own) for share in shares.get(str(own), ())]


def is_predicted(work: Training) -> bool:
    return is_known(work) and strategy(work.strategy) is not None


def is_known(work: Training) -> bool:
    """Return whether the model's shape is known; others were planned elsewhere."""
    return work.model in any_model.NAMES or bool(work.architecture)


def busiest_calls(work: Training) -> tuple[int, Sequence[GroupedCalls]]:
    """Return the FLOPs and the calls of a step of the rank with most FLOPs."""
    stage = max(busiest_stages(work), key=lambda one: _flops(work, one))
    return _flops(work, stage), [each for each in _grouped_calls(work, stage) if each.calls.count]


def predict_stage(work: Training, stage: Stage) -> Prediction:
    return Prediction(memory_of(work, stage), _flops(work, stage),
                      traffic.together(each.calls for each in _grouped_calls(work, stage)))


def _flops(work: Training, stage: Stage) -> int:
    if work.communication == "only":
        return 0
    shape = any_model.model_of(work)
    if isinstance(shape, any_model.ResNetShape):
        return any_model.stage_flops(shape, stage.blocks, work.batch_size)
    if adapters_of(work):  # which no strategy divides among stages
        return hardware_flops(work) // (work.dp * work.tp) + _transform_flops(work, shape, stage)
    if layout_of(work).experts and work.replica_ranks == 1:
        return hardware_flops(work) // work.dp + _of_more_pairs(work, shape, stage)
    plain, mixed = replace(shape, experts=None), _blocks_with_experts(work, shape, stage)[0]
    one, two = (dict(models.flops(replace(plain, layers=layers), work.batch_size))[models.EXECUTED]
                for layers in (1, 2))
    again = sum(models.is_recomputed(work.checkpointing, number) for number in stage.blocks)
    of_recomputed = models.recomputed(replace(plain, layers=1), work.batch_size, work.checkpointing,
                                      models.EXECUTED)
    head = (one - (two - one)) * stage.last
    if work.loss == CHUNKED:  # which no strategy that divides a model takes
        head += 2 * shape.vocab * shape.hidden * shape.seq_length * work.batch_size
    dense = 6 * models.mlp_weights(shape) * shape.seq_length * work.batch_size
    every = len(stage.blocks) * (two - one) - mixed * dense + again * of_recomputed + head
    return (context.shared_flops(work, every, 3 * len(stage.blocks) + again) // work.tp
            + _transform_flops(work, shape, stage) + mixed * _expert_flops(work, shape, stage))


def _transform_flops(work: Training, shape: ModelShape, stage: Stage) -> int:
    """Return the FLOPs of the product before BERT's logits beyond a tensor part of it: it is whole
    on each rank."""
    if shape.family != "bert" or not stage.last:
        return 0
    of_weight = 4 if adapters_of(work) else 6
    every = of_weight * shape.hidden * shape.hidden * shape.seq_length * work.batch_size
    return every - every // work.tp


def _of_more_pairs(work: Training, shape: ModelShape, stage: Stage) -> int:
    """Return the FLOPs of a step of a rank beyond those of all experts of its own tokens."""
    share, step = share_of(work, stage), step_of(work)
    assert shape.experts is not None  # noqa: S101  (asked of shapes that have them)
    more = share.pairs - step.tokens * shape.experts.per_token
    blocks, again = _blocks_with_experts(work, shape, stage)
    return more * 2 * models.expert_weights(shape) * step.parts * (3 * blocks + again)


def _expert_flops(work: Training, shape: ModelShape, stage: Stage) -> int:
    """Return the FLOPs of a rank's experts of one block in a step, of their router, which is whole
    on each rank, and of what every token passes beside."""
    experts, step = shape.experts, step_of(work)
    if experts is None:
        return 0
    pairs = share_of(work, stage).pairs * models.expert_weights(shape)
    shared = step.tokens * 3 * shape.hidden * experts.shared_inner
    router = step.tokens * experts.number * shape.hidden
    return 6 * step.parts * ((pairs + shared) // work.tp + router)


def _blocks_with_experts(work: Training, shape: ModelShape, stage: Stage) -> tuple[int, int]:
    """Return how many blocks have experts, and of how many these are run again."""
    found = [number for number in stage.blocks if models.has_experts(shape, number)]
    return len(found), sum(models.is_recomputed(work.checkpointing, number) for number in found) * (
        work.checkpointing != models.ATTENTION)


def expert_calls(work: Training, shape: ModelShape, stage: Stage, step: Step) -> Calls:
    """Return the all_to_all of a rank: rows there and back, and in backward their gradients;
    weights of pairs where the experts' ranks add up; and what a router tells. A block that is run
    again sends again, as torchtitan's. Sizes are those of what the rank sends."""
    share, spread = share_of(work, stage), step.layout.experts
    assert spread is not None  # noqa: S101  (asked of layouts that have one)
    row = shape.hidden * step.kept.element
    there = [share.sent * spread.sent_bytes(shape.hidden, step.kept.element), share.received * row]
    back = list(there)
    if spread.dedup == "rank":
        there.append(share.own_pairs * WEIGHT_BYTES)
        back.append(share.pairs * WEIGHT_BYTES)
    if spread.router:  # how many rows, and the numbers of their experts
        width = shape.experts.per_token if shape.experts and spread.dedup == "rank" else 1
        there += [spread.ep * _NUMBER_BYTES, share.sent * width * _NUMBER_BYTES]
    blocks, again = _blocks_with_experts(work, shape, stage)
    return calls("all_to_all", spread.ep, step.parts * (there * (blocks + again) + back * blocks))


class GroupedCalls(NamedTuple):
    """Calls of each group of ``ranks``, which are ``stride`` apart."""

    calls: Calls
    ranks: int
    stride: int


def _grouped_calls(work: Training, stage: Stage) -> list[GroupedCalls]:
    """Return a rank's calls; ranks lie by replica, part of a sample, stage and part of a tensor,
    which is innermost."""
    if work.communication == "off":
        return []
    step, shape = step_of(work), any_model.model_of(work)
    layout, apart = step.layout, work.pp * work.tp
    _, local, blocks = rank_parameters(work, stage)
    made: list[GroupedCalls] = []
    if groups := layout.groups:
        roots = _roots(local, alone=stage.alone)
        if layout.experts and (fewer := layout.expert_groups):
            of_all, of_experts = zip(*map(apart_experts, blocks), strict=True)
            made += _sharing_calls(of_all, roots, groups, apart)
            made += _sharing_calls([one for one in of_experts if one.tensors], [], fewer,
                                   apart * layout.experts.ep)
            assert isinstance(shape, ModelShape)  # noqa: S101  (others have no experts)
            made.append(GroupedCalls(expert_calls(work, shape, stage, step), layout.experts.ep,
                                     apart))
        else:
            made += _sharing_calls(blocks, roots, groups, apart)
    elif layout.buckets and work.dp > 1:
        made += [GroupedCalls(one, work.dp, apart) for one in traffic.ddp_calls(
            local.trained, work.dp, layout.buckets.mib, layout.buckets.hook)]
    made += [GroupedCalls(one, work.dp, apart) for one in own_traffic(work, local.tensors)]
    if work.tp > 1:
        assert isinstance(shape, ModelShape)  # noqa: S101  (no plan divides others by tensors)
        # attention's input is kept whole, and its last product, which is summed, not repeated
        again = sum(models.is_recomputed(work.checkpointing, number) for number in stage.blocks
                    if work.checkpointing != models.ATTENTION)
        of_keys = key_calls(work, shape, stage, step) if work.tp > work.kv_heads else ()
        made += [GroupedCalls(one, work.tp, 1) for one in (
            *tensor_calls(shape, stage, step, again, work.weight_bytes), *of_keys,
            *_adapter_calls(work, shape, stage, step))]
    if layout.context:
        made += [GroupedCalls(one, work.cp, apart) for one in context.calls_of(
            work, layout.context, step, stage)]
    if layout.pipeline:
        made.append(GroupedCalls(pipeline_calls(work, shape, stage, step), work.pp, work.tp))
    agreeing = (work.dp * work.cp * apart, 1) if apart > 1 else (layout.shards, 1)
    if work.dtype == "fp16" and agreeing[0] > 1:
        made.append(GroupedCalls(
            traffic.calls("all_reduce", agreeing[0], [_OVERFLOWED]), *agreeing))
    return made


def _sharing_calls(
    blocks: Sequence[models.Parameters], roots: Sequence[models.Parameters],
    groups: traffic.Groups, stride: int,
) -> Iterator[GroupedCalls]:
    for one in traffic.fsdp_calls(blocks, roots, groups):
        yield (GroupedCalls(one, groups.copies, groups.shards * stride)
               if one.collective == "all_reduce" else GroupedCalls(one, groups.shards, stride))


@lru_cache(maxsize=_KEPT)
def _roots(local: models.Parameters, *, alone: bool) -> list[models.Parameters]:
    """Return the parameters outside of blocks: together, or if ``alone`` those of each end."""
    ends = [[item for item in local.tensors if item.name.startswith(end)]
            for end in (("embedding.", "stem."), "head.")]
    return [models.Parameters(tuple(items)) for items in (ends if alone else [sum(ends, [])])
            if items]


def program_of(work: Training) -> tuple[object, ...]:
    """Return the key that is equal for two trainings exactly if they run the same: the training
    without options that only cut calls (`StrategySpec.cuts`), the predicted calls, and gradients
    per bucket."""
    spec = strategy(work.strategy)
    if spec is None or not spec.cuts:
        return (work,)
    layout, pieces = step_of(work).layout, []
    for stage in stages_of(work):
        filled = (buckets(rank_parameters(work, stage).local.trained.tensors, layout.buckets.mib)
                  if layout.buckets else [])
        pieces.append((predict_stage(work, stage).calls, tuple(map(len, filled))))
    kept = tuple(option for option in work.options if option[0] not in spec.cuts)
    return (replace(work, options=kept), *pieces)
