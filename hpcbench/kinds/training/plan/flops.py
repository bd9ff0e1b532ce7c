"""How many FLOPs a training step has, under each definition that is in use.

Work is counted, not time: one multiplication and one addition are 2. Every definition counts 6 for
each token and weight: 2 for forward, 2 for the gradient of weights, 2 for that of activations. It
adds none, half or all of the attention: the products of queries with keys, and of probabilities
with values. An MFU means nothing without the name of its definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.kinds.training.plan import models
from hpcbench.kinds.training.plan.adapters import (
    Adapters,
    block_adapters,
    count,
    first_products,
    low_rank_tensors,
)
from hpcbench.operations.models import ModelShape

EXECUTED = "counted"
"""The definition of FLOPs that counts what is executed."""


class Definition(NamedTuple):
    """What counts as the model's FLOPs.

    ``weights`` returns the elements that each token is counted to be multiplied with,
    ``halves`` how many halves of the attention count.
    """

    meaning: str
    source: str
    weights: Callable[[ModelShape], int]
    halves: Callable[[ModelShape], int]


def multiplied(shape: ModelShape) -> int:
    """Return the weights that tokens are really multiplied with: blocks and head, no lookups."""
    transform = shape.hidden * shape.hidden if shape.family == "bert" else 0
    return shape.layers * models.block_weights(shape) + shape.vocab * shape.hidden + transform


def _without_lookups(shape: ModelShape) -> int:
    """Return all parameters but tables that are only looked up; a tied one is the head's, too."""
    tables = 0 if shape.tied else shape.vocab * shape.hidden
    positions = 0 if shape.family == "llama" else shape.seq_length * shape.hidden
    kinds = 2 * shape.hidden if shape.family == "bert" else 0
    return models.parameters(shape) - tables - positions - kinds


DEFINITIONS: Mapping[str, Definition] = MappingProxyType({
    "6n": Definition(
        "6 x parameters x tokens, no attention",
        "Kaplan et al., arXiv:2001.08361 (2020), section 2.1; here N has the embedding, too",
        models.parameters, lambda shape: 0),
    "palm": Definition(
        "6 x parameters x tokens, and attention over all pairs of tokens",
        "Chowdhery et al., PaLM, arXiv:2204.02311 (2022), appendix B; llm-foundry, picotron",
        models.parameters, lambda shape: 2),
    "torchtitan": Definition(
        "as palm, without embedding tables unless the head shares them",
        "torchtitan 01c01c8 (2026), torchtitan/models/utils.py",
        _without_lookups, lambda shape: 2),
    "megatron": Definition(
        "products with weights only, and attention over the pairs that a causal mask leaves",
        "Megatron-LM d98e8a6 (2026), num_floating_point_operations; vocabularies unpadded",
        multiplied, lambda shape: 1 if shape.causal else 2),
    "counted": Definition(
        "what torch counts when it runs the model: products with weights, attention over all pairs",
        "torch.utils.flop_counter.FlopCounterMode with SDPBackend.MATH",
        multiplied, lambda shape: 2),
})


EXACT = ("megatron", "counted")
"""Definitions that count products one by one, and so can leave out what frozen weights save."""


def flops(
    shape: ModelShape, samples: int, adapters: Adapters | None = None,
) -> tuple[tuple[str, int], ...]:
    """Return the model's FLOPs of one training step on ``samples``, for each definition.

    With adapters only for those that are `EXACT`: 6 for each parameter is no estimate there.
    """
    if adapters:
        return tuple((name, samples * _with_adapters(DEFINITIONS[name], shape, adapters))
                     for name in EXACT)
    return tuple((name, samples * (
        6 * shape.seq_length * definition.weights(shape)
        + 3 * shape.layers * _attention(definition, shape)))
        for name, definition in DEFINITIONS.items())


def recomputed(
    shape: ModelShape, samples: int, checkpointing: str, definition: str,
    adapters: Adapters | None = None,
) -> int:
    """Return the FLOPs that activation checkpointing adds to a step as torch runs it.

    A block is run again, but for its last product where nothing after it is kept for backward:
    torch stops there (``set_checkpoint_early_stop`` of torch.utils.checkpoint). Attention counts as
    in ``definition``. Raises KeyError of unknown names.
    """
    blocks = _blocks_again(shape, checkpointing)
    low_rank = block_adapters(shape, adapters) if adapters else []
    # BERT's last norm keeps what the last product returns, so there all of the block is run again.
    last = 0 if shape.family == "bert" else shape.hidden * shape.inner
    if last and low_rank and ".mlp." in low_rank[-1].name:
        last = low_rank[-1].elements
    return (forward_again(shape, samples, checkpointing, definition, adapters)
            - samples * blocks * 2 * shape.seq_length * last)


def forward_again(
    shape: ModelShape, samples: int, checkpointing: str, definition: str,
    adapters: Adapters | None = None,
) -> int:
    """Return the FLOPs of a whole forward pass of each block that is run again.

    So papers count what checkpointing adds: 2 for each token and weight of a block to its 6, which
    makes 4/3 (Narayanan et al., arXiv:2104.04473, appendix). Attention counts as in ``definition``.
    Raises KeyError of unknown names.
    """
    low_rank = block_adapters(shape, adapters) if adapters else []
    weights = models.block_weights(shape) + sum(item.elements for item in low_rank)
    whole = 2 * shape.seq_length * weights + _attention(DEFINITIONS[definition], shape)
    return samples * _blocks_again(shape, checkpointing) * whole


def _blocks_again(shape: ModelShape, checkpointing: str) -> int:
    """Return how many blocks have products that are run again."""
    if models.keeps_products(checkpointing):
        return 0
    return sum(models.is_recomputed(checkpointing, block) for block in range(shape.layers))


def _with_adapters(definition: Definition, shape: ModelShape, adapters: Adapters) -> int:
    """Return the FLOPs on one sample where adapters alone are trained.

    A frozen weight has a forward product and one for the gradient of its input, none for its own:
    4 for each token and weight instead of 6. Nothing before the first adapter is trained. So the
    first products of the first block have no gradient of their input, nor has their A.
    """
    idle = sum(item.elements + low_rank_tensors(item, adapters.rank)[0].elements
               for item in first_products(shape))
    weights = 4 * multiplied(shape) + 6 * count(shape, adapters) - 2 * idle
    return shape.seq_length * weights + 3 * shape.layers * _attention(definition, shape)


def _attention(definition: Definition, shape: ModelShape) -> int:
    """Return what counts of one block's forward attention on one sample: two products."""
    return 2 * shape.seq_length * shape.seq_length * shape.hidden * definition.halves(shape)
