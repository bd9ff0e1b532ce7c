"""Shapes of the matrix products in published models: m tokens times a weight of (k, n).

Only what shapes need: no vocabulary, no number of layers. Biases and the attention itself are not
products with a weight and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Model:
    """Extents of one transformer block.

    ``intermediate`` is the inner extent of the MLP. ``gated``: the MLP has a gate beside its first
    matrix (SwiGLU: act(X G) * (X U)). Queries have ``heads`` heads, keys and values ``kv_heads``.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False


def _plain(hidden: int, heads: int) -> Model:
    """Return a block with an inner extent of 4 x hidden and as many key-value heads as heads."""
    return Model(hidden, 4 * hidden, heads, heads, hidden // heads)


MODELS: Mapping[str, Model] = MappingProxyType({
    # Radford et al., Language Models are Unsupervised Multitask Learners (2019), table 2; heads:
    # n_head of the published config.json of each size.
    "gpt2": _plain(768, 12),
    "gpt2-medium": _plain(1024, 16),
    "gpt2-large": _plain(1280, 20),
    "gpt2-xl": _plain(1600, 25),
    # Devlin et al., BERT, arXiv:1810.04805 (2019), section 3: L=24, H=1024, A=16.
    "bert-large": _plain(1024, 16),
    # Jiang et al., Mistral 7B, arXiv:2310.06825 (2023), table 1.
    "mistral-7b": Model(4096, 14336, 32, 8, 128, gated=True),
    # Grattafiori et al., The Llama 3 Herd of Models, arXiv:2407.21783 (2024), table 3.
    "llama3-8b": Model(4096, 14336, 32, 8, 128, gated=True),
    "llama3-70b": Model(8192, 28672, 64, 8, 128, gated=True),
    # Brown et al., Language Models are Few-Shot Learners, arXiv:2005.14165 (2020), table 2.1:
    # GPT-3 Small (125 M, 12 layers), Medium (350 M, 24 layers) and XL (1.3 B, 24 layers). The
    # table's 24 heads of 128 for XL are not 2048 together; 16 are, as GPT-Neo 1.3B has them.
    "transformer-small": _plain(768, 12),
    "transformer-medium": _plain(1024, 16),
    "transformer-large": _plain(2048, 16),
})
LAYERS = ("attention_qkv", "attention_out", "mlp_up", "mlp_down", "mlp")


class Layer(NamedTuple):
    """The weight of one layer, (k, n), and how tensor parallelism divides it.

    ``divided`` is the extent that ranks share; ``units`` are what each rank has a whole number of.
    """

    n: int
    k: int
    divided: Literal["n", "k"]
    units: Mapping[str, int]


def layer_of(model: str, layer: str) -> Layer:
    """Return a layer's weight on one rank that has all of it. Raises KeyError of unknown names.

    ``attention_qkv``: queries, keys and values in one product. ``mlp_up`` of a gated model: gate
    and up matrix in one product, so n is twice the inner extent. ``mlp`` is n = inner extent,
    k = hidden for both of its products, without a gate.
    """
    shape = MODELS[model]
    heads = {"heads": shape.heads}
    inner = {"columns of the MLP": shape.intermediate}
    queries = shape.heads * shape.head_dim
    layers = {
        "attention_qkv": Layer(queries + 2 * shape.kv_heads * shape.head_dim, shape.hidden, "n",
                               {**heads, "key-value heads": shape.kv_heads}),
        "attention_out": Layer(shape.hidden, queries, "k", heads),
        "mlp_up": Layer(shape.intermediate * (2 if shape.gated else 1), shape.hidden, "n", inner),
        "mlp_down": Layer(shape.hidden, shape.intermediate, "k", inner),
        "mlp": Layer(shape.intermediate, shape.hidden, "n", inner),
    }
    return layers[layer]


def undivided(model: str, layer: str, degree: int) -> str | None:
    """Return why the layer cannot be divided among ``degree`` ranks, or None."""
    bad = [f"{count} {what}" for what, count in layer_of(model, layer).units.items()
           if count % degree]
    return (f"{' and '.join(bad)} of {model} cannot be divided evenly among {degree} ranks"
            if bad else None)


def share_on(model: str, layer: str, degree: int, ranks: int) -> tuple[int, int]:
    """Return (n, k) over ``ranks`` ranks of which each has what one of ``degree`` ranks has.

    With ``ranks`` equal to ``degree`` this is the whole layer. The layer must be dividable.
    """
    weight = layer_of(model, layer)
    if weight.divided == "n":
        return weight.n // degree * ranks, weight.k
    return weight.n, weight.k // degree * ranks
