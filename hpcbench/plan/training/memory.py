"""How much memory a rank needs to train: weights, gradients, optimizer state and activations.

Pure arithmetic from the extents; what an allocator keeps beyond that is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hpcbench.plan.training.activations import (
    block_bytes,
    embedding_bytes,
    head_bytes,
    loss_bytes,
    recomputed_bytes,
)
from hpcbench.plan.training.layout import Layout, divided, layout_of, sharded
from hpcbench.plan.training.models import (
    ModelShape,
    is_recomputed,
    keeps_products,
    shape_of,
)
from hpcbench.plan.training.stages import Stage
from hpcbench.plan.training.tensors import Tensor, block_tensors
from hpcbench.plan.workload import Training

WEIGHT_BYTES = 4
"""Weights, gradients and the states of optimizers are fp32 whatever the arithmetic is in."""
STATES: Mapping[str, int] = MappingProxyType({"adamw": 2, "sgd": 0})
"""Numbers of the optimizer for each weight; sgd has no momentum."""
_STEP_BYTES = 4
"""adamw counts the steps of each parameter in an fp32 number of its own."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank. Their sum is an upper bound: gradients come as activations go.

    ``parameters``, ``gradients`` and ``optimizer`` are exact; ``activations`` are what forward
    passes keep for backward; ``buffers`` are buckets of gradients, gathered parameters, and copies
    of weights in the dtype of the arithmetic.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """Return all of it."""
        return (self.parameters + self.gradients + self.optimizer + self.activations
                + self.buffers)


def memory_of(work: Training, stage: Stage) -> Memory:
    """Return what the rank with these parts of the model needs, of its group the one with most."""
    layout, shape = layout_of(work), shape_of(work)
    local = divided(stage.tensors(shape), work.tp)
    own = sharded(local, layout.shards)
    weights = _elements(own) * WEIGHT_BYTES
    return Memory(
        parameters=weights, gradients=weights,
        optimizer=_state_bytes(work.optimizer, own, layout.state_ranks),
        activations=_activations(work, shape, stage, layout),
        buffers=_buffers(stage, shape, work, layout))


def _elements(parameters: Sequence[Tensor]) -> int:
    return sum(item.elements for item in parameters)


def _state_bytes(optimizer: str, own: Sequence[Tensor], ranks: int) -> int:
    """Return the bytes of the states, of several ranks those of the one with most.

    ZeroRedundancyOptimizer gives the largest parameter that is left to the rank with least.
    """
    if not STATES[optimizer]:
        return 0
    shares: list[list[Tensor]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for item in sorted(own, key=lambda one: one.elements, reverse=True):
        least = held.index(min(held))
        shares[least].append(item)
        held[least] += item.elements
    return max(_elements(share) * STATES[optimizer] * WEIGHT_BYTES + len(share) * _STEP_BYTES
               for share in shares)


def _activations(work: Training, shape: ModelShape, stage: Stage, layout: Layout) -> int:
    """Return what forward leaves, of all micro-batches that are under way at once."""
    kept = layout.kept
    again = [is_recomputed(work.checkpointing, number) for number in stage.blocks]
    full = block_bytes(shape, kept)
    less = recomputed_bytes(shape, kept, keeps_products(work.checkpointing))
    of_token = sum(less if each else full for each in again)
    of_token += stage.first * embedding_bytes(shape, kept) + stage.last * head_bytes(shape, kept)
    working = max(full if any(again) else 0, loss_bytes(shape, kept) if stage.last else 0)
    return int(layout.tokens * (of_token * stage.under_way + working))


def _buffers(stage: Stage, shape: ModelShape, work: Training, layout: Layout) -> int:
    """Return what lies beside weights and activations.

    FSDP has the block that runs and the next one whole, one more that is being gathered, and the
    gradients of two; DDP its buckets; autocast a copy of the weights of all products.
    """
    local = divided(stage.tensors(shape), work.tp)
    if layout.groups:
        block = _elements(divided(block_tensors(shape), work.tp))
        root = _elements(local) - len(stage.blocks) * block
        gathers = layout.shards > 1 or layout.kept.element < WEIGHT_BYTES
        whole = min(2, len(stage.blocks)) if layout.groups.reshard else len(stage.blocks)
        gathered = ((whole + 1) * block + root) * layout.kept.element if gathers else 0
        return gathered + 2 * block * WEIGHT_BYTES
    buckets = 0
    if layout.bucket_mb is not None and not layout.bucket_view:
        buckets = _elements(local) * WEIGHT_BYTES
    products = [item for item in local if len(item.extents) == 2
                and not item.name.startswith("embedding.")]
    tied = shape.tied and stage.last and not stage.alone
    logits = -(-shape.vocab // work.tp) * shape.hidden if tied else 0
    return buckets + layout.kept.copies * layout.kept.element * (_elements(products) + logits)
