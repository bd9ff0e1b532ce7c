"""The transformers that can be trained, and their layers as products: extents as published.

Weights are random, so a model is its shape. A layer is m tokens times a weight of (k, n). Biases
and the attention itself are not products with a weight and are left out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from hpcbench.records import dataclass

OWN_LIBRARY = "hpcbench"
"""The library of our own models."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer.

    Attributes:
        family: how it is built. ``gpt``: decoder, learned positions, LayerNorm
            before each part, biases, GELU. ``llama``: decoder, rotary positions, RMSNorm before
            each part, no biases, SwiGLU. ``bert``: encoder, learned positions, LayerNorm after
            each part, biases, GELU, and a head that predicts masked tokens.
        layers: number of blocks.
        hidden: extent of the hidden states.
        heads: heads of the queries; they divide ``hidden``.
        kv_heads: heads of keys and values; they divide ``heads``.
        inner: inner extent of the MLP.
        vocab: number of tokens; also that of the logits, without padding.
        seq_length: the most tokens of a sample, and the learned positions that there are.
        rotary_base: of the angles of rotary positions.
        library: whose model it is; extents and parameters are the same, blocks keep and name them
            otherwise."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    seq_length: int
    rotary_base: float = 10000.0
    library: str = OWN_LIBRARY

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_hidden(self) -> int:
        """Return the extent of the keys of all heads, which is that of the values."""
        return self.kv_heads * self.head_dim

    @property
    def gated(self) -> bool:
        """Return whether the MLP has a gate beside its first matrix: act(X G) * (X U)."""
        return self.family == "llama"

    @property
    def biased(self) -> bool:
        return self.family != "llama"

    @property
    def causal(self) -> bool:
        """Return whether a token attends to those before it only."""
        return self.family != "bert"

    @property
    def tied(self) -> bool:
        """Return whether the logits use the weight of the token embedding."""
        return self.family != "llama"


def _gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """Return a model with GPT-2's vocabulary, context and inner extent of 4 x hidden."""
    return ModelShape("gpt", layers, hidden, heads, heads, 4 * hidden, 50257, 1024)


MODELS: Mapping[str, ModelShape] = MappingProxyType({
    # Radford et al., Language Models are Unsupervised Multitask Learners (2019), table 2; heads:
    # n_head of the published config.json of each size.
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    # Devlin et al., BERT, arXiv:1810.04805 (2019), section 3: L=24, H=1024, A=16; vocabulary of
    # bert-large-uncased's config.json.
    "bert-large": ModelShape("bert", 24, 1024, 16, 16, 4096, 30522, 512),
    # Jiang et al., Mistral 7B, arXiv:2310.06825 (2023), table 1. Its attention looks back over a
    # window of 4096 tokens: up to that length, and no further, it is the causal attention here.
    "mistral-7b": ModelShape("llama", 32, 4096, 32, 8, 14336, 32000, 4096),
    # Grattafiori et al., The Llama 3 Herd of Models, arXiv:2407.21783 (2024), table 3; context of
    # the first pre-training stage, 8192 (section 3.4.1), and vocabulary of the config.json.
    "llama3-8b": ModelShape("llama", 32, 4096, 32, 8, 14336, 128256, 8192, 500000.0),
    "llama3-70b": ModelShape("llama", 80, 8192, 64, 8, 28672, 128256, 8192, 500000.0),
    # Ours, built as GPT-2 and of GPT-3's sizes: Brown et al., arXiv:2005.14165 (2020), table 2.1,
    # Small (125 M), Medium (350 M) and XL (1.3 B). The table's 24 heads of 128 for XL are not 2048
    # together; 16 are, as GPT-Neo 1.3B has them.
    "transformer-small": _gpt(12, 768, 12),
    "transformer-medium": _gpt(24, 1024, 16),
    "transformer-large": _gpt(24, 2048, 16),
    # Ours, for tests and for a first run on a laptop: extents that 2, 4 and 8 ranks divide.
    "transformer-tiny": ModelShape("gpt", 8, 128, 8, 8, 512, 1024, 128),
})


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
    k = hidden for both of its products, without a gate."""
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
    weight = layer_of(model, layer)
    return weight.n, weight.k
