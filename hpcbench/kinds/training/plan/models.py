"""The models: extents as published, what may be shrunk, and how many parameters that is.

Weights are random, so a model is its shape. One table serves training and primitives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.config.names import OWN_LIBRARY
from hpcbench.kinds.training.plan.workload import Training

FAMILIES = ("gpt", "llama", "bert")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer.

    Attributes:
        family: how it is built, one of FAMILIES. ``gpt``: decoder, learned positions, LayerNorm
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
            otherwise.
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

    @property
    def head_dim(self) -> int:
        """Return the extent of one head."""
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
        """Return whether the products of a block have biases."""
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


def shrink(name: str, layers: int | None = None, hidden: int | None = None,
           seq_length: int | None = None, vocab: int | None = None) -> ModelShape | str:
    """Return the named model with smaller extents, or why there is no such model.

    What is None stays as published. The numbers of heads stay, so that a shrunk model is divisible
    among as many ranks as the whole one; with ``hidden`` the extent of a head and the inner extent
    shrink in proportion. Raises KeyError of unknown names.
    """
    whole = MODELS[name]
    asked = {"layers": layers, "hidden": hidden, "seq_length": seq_length, "vocab": vocab}
    extents = {key: value for key, value in asked.items() if value is not None}
    for key, value in extents.items():
        most = getattr(whole, key)
        if not 1 <= value <= most:
            return f"{key}={value} is not within 1 to {most}, what {name} has"
    hidden = extents.get("hidden", whole.hidden)
    # Rotary positions turn pairs of a head's elements.
    unit = whole.heads * (2 if whole.family == "llama" else 1)
    if hidden % unit or whole.inner * hidden % whole.hidden:
        return (f"hidden={hidden} cannot be divided among the {whole.heads} heads of {name}; "
                f"take a multiple of {unit}")
    return replace(whole, hidden=hidden, inner=whole.inner * hidden // whole.hidden,
                   layers=extents.get("layers", whole.layers),
                   seq_length=extents.get("seq_length", whole.seq_length),
                   vocab=extents.get("vocab", whole.vocab))


def shape_of(training: Training) -> ModelShape:
    """Return the shape of the model that a case trains."""
    return ModelShape(training.family, training.layers, training.hidden, training.heads,
                      training.kv_heads, training.inner, training.vocab, training.seq_length,
                      MODELS[training.model].rotary_base, training.library)


class Parameters(NamedTuple):
    """How many parameters the parts of a model have; a tied weight counts in ``embedding``.

    ``head`` has the last norm, too. ``tied`` is what the head shares with the embedding.
    """

    embedding: int
    block: int
    layers: int
    head: int
    tied: int

    @property
    def total(self) -> int:
        """Return the parameters of the whole model."""
        return self.embedding + self.layers * self.block + self.head

    def of_stage(self, first: bool, blocks: int, last: bool) -> int:
        """Return those of a pipeline stage; a last stage alone has its own copy of a tied one."""
        ends = first * self.embedding + last * (self.head + (not first) * self.tied)
        return ends + blocks * self.block


def parameters(shape: ModelShape) -> Parameters:
    """Return the parameters of each part, from the extents.

    GPT-2's are those of OpenAI's released weights, Mistral's and Llama's those of the published
    ones. ``bert-large`` is BERT with the head for masked tokens alone: the released weights have
    1,051,650 more, the pooler and the head that tells whether sentences follow each other.
    """
    tokens = shape.vocab * shape.hidden
    norm = shape.hidden * (2 if shape.biased else 1)
    head = {"gpt": norm,
            "llama": norm + tokens,
            "bert": shape.hidden * (shape.hidden + 1) + norm + shape.vocab}[shape.family]
    return Parameters(tokens + _positions(shape, norm), _block(shape, norm), shape.layers, head,
                      tokens if shape.tied else 0)


def _positions(shape: ModelShape, norm: int) -> int:
    """Return what an embedding has beside its tokens; BERT: a norm and two kinds of sentences."""
    if shape.family == "llama":
        return 0
    return shape.seq_length * shape.hidden + (norm + 2 * shape.hidden) * (shape.family == "bert")


def _block(shape: ModelShape, norm: int) -> int:
    widths = 2 * shape.hidden + 2 * shape.kv_hidden + shape.inner + shape.hidden
    return block_weights(shape) + widths * shape.biased + 2 * norm


def block_weights(shape: ModelShape) -> int:
    """Return the elements of the matrices of one block: what its tokens are multiplied with."""
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * shape.kv_hidden
    return attention + (3 if shape.gated else 2) * shape.hidden * shape.inner


CHECKPOINTING = ("none", "selective", "operators", "full")
"""What is recomputed in backward: nothing, every second block, of all blocks what is no product,
all blocks."""


def is_recomputed(checkpointing: str, block: int) -> bool:
    """Return whether a block, or a part of it, is run again. Raises KeyError of unknown names.

    ``selective`` is every second block, numbered in the whole model, beginning with the first.
    """
    return {"none": False, "selective": block % 2 == 0, "operators": True,
            "full": True}[checkpointing]


def keeps_products(checkpointing: str) -> bool:
    """Return whether blocks that are run again keep the results of products and attention."""
    return checkpointing == "operators"
