"""Low-rank adapters: what is trained beside frozen weights, and how those are held.

Hu et al., LoRA, arXiv:2106.09685 (2021), section 4.1: a product x W^T becomes
x W^T + (alpha / rank) (x A^T) B^T. Only A (rank x inputs) and B (outputs x rank) are
trained. Dettmers et al., QLoRA, arXiv:2305.14314 (2023), section 3: W is held in 4 bits (NF4), with
a scale for each block of weights, and the scales are quantised in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hpcbench.kinds.training.plan.models import Tensor, block_tensors, of_transposed
from hpcbench.operations.models import ModelShape

_ATTENTION = (
    "attention.q", "attention.k", "attention.v", "attention.o", "attn.c_attn", "attn.c_proj",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "attention.self.query", "attention.self.key", "attention.self.value",
    "attention.output.dense")
"""What ends the names of products of attention: of ours, then of library transformers."""
_MLP = ("mlp.gate", "mlp.up", "mlp.down", "mlp.c_fc", "mlp.c_proj", "mlp.gate_proj",
        "mlp.up_proj", "mlp.down_proj", "intermediate.dense", "output.dense")
TARGETS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "attention": _ATTENTION, "all": (*_ATTENTION, *_MLP)})
"""Value of the option ``targets`` -> what ends the names of products that have an adapter."""
_HEAD_PRODUCT = ("head.transform.", "library.cls.predictions.transform.dense.")
_LOGITS = ("head.logits.", "library.lm_head.")
_FIRST = ("attention.q", "attention.k", "attention.v", "attn.c_attn")
"""The products of a block's plan that take its normed input."""
NF4_BLOCK = 64
"""Weights with one scale."""
NF4_SCALE_BLOCK = 256
"""Scales with one scale."""
_NF4_CONSTANTS = 4 + 4 * (16 + 256)
"""Bytes beside the scales of a matrix: the mean of the scales, and the tables of 4 and 8 bits,
of which bitsandbytes has a copy for each."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of a training; ``packed``: the weights of blocks are held in NF4."""

    rank: int
    targets: str
    packed: bool

    def has(self, name: str) -> bool:
        product, _, kind = name.rpartition(".")
        return kind == "weight" and product.endswith(TARGETS[self.targets])

    def packs(self, name: str) -> bool:
        """Return whether a weight, by its name in the plain model, is held in NF4."""
        return self.packed and of_block_product(name) and name.endswith(".weight")


def of_block_product(name: str) -> bool:
    return name.rpartition(".")[0].endswith(TARGETS["all"])


def is_narrow(shape: ModelShape, name: str) -> bool:
    """Return whether a frozen parameter is held in the dtype of the arithmetic.

    That are weights and biases of products, but for logits with the embedding's weight. Tables
    that are looked up in, and norms, stay fp32: what is added up in the residual is.
    """
    head = _HEAD_PRODUCT if shape.tied else (*_HEAD_PRODUCT, *_LOGITS)
    return of_block_product(name) or name.startswith(head)


def low_rank_tensors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B of a weight (outputs, inputs), or the other way round."""
    product, (outputs, inputs) = weight.name.removesuffix(".weight"), weight.extents
    if of_transposed(weight.name):
        outputs, inputs = inputs, outputs
    return (Tensor(f"{product}.lora_A.weight", (rank, inputs)),
            Tensor(f"{product}.lora_B.weight", (outputs, rank)))


def block_adapters(shape: ModelShape, adapters: Adapters) -> list[Tensor]:
    return [part for item in block_tensors(shape) if adapters.has(item.name)
            for part in low_rank_tensors(item, adapters.rank)]


def first_products(shape: ModelShape) -> list[Tensor]:
    """Return the weights of a block that its normed input is multiplied with."""
    return [item for item in block_tensors(shape)
            if item.name.endswith(tuple(f"{name}.weight" for name in _FIRST))]


def count(shape: ModelShape, adapters: Adapters) -> int:
    """Return how many parameters all adapters have: rank x (inputs + outputs) of each product."""
    return shape.layers * sum(item.elements for item in block_adapters(shape, adapters))


def scale_bytes(adapters: Adapters | None, parameters: Sequence[Tensor]) -> int:
    """Return the bytes of the scales of all weights in NF4: every rank holds those of all.

    A byte for each block of 64 weights, and an fp32 number for each 256 of these.
    """
    if adapters is None:
        return 0
    packed = [item.elements for item in parameters if adapters.packs(item.name)]
    scales = [-(-elements // NF4_BLOCK) for elements in packed]
    return sum(each + 4 * -(-each // NF4_SCALE_BLOCK) + _NF4_CONSTANTS for each in scales)
