"""What a forward pass leaves in memory for the backward pass, in bytes for each token.

The method is that of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models" (arXiv 2205.05198), section 4: add up what each operation keeps. Their sum for a 16-bit
block is s b h (34 + 5 a s / h). In it 2 of the 34 are for dropout, and the second term is for an
attention that keeps its probabilities. Here is no dropout, and attention is fused, so a block
without gate keeps 32 bytes x hidden. Autocast keeps the sums of the residual in fp32 and a copy of
the input for each product. A test compares the result with what torch 2.13 keeps on the CPU.

The blocks of transformers' models differ from hpcbench's. GPT-2's has one product for queries,
keys and values. Its GELU is made of single operations (pow, tanh, two products), of which backward
needs three more results. Llama's norms keep what they return in its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.kinds.training.plan.adapters import Adapters, block_adapters
from hpcbench.operations.models import OWN_LIBRARY, ModelShape

_LOGSUMEXP = 4
_STATISTIC = 4
_TOKEN_ID = 8
_WIDEST = 4
LOSS_CHUNKS = 8
"""Parts that the tokens of a chunked loss are divided in, as in torchtune (CEWithChunkedOutputLoss)
and torchtitan, if there are as many."""
_GELU_PARTS = 3
"""Results of the inner extent that transformers' GELU of GPT-2 keeps beside its input."""


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
        chunked: whether logits are of a part of the tokens at a time.
        adapters: what alone is trained; None where all is.
    """

    element: int = 4
    wide: int = 4
    copies: bool = False
    tp: int = 1
    by_tokens: bool = False
    by_words: bool = False
    chunked: bool = False
    adapters: Adapters | None = None

    def of_tokens(self, elements: int, size: int) -> int:
        return elements * size // (self.tp if self.by_tokens else 1)


def block_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what one block keeps of a token, if it is not computed again.

    A frozen product keeps no input: its adapter's A does, and B what A returns. Under autocast A
    has a copy of its own; and weights in 4 bits return what they are given, so that an MLP whose
    input is fp32 is. No strategy here divides adapters.
    """
    adapters, copies, own = kept.adapters, kept.copies, shape.library == OWN_LIBRARY
    is_library_gpt = shape.family == "gpt" and not own
    mlp_too = adapters is None or adapters.has("mlp.up.weight")
    inputs = 3 if copies and not is_library_gpt else 1
    inputs += mlp_too * (2 if copies and shape.gated else 1)
    # Queries that were turned lie head by head, and so does what attention returns for them: it is
    # copied for the next product, which takes it token by token.
    turned = own and shape.family == "llama"
    returned_twice = turned or (copies and adapters is not None)
    attention = shape.hidden * (3 if returned_twice else 2) + 2 * shape.kv_hidden
    if adapters:
        attention += adapters.rank * len(block_adapters(shape, adapters)) // 2
    wide = kept.wide if adapters and copies and adapters.packed else kept.element
    returned = (3 if shape.gated else 1) + _GELU_PARTS * is_library_gpt
    mlp = shape.inner * (returned * wide + mlp_too * kept.element)
    divided = attention * kept.element + mlp + shape.heads * _LOGSUMEXP
    return (2 * _norm_bytes(shape, kept) + inputs * shape.hidden * kept.element
            + divided // (1 if adapters else kept.tp))


def recomputed_bytes(shape: ModelShape, kept: Kept, products: bool = False) -> int:
    """Return what one block keeps of a token if it is computed again: its input.

    With ``products`` it keeps the results of these, too, needed or not, and of attention. Those of
    the last one of attention and MLP are sums that are not divided among tensor-parallel ranks.
    """
    own = kept.of_tokens(shape.hidden, kept.wide)
    if not products:
        return own
    columns = shape.inner * (2 if shape.gated else 1)
    divided = 2 * shape.hidden + 2 * shape.kv_hidden + columns
    low_rank = sum(item.extents[0] for item in (
        block_adapters(shape, kept.adapters) if kept.adapters else ()))
    return (own + (2 * shape.hidden + low_rank) * kept.element
            + (divided * kept.element + shape.heads * _LOGSUMEXP) // kept.tp)


def embedding_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what the embedding keeps of a token: nothing if it is frozen."""
    if kept.adapters:
        return 0
    return _TOKEN_ID + (_norm_bytes(shape, kept) if shape.family == "bert" else 0)


def head_bytes(shape: ModelShape, kept: Kept) -> int:
    transform = 2 * shape.hidden * kept.element if shape.family == "bert" else 0
    inputs = shape.hidden * kept.element
    if kept.adapters:
        transform, inputs = transform // 2, 0
    logits = 0 if kept.chunked else _words(shape, kept) * _WIDEST
    return _norm_bytes(shape, kept) + transform + inputs + logits


def loss_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what of a token is there beside that while the loss is computed.

    torch's cross entropy is in fp32 whatever the logits are in. Backward has most: what was kept,
    the logarithms of the probabilities; their gradient; and that of the logits, together 12 bytes a
    logit. In forward there are the logits, a copy in fp32 if they are not, and the logarithms: at
    most 10. Where ranks divide the words there is one tensor more, the probabilities. Of a chunked
    loss there are these 12 bytes of one part of the tokens, made again in backward.
    Source: storages that torch 2.13 has, counted by `benchmarks/memory.py`.
    """
    if kept.chunked:
        return -(-3 * _WIDEST * _words(shape, kept) // LOSS_CHUNKS)
    return _words(shape, kept) * _WIDEST * (3 if kept.by_words else 2)


def logit_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return the logits of a token, which the last stage of a pipeline keeps until backward."""
    return _words(shape, kept) * kept.element


def working_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what of a token backward of a block works on beside what the block has kept.

    The gradients of the residual, and those of what the MLP's activation takes and returns; what
    the last product has kept is gone by then.
    """
    inner = (2 if shape.gated else 1) * shape.inner * kept.element // (
        1 if kept.adapters else kept.tp)
    return 2 * kept.of_tokens(shape.hidden, kept.wide) + inner


def _norm_bytes(shape: ModelShape, kept: Kept) -> int:
    """Return what a norm keeps: its input and statistics; in llama its input and, if its weight is
    trained, what it has normed, in fp32."""
    if shape.family == "llama":
        normed = _WIDEST if shape.library == OWN_LIBRARY else kept.wide
        return kept.of_tokens(shape.hidden, _WIDEST + (0 if kept.adapters else normed)
                              ) + _STATISTIC
    return kept.of_tokens(shape.hidden, kept.wide) + 2 * _STATISTIC


def _words(shape: ModelShape, kept: Kept) -> int:
    return -(-shape.vocab // kept.tp) if kept.by_words else shape.vocab
