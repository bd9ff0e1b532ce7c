"""What a forward pass leaves in memory for the backward pass, in bytes for each token.

The method is that of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (arXiv 2205.05198), section 4: add up what each operation keeps. Their sum for a 16-bit
block, s b h (34 + 5 a s / h), has 2 of 34 for dropout and the second term for an attention that
keeps its probabilities; both are absent here (no dropout, a fused attention), so a block without
gate keeps 32 bytes x hidden. Mixed precision by autocast keeps the sums of the residual in fp32
and a copy of the input for each product. Compared with what torch 2.13 keeps on the CPU in a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.plan.training.adapters import Adapters
from hpcbench.plan.training.models import ModelShape
from hpcbench.plan.training.tensors import COLUMNWISE, ROWWISE

_LOGSUMEXP = 4
_PRODUCTS = {gated: tuple(f"{name}.weight" for name in (*COLUMNWISE, *ROWWISE)
                          if gated or name != "mlp.gate") for gated in (False, True)}
"""The weights of a block, by whether its MLP has a gate."""
_STATISTIC = 4
_TOKEN_ID = 8
_WIDEST = 4


@dataclass(frozen=True, slots=True)
class Kept:
    """In what elements are kept, and how they are divided among tensor-parallel ranks.

    Attributes:
        element: bytes of an element of the products.
        wide: bytes of an element of the residual and of the norms.
        copies: whether each product casts its input for itself (autocast).
        tp: ranks that heads and columns of the MLP are divided among.
        by_tokens: whether these divide the tokens of the rest (sequence parallel).
        by_words: whether these divide the logits (loss parallel).
        adapters: what alone is trained; None where all is.
    """

    element: int = 4
    wide: int = 4
    copies: bool = False
    tp: int = 1
    by_tokens: bool = False
    by_words: bool = False
    adapters: Adapters | None = None

    def of_tokens(self, elements: int, size: int) -> int:
        """Return the bytes of what is divided with the tokens, if they are."""
        return elements * size // (self.tp if self.by_tokens else 1)


def block_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what one block keeps of a token, if it is not computed again."""
    if kept.adapters:
        return _adapted_bytes(shape, kept, kept.adapters)
    inputs = (3 if kept.copies else 1) + (2 if kept.copies and shape.gated else 1)
    grouped = shape.kv_heads != shape.heads
    attention = shape.hidden * (3 if grouped else 2) + 2 * shape.kv_hidden
    mlp = shape.inner * (4 if shape.gated else 2)
    divided = (attention + mlp) * kept.element + shape.heads * _LOGSUMEXP
    return 2 * _norm_bytes(shape, kept) + inputs * shape.hidden * kept.element + divided // kept.tp


def _adapted_bytes(shape: ModelShape, kept: Kept, adapters: Adapters) -> int:
    """Return what a block keeps whose weights are frozen.

    A frozen product keeps no input: its adapter's A does, and B what A returns. Under autocast A
    has a copy of its own; and weights in 4 bits return what they are given, so that an MLP whose
    input is fp32 is.
    """
    low_rank = adapters.rank * sum(map(adapters.has, _PRODUCTS[shape.gated]))
    mlp_too = adapters.has("mlp.up.weight")
    inputs = (3 if kept.copies else 1) + mlp_too * (
        2 if kept.copies and shape.gated else 1)
    returned_twice = shape.kv_heads != shape.heads or kept.copies
    attention = shape.hidden * (3 if returned_twice else 2) + 2 * shape.kv_hidden
    wide = kept.wide if kept.copies and adapters.packed else kept.element
    mlp = shape.inner * ((3 if shape.gated else 1) * wide + mlp_too * kept.element)
    return (2 * _norm_bytes(shape, kept) + mlp + shape.heads * _LOGSUMEXP
            + (inputs * shape.hidden + attention + low_rank) * kept.element)


def recomputed_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what one block keeps of a token if it is computed again: its input."""
    return kept.of_tokens(shape.hidden, kept.wide)


def embedding_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what the embedding keeps of a token: nothing if it is frozen."""
    if kept.adapters:
        return 0
    return _TOKEN_ID + (_norm_bytes(shape, kept) if shape.family == "bert" else 0)


def head_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what the head and the loss keep of a token."""
    transform = 2 * shape.hidden * kept.element if shape.family == "bert" else 0
    inputs = shape.hidden * kept.element
    if kept.adapters:
        transform, inputs = transform // 2, 0
    return _norm_bytes(shape, kept) + transform + inputs + _words(shape, kept) * 4


def loss_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what of a token is there beside that while the loss is computed.

    The logits, in fp32 too if they are not, and the gradient of the loss.
    """
    copies = 4 if kept.element == 4 else kept.element + 4
    return _words(shape, kept) * (copies + 4)


def _norm_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what a norm keeps: its input and statistics; in llama its input and, if its weight is
    trained, what it has normed, in fp32."""
    if shape.family == "llama":
        copies = 1 if kept.adapters else 2
        return kept.of_tokens(copies * shape.hidden, _WIDEST) + _STATISTIC
    return kept.of_tokens(shape.hidden, kept.wide) + 2 * _STATISTIC


def _words(shape: ModelShape, kept: Kept) -> int:
    return -(-shape.vocab // kept.tp) if kept.by_words else shape.vocab
