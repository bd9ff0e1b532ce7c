"""Ranks that share the tokens of each sample: what their attention exchanges and computes.

In a ring (Liu et al., Ring Attention, arXiv 2310.01889) a rank keeps its queries, and keys and
values of the others come by; in backward their gradients return to their rank, in fp32. By heads
(Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509) one all-to-all gives a rank all tokens of some
heads, another one gives them back. Under a causal mask later tokens see more: a rank with two parts
of 2 n, one from each end of the sample, has as much work as any other (Llama 3, arXiv 2407.21783,
section 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.kinds.training.plan import models
from hpcbench.kinds.training.plan.memory import WEIGHT_BYTES
from hpcbench.kinds.training.plan.spec import Calls, TokenSharing, calls, context_of
from hpcbench.kinds.training.plan.step import Stage, Step
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.loads import max_over_mean

_LOSS = 4
_FEWEST = "megatron"  # the definition of FLOPs that counts the pairs of a mask only


def token_parts(work: Training) -> int:
    """Return the equal parts that the tokens of a sample are divided in."""
    context = context_of(work)
    return work.cp * (2 if context and context.zigzag else 1)


def head_parts(work: Training) -> int:
    """Return the ranks that the heads of a layer are divided among."""
    context = context_of(work)
    return work.tp * (work.cp if context and context.by_heads else 1)


def calls_of(
    work: Training, context: TokenSharing, step: Step, stage: Stage,
) -> Iterator[Calls]:
    """Yield the calls of a rank's attention, and where the loss is its sum, whose parts lie on all
    ranks."""
    shape, ranks = models.shape_of(work), work.cp
    blocks, parts = len(stage.blocks), step.parts
    forwards = blocks + sum(models.is_recomputed(work.checkpointing, one) for one in stage.blocks)
    element = step.kept.element
    if context.by_heads:
        heads = step.tokens * shape.q_hidden // work.tp * element
        both = heads + 2 * step.tokens * shape.kv_hidden // work.tp * element
        yield calls("all_to_all", ranks, [both, heads] * parts * (blocks + forwards))
    else:
        pair = 2 * step.tokens * shape.kv_hidden // min(work.tp, work.kv_heads)
        passed = parts * (blocks + forwards)
        if context.gathered:
            yield calls("all_gather", ranks, [ranks * pair * element] * passed)
        sent = [] if context.gathered else [pair * element] * (ranks - 1) * passed
        yield calls("send_recv", ranks, sent + [pair * WEIGHT_BYTES] * ranks * blocks * parts)
    yield calls("all_reduce", ranks, [_LOSS] * stage.last)


def shared_flops(work: Training, every: int, passes: int) -> int:
    """Return a rank's part of the FLOPs ``every`` of one replica, of the rank with most.

    ``passes`` of a block's attention are among them, over all pairs of tokens."""
    if work.cp == 1:
        return every
    shape, ranks = models.shape_of(work), work.cp
    attention = work.batch_size * passes * models.attention_flops(
        models.DEFINITIONS[models.EXECUTED], shape)
    context = context_of(work)
    halves = ranks + 1 if context and context.zigzag else 2 * ranks
    return (every - attention) // ranks + attention * halves // (2 * ranks * ranks)


def attention_flops(work: Training) -> tuple[int, ...]:
    """Return the FLOPs of attention of each rank that shares a sample in a step, without what is
    computed again; none where no ranks do.

    Of a causal model those of the pairs that its mask leaves."""
    if work.cp == 1:
        return ()
    shape = models.shape_of(work)
    total = 3 * work.batch_size * shape.layers * models.attention_flops(
        models.DEFINITIONS[_FEWEST], shape) // work.tp
    context = context_of(work)
    even = context is None or context.by_heads or context.zigzag or not shape.causal
    shares = [1 if even else 2 * rank + 1 for rank in range(work.cp)]
    return tuple(total * share // sum(shares) for share in shares)


def attention_imbalance(work: Training) -> float | None:
    """Return the most of `attention_flops` over their mean; None where there are none."""
    flops = attention_flops(work)
    return max_over_mean(flops) if flops else None
