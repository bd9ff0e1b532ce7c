"""A rank's part of a model and its samples, and the activations that a forward pass keeps.

In bytes for each token, by the method of Korthikanti et al. (arXiv 2205.05198), section 4: add up
what each operation keeps. Their s b h (34 + 5 a s / h) has 2 of the 34 for dropout, and a second
term for unfused attention; neither is here. Autocast keeps sums of the residual in fp32 and a copy
of each product's input. A test compares with torch 2.13 on the CPU.

transformers' GPT-2 has one product for q, k and v, and a GELU of single operations that keeps three
more results. Llama's norms there keep their result in its own dtype."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from operator import ge

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan.any_model import AnyShape, end_tensors, part_tensors
from hpcbench.kinds.training.plan.experts import Share, shares_of
from hpcbench.kinds.training.plan.models import (
    ATTENTION,
    Adapters,
    Tensor,
    adapters_again,
    block_adapters,
    keeps_products,
)
from hpcbench.kinds.training.plan.spec import (
    Layout,
    Pipelining,
    layers_on,
    layout_of,
    parts_of,
    pipelining,
    stages_on,
)
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, LINEAR, Training
from hpcbench.operations.models import OWN_LIBRARY, LatentAttention, ModelShape
from hpcbench.records import dataclass

_LOGSUMEXP = 4
_STATISTIC = 4
_TOKEN_ID = 8
_WIDEST = 4
LOSS_CHUNKS = 8
"""Parts that the tokens of a chunked loss are divided in, as in torchtune (CEWithChunkedOutputLoss)
and torchtitan, if there are as many."""
LARGE_LOGITS = 2**28
"""Bytes of a part's logits in fp32 above which a loss that is left to the plan is chunked."""
_GELU_PARTS = 3
"""Results of the inner extent that transformers' GELU of GPT-2 keeps beside its input."""


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """The sizes of kept elements of activations (bytes of products; ``wide``: of residual and
    norms), and how they are divided: by ``tp`` ranks, ``by_tokens`` (sequence parallel),
    ``by_words`` (loss parallel). ``copies``: each product casts its input for itself (autocast).
    ``ring``: parts of keys and values of a sample that a ring has at once; ``exchanged``: attention
    is by heads that other ranks get back."""

    element: int = 4
    wide: int = 4
    copies: bool = False
    tp: int = 1
    by_tokens: bool = False
    by_words: bool = False
    loss: str = CROSS_ENTROPY
    adapters: Adapters | None = None
    ring: int = 0
    exchanged: bool = False

    def of_tokens(self, elements: int, size: int) -> int:
        return elements * size // (self.tp if self.by_tokens else 1)


