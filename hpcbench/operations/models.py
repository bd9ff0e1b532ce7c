"""The transformers that can be trained, and their layers as products: extents as published.

Weights are random, so a model is its shape. A layer is m tokens times a weight of (k, n). Biases
and the attention itself are not products with a weight and are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hpcbench.records import dataclass

OWN_LIBRARY = "hpcbench"
"""The library of our own models."""


class Family(NamedTuple):
    """What the models of a family have in common.

    ``gated``: the MLP has a gate beside its first matrix: act(X G) * (X U). ``biased``: products
    have biases, as ``norm_biased`` norms. ``tied``: the logits use the weight of the token
    embedding. ``activation``: ``silu``, ``gelu`` or its approximation ``gelu_tanh``. ``norms`` of
    a block; ``eps``: what they add to the variance."""

    gated: bool
    biased: bool
    tied: bool
    positions: Literal["learned", "rotary", "alibi"]
    activation: str
    norm_biased: bool = True
    norms: int = 2
    eps: float = 1e-5


FAMILIES: Mapping[str, Family] = MappingProxyType({
    "gpt": Family(False, True, True, "learned", "gelu_tanh"),
    "llama": Family(True, False, False, "rotary", "silu", norm_biased=False),
    "bert": Family(False, True, True, "learned", "gelu", eps=1e-12),
    "neox": Family(False, True, False, "rotary", "gelu"),
    "phi": Family(False, True, False, "rotary", "gelu_tanh", norms=1),
    "mpt": Family(False, False, True, "alibi", "gelu", norm_biased=False),
})


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: MLPs instead of that of a block, of which each token passes a few.

    Attributes:
        number: of routed experts in a block.
        per_token: how many of them each token goes to.
        inner: inner extent of one.
        shared_inner: inner extent of the experts together that every token passes; they are one
            MLP.
        dense_layers: first blocks that have an MLP of the model's own ``inner`` instead.
        scores: of the router: ``softmax`` over all experts, or ``sigmoid`` of each, to which a
            bias that balances the load is added for the choice alone.
        groups: equal groups of experts, of which a token goes to ``groups_per_token`` only.
        normalised: whether the weights of a token's experts are divided by their sum.
        scale: what they are multiplied with."""

    number: int
    per_token: int
    inner: int
    shared_inner: int = 0
    dense_layers: int = 0
    scores: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    groups_per_token: int = 1
    normalised: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are products of a small latent (DeepSeek-V2,
    arXiv:2405.04434, section 2.1).

    ``query_rank`` and ``rank`` are extents of the latents of queries (0: they have none) and of
    keys and values. A head's queries and keys have ``plain`` extents without positions and
    ``rotary`` with; the rotary part of the keys is the same for all heads. Its values have
    ``value``."""

    rank: int
    plain: int
    rotary: int
    value: int
    query_rank: int = 0

    @property
    def keyed(self) -> int:
        """Return the extent of a head's queries and keys."""
        return self.plain + self.rotary


