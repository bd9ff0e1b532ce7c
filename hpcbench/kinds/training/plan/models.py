"""The transformers of trainings: with other extents, and how many parameters that is.

The parameters of a model, one by one: what is cut into shards and filled into buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.models import MODELS, OWN_LIBRARY, ModelShape


def with_extents(name: str, **extents: int | None) -> ModelShape | str:
    """Return the named model with these extents, smaller or larger, or why there is no such model.

    ``extents`` are the fields of `ModelShape` that are numbers of something. What is None follows
    the model. The numbers of heads stay, so that the model is divisible among as many ranks as
    before. With ``hidden`` the extent of a head and the inner extent change in proportion. With
    ``heads`` those of keys and values do (`following_kv_heads`). Raises KeyError of unknown names.
    """
    whole = MODELS[name]
    given = {key: value for key, value in extents.items() if value is not None}
    if zero := next((key for key, value in given.items() if value < 1), None):
        return f"{zero}={given[zero]} is less than 1"
    changes: dict[str, Any] = {**given}
    shape = replace(whole, **changes)
    kv_heads = given.get("kv_heads") or following_kv_heads(whole, shape.heads)
    inner = given.get("inner") or following_inner(whole, shape.hidden)
    if reason := _undivided_heads(name, shape, "heads" in given):
        return reason
    if kv_heads is None:
        return (f"heads={shape.heads} is not a multiple of {_sharing(whole)}, the heads that share "
                f"keys and values in {name}; give kv_heads, for example "
                f"{_nearest_divisors(shape.heads, shape.heads // _sharing(whole))}")
    if shape.heads % kv_heads:
        return (f"kv_heads={kv_heads} does not divide {shape.heads} heads; take "
                f"{_nearest_divisors(shape.heads, kv_heads)}")
    if inner is None:
        return (f"hidden={shape.hidden} leaves no whole inner extent in the proportion of {name}; "
                "give inner, too")
    return replace(shape, kv_heads=kv_heads, inner=inner)


def named_extents(name: str, extents: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the extents that do not follow from the model and the hidden extent, for labels.

    Numbers of layers and tokens are always named. A vocabulary that is smaller than the model's is
    not: labels were without it before there were larger ones. Raises KeyError of unknown names.
    """
    whole, found = MODELS[name], []
    if extents["heads"] != whole.heads:
        found.append("heads")
    if extents["kv_heads"] != following_kv_heads(whole, extents["heads"]):
        found.append("kv_heads")
    if extents["inner"] != following_inner(whole, extents["hidden"]):
        found.append("inner")
    if extents["vocab"] > whole.vocab:
        found.append("vocab")
    return tuple((key, extents[key]) for key in found)


def following_kv_heads(whole: ModelShape, heads: int) -> int | None:
    """Return how many heads of keys and values go with so many heads, as in the whole model.

    As many queries share them as there; None if that does not divide the heads.
    """
    return None if heads % _sharing(whole) else heads // _sharing(whole)


def following_inner(whole: ModelShape, hidden: int) -> int | None:
    """Return the inner extent that has the model's proportion to ``hidden``, None if none has."""
    return None if whole.inner * hidden % whole.hidden else whole.inner * hidden // whole.hidden


def _sharing(whole: ModelShape) -> int:
    return whole.heads // whole.kv_heads


def _undivided_heads(name: str, shape: ModelShape, given: bool) -> str | None:
    """Return why the hidden extent cannot be divided among the heads, or None."""
    unit = 2 if shape.family == "llama" else 1  # rotary positions turn pairs of elements
    if shape.hidden % (shape.heads * unit) == 0:
        return None
    which = f"{shape.heads} heads" if given else f"the {shape.heads} heads of {name}"
    pairs = " of an even extent, which rotary positions need" * (unit > 1)
    instead = ("" if shape.hidden % unit else
               f", or heads={_nearest_divisors(shape.hidden // unit, shape.heads)}")
    return (f"hidden={shape.hidden} cannot be divided among {which}{pairs}; take a multiple of "
            f"{shape.heads * unit}{instead}")


def _nearest_divisors(number: int, wanted: int) -> str:
    """Return the divisors of a number next to ``wanted``, below and above it, as text."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    every = sorted({*small, *(number // each for each in small)})
    below = [each for each in every if each <= wanted][-1:]
    above = [each for each in every if each > wanted][:1]
    return " or ".join(map(str, below + above))


def shape_of(training: Training) -> ModelShape:
    return ModelShape(training.family, training.layers, training.hidden, training.heads,
                      training.kv_heads, training.inner, training.vocab, training.seq_length,
                      MODELS[training.model].rotary_base, training.library)


@lru_cache(maxsize=256)
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
        return math.prod(self.extents)

    @property
    def held_bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True, eq=False)
class Parameters:
    """Parameters that are held together; two are the same only if they are one object.

    So what is counted from them can be kept without a look at each of them.
    """

    tensors: tuple[Tensor, ...]

    @cached_property
    def trained(self) -> Parameters:
        kept = tuple(item for item in self.tensors if item.trained)
        return self if len(kept) == len(self.tensors) else Parameters(kept)

    @cached_property
    def elements(self) -> int:
        return sum(item.elements for item in self.tensors)

    @cached_property
    def held_bytes(self) -> int:
        return sum(item.held_bytes for item in self.tensors)


def of_each(
    count: Callable[[Parameters], Counted], groups: Sequence[Parameters],
) -> list[Counted]:
    """Return what is counted of each group; groups that are one object are counted once."""
    counted = {group: count(group) for group in dict.fromkeys(groups)}
    return [counted[group] for group in groups]


def embedding_tensors(shape: ModelShape) -> list[Tensor]:
    tensors = [Tensor("embedding.tokens.weight", (shape.vocab, shape.hidden))]
    if shape.family != "llama":
        tensors.append(Tensor("embedding.positions.weight", (shape.seq_length, shape.hidden)))
    if shape.family == "bert":
        tensors.append(Tensor("embedding.types.weight", (2, shape.hidden)))
        tensors += _norm(shape, "embedding.norm")
    return tensors


def block_tensors(shape: ModelShape, number: int = 0) -> list[Tensor]:
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