def block_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return the bytes of a token that one block keeps, if it is not computed again.

    A frozen product keeps no input: its adapter's A does, and B what A returns. Under autocast A
    has a copy of its own; weights in 4 bits return the dtype of their input.
    What A returns is whole on ranks that divide the adapters."""
    adapters, copies, own = kept.adapters, kept.copies, shape.library == OWN_LIBRARY
    is_library_gpt = shape.family == "gpt" and not own
    mlp_too = adapters is None or adapters.has("mlp.up.weight")
    inputs = mlp_too * (2 if copies and shape.gated else 1)
    wide = kept.wide if adapters and copies and adapters.packed else kept.element
    returned = (3 if shape.gated else 1) + _GELU_PARTS * is_library_gpt
    mlp = shape.inner * (returned * wide + mlp_too * kept.element)
    low_rank = _low_rank(shape, adapters) - _low_rank(shape, adapters, ATTENTION)
    return (2 * _norm_bytes(shape, kept) + inputs * shape.hidden * kept.element
            + mlp // kept.tp + low_rank * kept.element + attention_bytes(shape, kept))


def expert_block_bytes(shape: ModelShape, kept: ActivationLayout, tokens: int, share: Share,
                       by_rank: bool) -> float:
    """Return the bytes of a token that a block with experts keeps on a rank with such a share.

    The router keeps its probabilities in fp32, those chosen, and their sum; the experts what an MLP
    does, for each pair; what is weighed is kept: pairs, or rows that have come back. torch keeps
    what is added up, though only its extents are needed: pairs, and rows that have come back."""
    experts = shape.experts
    assert experts is not None  # noqa: S101  (asked of blocks that have them)
    router = _WIDEST * (experts.number + experts.per_token + 1)
    shared = 4 * experts.shared_inner // kept.tp * kept.element
    pair = (shape.hidden + 4 * experts.inner // kept.tp) * kept.element
    row = shape.hidden * kept.element
    weighed = (share.pairs if by_rank else share.sent) * (row + _WIDEST)
    added = (share.pairs + share.sent) * row
    return (block_bytes(replace(shape, inner=0), kept) + router + shared
            + (share.pairs * pair + weighed + added) / tokens)


def expert_working_bytes(shape: ModelShape, kept: ActivationLayout, tokens: int,
                         share: Share) -> float:
    """Return the same as `working_bytes` of a block with experts.

    What every token passes beside them is first, and has left what it kept when gradients of rows
    have travelled, or are in the experts."""
    experts = shape.experts
    assert experts is not None  # noqa: S101  (asked of blocks that have them)
    rows = shape.hidden * (share.pairs + share.received + share.sent) / tokens
    shared, own = experts.shared_inner / kept.tp, experts.inner / kept.tp
    inner = max(2 * shared, max(2 * own * share.pairs / tokens, rows) - 4 * shared)
    return 2 * kept.of_tokens(shape.hidden, kept.wide) + inner * kept.element


def attention_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return the bytes of a token that attention keeps of its inputs and results, by the same."""
    if shape.latent:
        return _latent_bytes(shape, shape.latent, kept)
    shape = _each_with_keys(shape, kept)
    adapters, own = kept.adapters, shape.library == OWN_LIBRARY
    inputs = 3 if kept.copies and (own or shape.family != "gpt") else 1
    if adapters:  # one for each A under autocast, else one that they share
        has = sum(adapters.has(f"attention.{name}.weight") for name in "qkv")
        inputs = has if inputs > 1 else min(has, inputs)
    # Queries that were turned lie head by head, and so does what attention returns for them: it is
    # copied for the next product, which takes it token by token.
    turned = own and shape.built.positions == "rotary"
    turned |= shape.documents > 1  # or document by document
    returned_twice = turned or kept.exchanged or (kept.copies and adapters is not None)
    returned_twice &= adapters is None or adapters.has("attention.o.weight")
    results = shape.q_hidden * (3 if returned_twice else 2) + 2 * shape.kv_hidden
    divided = results * kept.element + shape.heads * _LOGSUMEXP + _head_norms(shape, kept)
    inputs = inputs * shape.hidden + _low_rank(shape, adapters, ATTENTION)
    return inputs * kept.element + divided // kept.tp


def _latent_bytes(shape: ModelShape, latent: LatentAttention, kept: ActivationLayout) -> int:
    """Return the same with latents: these, normed; whole heads of queries and keys; what keys and
    values were cut from; and what attention returns, twice."""
    ranks = [rank for rank in (latent.query_rank, latent.rank) if rank]
    inputs = shape.hidden * (2 if kept.copies else 1) + sum(ranks)
    head = 2 * latent.keyed + latent.plain + 3 * latent.value
    normed = sum(2 * _WIDEST * rank + _STATISTIC for rank in ranks)
    return (inputs + shape.heads * head) * kept.element + shape.heads * _LOGSUMEXP + normed


