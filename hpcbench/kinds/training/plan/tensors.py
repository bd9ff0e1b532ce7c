"""The parameters of a model, one by one: what is cut into shards and filled into buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from hpcbench.operations.models import OWN_LIBRARY, ModelShape

Counted = TypeVar("Counted")
COLUMNWISE = ("attention.q", "attention.k", "attention.v", "mlp.up", "mlp.gate")
"""Products that tensor parallelism divides by their outputs, weight and bias."""
ROWWISE = ("attention.o", "mlp.down")
"""Products that it divides by their inputs: the weight, not the bias."""
TRANSPOSED = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
"""Products whose weights are (inputs, outputs): those of GPT-2 in library transformers."""


class Tensor(NamedTuple):
    """One parameter: its name in the plain model, its extents, and how it is held."""

    name: str
    extents: tuple[int, ...]
    element_bytes: int = 4
    trained: bool = True

    @property
    def elements(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.extents)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that it is held in."""
        return self.elements * self.element_bytes


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters that are held together; two are the same only if they are one object.

    So what is counted from them can be kept without a look at each of them.
    """

    tensors: tuple[Tensor, ...]

    @cached_property
    def trained(self) -> Parameters:
        """Return those that are trained."""
        kept = tuple(item for item in self.tensors if item.trained)
        return self if len(kept) == len(self.tensors) else Parameters(kept)

    @cached_property
    def elements(self) -> int:
        """Return how many numbers they have."""
        return sum(item.elements for item in self.tensors)

    @cached_property
    def held_bytes(self) -> int:
        """Return the bytes that they are held in."""
        return sum(item.held_bytes for item in self.tensors)


def of_each(
    count: Callable[[Parameters], Counted], groups: Sequence[Parameters],
) -> list[Counted]:
    """Return what is counted of each group; groups that are one object are counted once."""
    counted = {group: count(group) for group in dict.fromkeys(groups)}
    return [counted[group] for group in groups]


def embedding_tensors(shape: ModelShape) -> list[Tensor]:
    """Return the parameters of the embedding, in the order of the model."""
    tensors = [Tensor("embedding.tokens.weight", (shape.vocab, shape.hidden))]
    if shape.family != "llama":
        tensors.append(Tensor("embedding.positions.weight", (shape.seq_length, shape.hidden)))
    if shape.family == "bert":
        tensors.append(Tensor("embedding.types.weight", (2, shape.hidden)))
        tensors += _norm(shape, "embedding.norm")
    return tensors


def block_tensors(shape: ModelShape, number: int = 0) -> list[Tensor]:
    """Return the parameters of a block, in the order of the model."""
    parts = _own_block(shape) if shape.library == OWN_LIBRARY else _library_block(shape)
    return [part._replace(name=f"blocks.{number}.{part.name}") for part in parts]


def _own_block(shape: ModelShape) -> list[Tensor]:
    gate = [("mlp.gate", shape.inner, shape.hidden)] if shape.gated else []
    attention = [("attention.q", shape.hidden, shape.hidden),
                 ("attention.k", shape.kv_hidden, shape.hidden),
                 ("attention.v", shape.kv_hidden, shape.hidden),
                 ("attention.o", shape.hidden, shape.hidden)]
    mlp = [*gate, ("mlp.up", shape.inner, shape.hidden), ("mlp.down", shape.hidden, shape.inner)]
    return [*_norm(shape, "attention_norm"), *_products(shape, attention),
            *_norm(shape, "mlp_norm"), *_products(shape, mlp)]


def _library_block(shape: ModelShape) -> list[Tensor]:
    """Return those of transformers' block, whose order in the model is another.

    Its GPT-2 has one product for queries, keys and values.
    """
    own = {item.name: item for item in _own_block(shape)}
    if shape.family == "gpt":
        width, inner = shape.hidden, shape.inner
        qkv, o, up, down = TRANSPOSED
        return [*_norm(shape, "ln_1"), *_transposed(qkv, width, 3 * width),
                *_transposed(o, width, width), *_norm(shape, "ln_2"),
                *_transposed(up, width, inner), *_transposed(down, inner, width)]
    parts = {"llama": ("attention.", "mlp.", "attention_norm.", "mlp_norm."),
             "bert": ("attention.", "attention_norm.", "mlp.", "mlp_norm.")}[shape.family]
    return [item for part in parts for name, item in own.items() if name.startswith(part)]


def _transposed(name: str, inputs: int, outputs: int) -> list[Tensor]:
    return [Tensor(f"{name}.weight", (inputs, outputs)), Tensor(f"{name}.bias", (outputs,))]


def head_tensors(shape: ModelShape, *, alone: bool = False) -> list[Tensor]:
    """Return the parameters of the head; a tied weight is one of them only where it is ``alone``.

    Alone is the head of a last pipeline stage, which has no embedding.
    """
    tensors = []
    if shape.family == "bert":
        tensors += [Tensor("head.transform.weight", (shape.hidden, shape.hidden)),
                    Tensor("head.transform.bias", (shape.hidden,))]
    tensors += _norm(shape, "head.norm")
    if alone or not shape.tied:
        tensors.append(Tensor("head.logits.weight", (shape.vocab, shape.hidden)))
    if shape.family == "bert":
        bias = Tensor("head.logits.bias", (shape.vocab,))
        tensors.insert(len(tensors) if shape.library == OWN_LIBRARY else 0, bias)
    return tensors


def of_transposed(name: str) -> bool:
    """Return whether a parameter is of a product whose weight is (inputs, outputs)."""
    return name.rpartition(".")[0].endswith(TRANSPOSED)


def _products(shape: ModelShape, products: list[tuple[str, int, int]]) -> Iterator[Tensor]:
    for name, outputs, inputs in products:
        yield Tensor(f"{name}.weight", (outputs, inputs))
        if shape.biased:
            yield Tensor(f"{name}.bias", (outputs,))


def _norm(shape: ModelShape, name: str) -> list[Tensor]:
    biases = [Tensor(f"{name}.bias", (shape.hidden,))] if shape.biased else []
    return [Tensor(f"{name}.weight", (shape.hidden,)), *biases]
