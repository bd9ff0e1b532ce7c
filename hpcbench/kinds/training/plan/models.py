"""The transformers of trainings: what may be shrunk, and how many parameters that is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.models import MODELS, ModelShape


def shrink(name: str, layers: int | None = None, hidden: int | None = None,
           seq_length: int | None = None, vocab: int | None = None) -> ModelShape | str:
    """Return the named model with smaller extents, or why there is no such model.

    What is None stays as published. The numbers of heads stay, so that a shrunk model is divisible
    among as many ranks as the whole one; with ``hidden`` the extent of a head and the inner extent
    shrink in proportion. Raises KeyError of unknown names.
    """
    whole = MODELS[name]
    given = {"layers": layers, "hidden": hidden, "seq_length": seq_length, "vocab": vocab}
    extents = {key: value for key, value in given.items() if value is not None}
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


def is_recomputed(checkpointing: str, block: int) -> bool:
    """Return whether a block, or a part of it, is run again. Raises KeyError of unknown names.

    ``selective`` is every second block, numbered in the whole model, beginning with the first.
    """
    return {"none": False, "selective": block % 2 == 0, "operators": True,
            "full": True}[checkpointing]


def keeps_products(checkpointing: str) -> bool:
    """Return whether blocks that are run again keep the results of products and attention."""
    return checkpointing == "operators"
