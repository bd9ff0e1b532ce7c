"""The transformers of trainings: what may be shrunk, and how many parameters that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcbench.kinds.training.plan.tensors import block_tensors, embedding_tensors, head_tensors
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
    wide = extents.get("hidden", whole.hidden)
    # Rotary positions turn pairs of a head's elements.
    unit = whole.heads * (2 if whole.family == "llama" else 1)
    if wide % unit or whole.inner * wide % whole.hidden:
        return (f"hidden={wide} cannot be divided among the {whole.heads} heads of {name}; "
                f"take a multiple of {unit}")
    changes: dict[str, Any] = {**extents, "inner": whole.inner * wide // whole.hidden}
    return replace(whole, **changes)


def shape_of(training: Training) -> ModelShape:
    """Return the shape of the model that a case trains."""
    return ModelShape(training.family, training.layers, training.hidden, training.heads,
                      training.kv_heads, training.inner, training.vocab, training.seq_length,
                      MODELS[training.model].rotary_base, training.library)


def parameters(shape: ModelShape) -> int:
    """Return how many parameters a model has.

    GPT-2's are those of OpenAI's released weights, Mistral's and Llama's those of the published
    ones. ``bert-large`` is BERT with the head for masked tokens alone. The released weights have
    1,051,650 more: the pooler and the head that predicts whether sentences follow each other.
    """
    ends = [*embedding_tensors(shape), *head_tensors(shape)]
    return (sum(item.elements for item in ends)
            + shape.layers * sum(item.elements for item in block_tensors(shape)))


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
