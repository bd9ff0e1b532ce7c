"""The layers of the models in `operations.models`, as products of tokens with one weight.

A layer is m tokens times a weight of (k, n). Biases and the attention itself are not products with
a weight and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from hpcbench.operations.models import MODELS

LAYERS = ("attention_qkv", "attention_out", "mlp_up", "mlp_down")
"""The layers that are one product each."""


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
    inner = {"columns of the MLP": shape.inner}
    return {
        "attention_qkv": Layer(shape.hidden + 2 * shape.kv_hidden, shape.hidden, "n",
                               {**heads, "key-value heads": shape.kv_heads}),
        "attention_out": Layer(shape.hidden, shape.hidden, "k", heads),
        "mlp_up": Layer(shape.inner * (2 if shape.gated else 1), shape.hidden, "n", inner),
        "mlp_down": Layer(shape.hidden, shape.inner, "k", inner),
        "mlp": Layer(shape.inner, shape.hidden, "n", inner),
    }[layer]


def layer_extents(model: str, layer: str) -> tuple[int, int]:
    """Return n and k of a whole layer. Raises KeyError of unknown names."""
    weight = layer_of(model, layer)
    return weight.n, weight.k