def unkept_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return the bytes of a token that attention of the first block does not keep: no adapter is
    before it, so no gradient reaches it."""
    if kept.adapters is None or kept.adapters.begins_with_attention:
        return 0
    return attention_bytes(shape, kept) + _norm_bytes(shape, kept)


def _each_with_keys(shape: ModelShape, kept: ActivationLayout) -> ModelShape:
    """Return the shape whose division leaves each tensor-parallel rank a head of keys at least."""
    return replace(shape, kv_heads=max(shape.kv_heads, kept.tp))


def _low_rank(shape: ModelShape, adapters: Adapters | None, part: str = "full") -> int:
    """Return the elements of a token that a block's adapters keep, or those of a part: what A
    returns, and with DoRA what B and the frozen product do."""
    return sum(item.extents[0] * (1 if ".lora_A." in item.name else 2 * adapters.dora)
               for item in adapters_again(shape, part, adapters)) if adapters else 0


def recomputed_bytes(shape: ModelShape, kept: ActivationLayout, checkpointing: str) -> int:
    """Return the bytes of a token that a block keeps if it is computed again: its input.

    If only attention is, all but what attention keeps, and its input. With ``operators`` also the
    results of products and attention. Those of the last product of attention and MLP are sums that
    are not divided among tensor-parallel ranks."""
    own = kept.of_tokens(shape.hidden, kept.wide)
    if checkpointing == ATTENTION:
        return (block_bytes(shape, kept) - attention_bytes(shape, kept)
                + shape.hidden * (_WIDEST if kept.copies else kept.element))
    if not keeps_products(checkpointing):
        return own
    columns = shape.inner * (2 if shape.gated else 1)
    divided = 2 * shape.q_hidden + 2 * shape.kv_hidden + columns
    low_rank = sum(item.extents[0] for item in (
        block_adapters(shape, kept.adapters) if kept.adapters else ()))
    return (own + (2 * shape.hidden + low_rank) * kept.element
            + (divided * kept.element + shape.heads * _LOGSUMEXP) // kept.tp)


def embedding_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    if kept.adapters:
        return 0
    return _TOKEN_ID + (_norm_bytes(shape, kept) if shape.family == "bert" else 0)


def head_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    transform = 2 * shape.hidden * kept.element if shape.family == "bert" else 0
    inputs = shape.hidden * kept.element
    if kept.adapters:
        transform, inputs = transform // 2, 0
    logits = logits_of(shape, kept) * _WIDEST if kept.loss == CROSS_ENTROPY else 0
    return _norm_bytes(shape, kept) + transform + inputs + logits


def loss_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return the bytes of a token while the loss is computed, beside what forward keeps.

    Cross entropy is in fp32. Backward has most: logits, their logarithms of probabilities, and a
    gradient, 12 bytes a logit; where ranks divide the words also probabilities. A chunked loss has
    12 bytes for one part of the tokens, one that is fused with the product its inputs' gradient.
    Counted with torch 2.13 by `benchmarks/memory.py`."""
    if kept.loss == LINEAR:
        return shape.hidden * kept.element
    if kept.loss != CROSS_ENTROPY:
        return -(-3 * _WIDEST * logits_of(shape, kept) // LOSS_CHUNKS)
    return logits_of(shape, kept) * _WIDEST * (3 if kept.by_words else 2)


def working_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return a token's bytes of gradients in a block's backward: of residual and activation.

    Those of a ring may be more, when the MLP has left what it kept: gradients of queries, keys and
    values are added up in fp32, in two places while they are sent."""
    inner = (2 if shape.gated else 1) * shape.inner * kept.element // kept.tp
    of_mlp = 2 * kept.of_tokens(shape.hidden, kept.wide) + inner
    if not kept.ring:
        return of_mlp
    shape = _each_with_keys(shape, kept)
    pair = 2 * shape.kv_hidden * ((4 + kept.ring) * kept.element + 3 * _WIDEST)
    of_ring = (shape.q_hidden * (2 * kept.element + _WIDEST) + pair) // kept.tp
    left = block_bytes(shape, kept) - attention_bytes(shape, kept) - _norm_bytes(shape, kept)
    return max(of_mlp, kept.of_tokens(shape.hidden, kept.wide) + of_ring - left)


def _norm_bytes(shape: ModelShape, kept: ActivationLayout) -> int:
    if shape.family == "llama":  # input, statistics and, if its weight is trained, the normed fp32
        normed = _WIDEST if shape.library == OWN_LIBRARY else kept.wide
        return kept.of_tokens(shape.hidden, _WIDEST + (0 if kept.adapters else normed)) + _STATISTIC
    return kept.of_tokens(shape.hidden, kept.wide) + 2 * _STATISTIC


def _head_norms(shape: ModelShape, kept: ActivationLayout) -> int:
    """Return the bytes that the norms of queries and keys keep: as `_norm_bytes`, of each head."""
    if not shape.qk_norm:
        return 0
    normed = 0 if kept.adapters else _WIDEST if shape.library == OWN_LIBRARY else kept.element
    return ((shape.q_hidden + shape.kv_hidden) * (_WIDEST + normed)
            + (shape.heads + shape.kv_heads) * _STATISTIC)


def logits_of(shape: ModelShape, kept: ActivationLayout) -> int:
    return -(-shape.vocab // kept.tp) if kept.by_words else shape.vocab


EVERY = 4  # steps between two divisions: a rank's speed is the median of them
SPEED_BYTES = 8  # in which replicas exchange, in every step, how long a sample took each of them
_GROWTH = 2  # a replica gets at most so many times its even share, so that its memory is bounded


def is_dynamic(work: Training) -> bool:
    return layout_of(work).balanced


def most_share(work: Training) -> int:
    if not is_dynamic(work):
        return work.batch_size
    others = (work.dp - 1) * work.accumulation  # each keeps one in every part
    return min(_GROWTH * work.batch_size, work.global_batch - others)


def divide(work: Training, costs: Sequence[float]) -> tuple[int, ...]:
    """Return the samples of each replica, all of the global batch, for the shortest step.

    ``costs`` is each replica's time for one sample. Each sample goes to the replica that would
    finish it first, which is optimal; the first of equals, so that all ranks agree."""
    least, most = work.accumulation, most_share(work)
    shares = [least] * work.dp
    waiting = [((least + 1) * cost, replica) for replica, cost in enumerate(costs)]
    heapq.heapify(waiting)
    for _ in range(work.global_batch - least * work.dp):
        _, replica = heapq.heappop(waiting)
        shares[replica] += 1
        if shares[replica] < most:
            heapq.heappush(waiting, ((shares[replica] + 1) * costs[replica], replica))
    return tuple(shares)


def uneven_shares(work: Training) -> tuple[int, ...]:
    return divide(work, [1.0 + replica for replica in range(work.dp)])


def unfit_to_balance(work: Training) -> str | None:
    if not is_dynamic(work):
        return None
    if work.dp == 1:
        return "balance=dynamic moves samples between replicas, of which there is one"
    if work.batch_size <= work.accumulation:
        return (f"balance=dynamic has nothing to move: each of {work.accumulation} parts "
                f"(accumulation) of {work.batch_size} samples (batch_size) has but one")
    return None


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline rank's part of a model; without a pipeline all of it, but for others' experts.

    ``rank``: among those of the pipelines whose ranks divide experts. ``first`` and ``last``: it
    has embedding or stem, and the head. ``alone``: a tied weight is copied, since the head is on
    another rank. ``in_flight``: micro-batches whose activations it keeps, each of a part of the
    blocks, as a number of all. ``ahead``: blocks whose results go to another rank; ``behind``:
    blocks of other ranks whose results it got, and which get the gradients."""

    rank: int = 0
    blocks: tuple[int, ...] = ()
    first: bool = True
    last: bool = True
    alone: bool = False
    in_flight: float = 1
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    def tensors(self, shape: AnyShape) -> list[Tensor]:
        before, after = end_tensors(shape, alone=self.alone)
        return [*(before if self.first else ()),
                *(item for number in self.blocks for item in part_tensors(shape, number)),
                *(after if self.last else ())]


def stages_of(work: Training) -> list[Stage]:
    """Return the part of each pipeline rank, of as many pipelines as ranks divide the experts."""
    pipelined, spread = pipelining(work), layout_of(work).experts
    own = [Stage(blocks=tuple(range(work.layers)))] if pipelined is None else [
        _stage(work, pipelined, rank) for rank in range(work.pp)]
    return [replace(stage, rank=rank) for rank, stage in enumerate(
        own * (spread.ep if spread else 1))]


def share_of(work: Training, stage: Stage) -> Share:
    """Return what a stage's rank has of the tokens that go to experts."""
    return shares_of(work)[stage.rank // work.pp]


def busiest_stages(work: Training) -> list[Stage]:
    """Return the stages of which none has less of everything than another of the same blocks.

    What a rank with experts needs grows with what it sends, gets and computes."""
    stages = stages_of(work)
    if layout_of(work).experts is None:
        return stages
    most: list[tuple[Share, Stage]] = []
    for share, stage in sorted(((share_of(work, stage), stage) for stage in stages),
                               key=lambda each: each[0], reverse=True):
        if not any(other.blocks == stage.blocks and all(map(ge, of_other, share))
                   for of_other, other in most):
            most.append((share, stage))
    return [stage for _, stage in most]


def _stage(work: Training, pipelined: Pipelining, rank: int) -> Stage:
    schedule, per_rank, _ = pipelined
    own = stages_on(schedule, work.pp, rank, per_rank)
    last = work.pp * per_rank - 1
    layers = {stage: layers_on(work.layers, last + 1, stage) for stage in own}
    return Stage(
        rank=rank, first=0 in own, last=last in own, alone=True,
        blocks=tuple(number for stage in own for number in layers[stage]),
        in_flight=_under_way(pipelined, work.pp, rank),
        ahead=tuple(layers[stage].stop - 1 for stage in own
                    if stage != last and stage + 1 not in own),
        behind=tuple(layers[stage].start - 1 for stage in own
                     if stage != 0 and stage - 1 not in own))


def _under_way(pipelined: Pipelining, ranks: int, rank: int) -> float:
    """Return the most micro-batches that a rank keeps together.

    Narayanan et al. (arXiv 2104.04473), section 2.2: 1F1B keeps no more than there are ranks
    behind; interleaved, its warm-up of parts of the blocks. Others may keep all."""
    schedule, per_rank, microbatches = pipelined
    if schedule.name == "1F1B":
        return min(microbatches, ranks - rank)
    if schedule.name == "Interleaved1F1B":
        warm_up = (per_rank - 1) * ranks + 2 * (ranks - rank - 1) + 1
        return min(microbatches, warm_up / per_rank)
    return microbatches


@dataclass(frozen=True, slots=True)
class Step:
    """The layout of a step, its micro-batches (``parts``), and samples and tokens of one on a rank
    (0: images)."""

    layout: Layout
    kept: ActivationLayout
    parts: int
    samples: int
    tokens: int


def step_of(work: Training) -> Step:
    layout, narrow = layout_of(work), work.is_narrow
    shared = layout.context
    element = DTYPE_BYTES[work.dtype]
    kept = ActivationLayout(
        element=element, wide=element if layout.groups or narrow else 4,
        copies=work.dtype != "fp32" and layout.groups is None and not narrow,
        adapters=layout.adapters, tp=work.tp, by_tokens=layout.by_tokens, by_words=layout.by_words,
        loss=work.loss,
        ring=(work.cp if shared.gathered else 1) if shared and not shared.by_heads else 0,
        exchanged=shared is not None and shared.by_heads)
    parts = parts_of(work)
    samples = -(-most_share(work) // parts)
    return Step(layout, kept, parts, samples, samples * work.seq_length // work.cp)


def has_large_logits(work: Training) -> bool:
    return step_of(work).tokens * work.vocab * _WIDEST > LARGE_LOGITS