@dataclass(frozen=True, slots=True)
class Yarn:
    """Rotary positions beyond the original ones (YaRN, Peng et al., arXiv:2309.00071).

    What turns ``beta_slow`` times or less in these turns ``factor`` times slower; what turns
    ``beta_fast`` times or more, as before. Cosines and sines are multiplied with
    ``attention_factor``; scores, where keys are of latents, with the square of the last mscale."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
    mscale_all_dim: float = 0.0
    attention_factor: float = 1.0

    def mscale(self, weight: float) -> float:
        return 1 + 0.1 * weight * math.log(max(self.factor, 1))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer.

    Attributes:
        family: how it is built. ``gpt``: decoder, learned positions, LayerNorm
            before each part, biases, GELU. ``llama``: decoder, rotary positions, RMSNorm before
            each part, no biases, SwiGLU. ``bert``: encoder, learned positions, LayerNorm after
            each part, biases, GELU, and a head that predicts masked tokens. Counted only:
            ``neox`` and ``phi``: decoders whose attention and MLP have the same input, of two
            norms or one; ``mpt``: a decoder with biases by distance instead of positions.
        layers: number of blocks.
        hidden: extent of the hidden states.
        heads: heads of the queries.
        kv_heads: heads of keys and values; they divide ``heads``.
        inner: inner extent of the MLP.
        vocab: number of tokens; also that of the logits, without padding.
        seq_length: the most tokens of a sample, and the learned positions that there are.
        rotary_base: of the angles of rotary positions.
        library: whose model it is; extents and parameters are the same, blocks keep and name them
            otherwise.
        head_extent: of one head; 0: ``hidden`` / ``heads``.
        qkv_biased: whether queries, keys and values have biases where other products have none.
        qk_norm: whether each head's queries and keys have an RMSNorm before they are turned.
        tied_logits, activation, norm_eps: instead of the family's; eps 0: the family's.
        embedding_scaled: whether embeddings are multiplied with the root of ``hidden``.
        documents: that a sample is cut into, of which none sees another.
        window: tokens back that attention reaches, if fewer than the positions; 0: all.
        rotary_scaling: of Llama 3.1: factor, low and high frequency factor, original positions.
        experts, latent, yarn: None where MLP, attention and angles are plain.
        unlike: what the published model has and no block here; parameters and FLOPs are the same.
    """

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
    head_extent: int = 0
    qkv_biased: bool = False
    qk_norm: bool = False
    tied_logits: bool | None = None
    activation: str = ""
    norm_eps: float = 0.0
    embedding_scaled: bool = False
    rotary_scaling: tuple[float, float, float, int] | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None
    yarn: Yarn | None = None
    unlike: str = ""
    window: int = 0
    documents: int = 1

    @property
    def built(self) -> Family:
        return FAMILIES[self.family]

    @property
    def head_dim(self) -> int:
        return self.head_extent or self.hidden // self.heads

    @property
    def q_hidden(self) -> int:
        """Return the extent of the queries of all heads."""
        return self.heads * self.head_dim

    @property
    def kv_hidden(self) -> int:
        """Return the extent of the keys of all heads, which is that of the values."""
        return self.kv_heads * self.head_dim

    @property
    def turned(self) -> int:
        """Return the extents of a head that rotary positions turn."""
        return self.latent.rotary if self.latent else self.head_dim

    @property
    def gated(self) -> bool:
        return self.built.gated

    @property
    def biased(self) -> bool:
        return self.built.biased

    @property
    def causal(self) -> bool:
        """Return whether a token attends to those before it only."""
        return self.family != "bert"

    @property
    def tied(self) -> bool:
        """Return whether the logits use the weight of the token embedding."""
        return self.built.tied if self.tied_logits is None else self.tied_logits

    @property
    def is_plain(self) -> bool:
        """Return whether each layer of a block is one product (`LAYERS`)."""
        return self.experts is None and self.latent is None


def _gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """Return a model with GPT-2's vocabulary, context and inner extent of 4 x hidden."""
    return ModelShape("gpt", layers, hidden, heads, heads, 4 * hidden, 50257, 1024)


def _llama2(layers: int, hidden: int, heads: int, kv_heads: int, inner: int) -> ModelShape:
    return ModelShape("llama", layers, hidden, heads, kv_heads, inner, 32000, 4096)


def _llama3(layers: int, hidden: int, heads: int, inner: int, **more: Any) -> ModelShape:
    return ModelShape("llama", layers, hidden, heads, 8, inner, 128256, 8192, 500000.0, **more)


def _qwen3(
    layers: int, hidden: int, heads: int, inner: int, *, tied: bool = False,
) -> ModelShape:
    return ModelShape("llama", layers, hidden, heads, 8, inner, 151936, 4096, 1e6,
                      head_extent=0 if heads * 128 == hidden else 128, qk_norm=True,
                      tied_logits=tied or None, norm_eps=1e-6)


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
    # Touvron et al., Llama 2, arXiv:2307.09288 (2023), table 1; extents of the config.json files.
    "llama2-7b": _llama2(32, 4096, 32, 32, 11008),
    "llama2-13b": _llama2(40, 5120, 40, 40, 13824),
    "llama2-70b": _llama2(80, 8192, 64, 8, 28672),
    # Jiang et al., Mistral 7B, arXiv:2310.06825 (2023), table 1. Its attention looks back over a
    # window of 4096 tokens: up to that length, and no further, it is the causal attention here.
    "mistral-7b": ModelShape("llama", 32, 4096, 32, 8, 14336, 32000, 4096),
    # Grattafiori et al., The Llama 3 Herd of Models, arXiv:2407.21783 (2024), table 3; context of
    # the first pre-training stage, 8192 (section 3.4.1), without the later scaling of positions,
    # and vocabulary of the config.json. 1B and 3B are those of Llama 3.2.
    "llama3-8b": _llama3(32, 4096, 32, 14336),
    "llama3-70b": _llama3(80, 8192, 64, 28672),
    "llama3-405b": _llama3(126, 16384, 128, 53248),
    "llama3-1b": _llama3(16, 2048, 32, 8192, tied_logits=True),
    "llama3-3b": _llama3(28, 3072, 24, 8192, tied_logits=True),
    # Yang et al., Qwen3, arXiv:2505.09388 (2025), table 1; extents of the config.json files, and
    # context of the first pre-training stage (section 3.2).
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600),
    # Jiang et al., Mixtral of Experts, arXiv:2401.04088 (2024), table 1.
    "mixtral-8x7b": ModelShape("llama", 32, 4096, 32, 8, 14336, 32000, 32768, 1e6,
                               experts=Experts(8, 2, 14336)),
    # DeepSeek-AI, DeepSeek-V2, arXiv:2405.04434 (2024), appendix B.1, and DeepSeek-V3,
    # arXiv:2412.19437 (2024), section 4.2, without the part that predicts a second token; angles
    # of the config.json files.
    "deepseek-v2-lite": ModelShape(
        "llama", 27, 2048, 16, 16, 10944, 102400, 4096, norm_eps=1e-6,
        experts=Experts(64, 6, 1408, 2 * 1408, 1, normalised=False),
        latent=LatentAttention(512, 128, 64, 128), yarn=Yarn(40.0, 32.0, 1.0, 4096, 0.707)),
    "deepseek-v3": ModelShape(
        "llama", 61, 7168, 128, 128, 18432, 129280, 4096, norm_eps=1e-6,
        experts=Experts(256, 8, 2048, 2048, 3, "sigmoid", 8, 4, scale=2.5),
        latent=LatentAttention(512, 128, 64, 128, query_rank=1536),
        yarn=Yarn(40.0, 32.0, 1.0, 4096, 1.0)),
    # Ours, built as GPT-2 and of GPT-3's sizes: Brown et al., arXiv:2005.14165 (2020), table 2.1,
    # Small (125 M), Medium (350 M) and XL (1.3 B). The table's 24 heads of 128 for XL are not 2048
    # together; 16 are, as GPT-Neo 1.3B has them.
    "transformer-small": _gpt(12, 768, 12),
    "transformer-medium": _gpt(24, 1024, 16),
    "transformer-large": _gpt(24, 2048, 16),
    # Ours, for tests and for a first run on a laptop: extents that 2, 4 and 8 ranks divide.
    "transformer-tiny": ModelShape("gpt", 8, 128, 8, 8, 512, 1024, 128),
    "moe-tiny": ModelShape("llama", 4, 128, 8, 4, 512, 1024, 128,
                           experts=Experts(8, 2, 256, shared_inner=128, dense_layers=1)),
    "mla-tiny": ModelShape("llama", 4, 128, 8, 8, 512, 1024, 128, norm_eps=1e-6,
                           experts=Experts(8, 2, 256, 128, 1, "sigmoid", 4, 2, scale=2.5),
                           latent=LatentAttention(64, 8, 8, 16, query_rank=96)),
})


_BY_HUB = {
    "openai-community": {name: name for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "google-bert": {"bert-large-uncased": "bert-large"},
    "mistralai": {"Mistral-7B-v0.1": "mistral-7b", "Mixtral-8x7B-v0.1": "mixtral-8x7b"},
    "meta-llama": {
        **{f"Llama-2-{size}-hf": f"llama2-{size}" for size in ("7b", "13b", "70b")},
        **{f"{name}-{size.upper()}": f"llama3-{size}" for name, sizes in (
            ("Meta-Llama-3", ("8b", "70b")), ("Llama-3.1", ("8b", "70b", "405b")),
            ("Llama-3.2", ("1b", "3b"))) for size in sizes}},
    "Qwen": {f"Qwen3-{size.upper()}{base}": f"qwen3-{size}" for base in ("", "-Base")
             for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b") if (size, base) != (
                 "32b", "-Base")},
    "deepseek-ai": {"DeepSeek-V2-Lite": "deepseek-v2-lite", "DeepSeek-V3": "deepseek-v3"}}
HUB: Mapping[str, str] = MappingProxyType({
    f"{owner}/{name}": model for owner, models in _BY_HUB.items()
    for name, model in models.items()})
"""Name on huggingface.co -> the model of that shape."""


def shipped(name: str) -> str:
    """Return our name of a model's name on the hub; another name as it is."""
    return HUB.get(name, name)


PLAIN = tuple(name for name, shape in MODELS.items() if shape.is_plain)
"""The models whose layers are one product each."""
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
        "attention_qkv": Layer(shape.q_hidden + 2 * shape.kv_hidden, shape.hidden, "n",
                               {**heads, "key-value heads": shape.kv_heads}),
        "attention_out": Layer(shape.hidden, shape.q_hidden, "k", heads),
        "mlp_up": Layer(shape.inner * (2 if shape.gated else 1), shape.hidden, "n", inner),
        "mlp_down": Layer(shape.hidden, shape.inner, "k", inner),
        "mlp": Layer(shape.inner, shape.hidden, "n", inner),
    }[layer]


def layer_extents(model: str, layer: str) -> tuple[int, int]:
    weight = layer_of(model, layer)
    return weight.n, weight.k
