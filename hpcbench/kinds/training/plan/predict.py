"""What a training will need, before it runs: memory, flops and traffic of a rank.

Pure arithmetic from the extents; what an allocator keeps beyond that is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType

from hpcbench.kinds.training.plan import activations, resnet, traffic
from hpcbench.kinds.training.plan.adapters import scale_bytes
from hpcbench.kinds.training.plan.any_model import AnyShape, flops_again, model_of
from hpcbench.kinds.training.plan.flops import EXECUTED, flops, recomputed
from hpcbench.kinds.training.plan.layout import Groups
from hpcbench.kinds.training.plan.model_traffic import pipeline_calls, tensor_calls
from hpcbench.kinds.training.plan.models import is_recomputed, keeps_products
from hpcbench.kinds.training.plan.registry import adapters_of, own_traffic
from hpcbench.kinds.training.plan.resnet import ResNetShape
from hpcbench.kinds.training.plan.stages import Stage, held_blocks, laid_out, stages_of, tensors_of
from hpcbench.kinds.training.plan.step import Step, step_of
from hpcbench.kinds.training.plan.tensors import Tensor, block_tensors, trained
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.models import ModelShape

WEIGHT_BYTES = 4
"""What is trained, its gradients and states are fp32 whatever the arithmetic is in."""
STATES: Mapping[str, int] = MappingProxyType({"adamw": 2, "sgd": 0})
"""Numbers of the optimizer for each weight; sgd has no momentum."""
_STEP_BYTES = 4
"""adamw counts the steps of each parameter in an fp32 number of its own."""
_OVERFLOWED = 4
"""Bytes of the all_reduce by which ranks agree whether fp16 gradients overflowed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank. Their sum is an upper bound: gradients come as activations go.

    ``parameters``, ``gradients`` and ``optimizer`` are exact; ``activations`` are what forward
    passes keep for backward; ``buffers`` are buckets of gradients, gathered parameters, copies of
    weights in the dtype of the arithmetic, and running statistics.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """Return all of it."""
        return sum(astuple(self))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one step needs of a rank.

    ``hardware_flops`` are what it executes, recomputation included, ``calls`` its collectives.
    """

    memory: Memory = field(default_factory=Memory)
    hardware_flops: int = 0
    calls: tuple[traffic.Calls, ...] = ()

    @property
    def wire_bytes(self) -> int:
        """Return sizes of all collectives times their busbw factors."""
        return sum(item.wire_bytes for item in self.calls)

    @property
    def collectives(self) -> int:
        """Return how many collectives the rank calls."""
        return sum(item.count for item in self.calls)


@dataclass(frozen=True, slots=True)
class Demands:
    """What one step needs of all its ranks: each number is the most of any of them.

    ``of_ranks`` has an entry for each rank of a pipeline, one where all ranks are alike. The rank
    with most memory is often not the one with most FLOPs.
    """

    of_ranks: tuple[Prediction, ...] = (Prediction(),)

    @property
    def memory(self) -> Memory:
        """Return that of the rank that needs most, all parts of this one rank."""
        return max((one.memory for one in self.of_ranks), key=lambda memory: memory.total)

    @property
    def hardware_flops(self) -> int:
        """Return the most FLOPs that a rank executes."""
        return max(one.hardware_flops for one in self.of_ranks)

    @property
    def wire_bytes(self) -> int:
        """Return the most bytes of a rank on the wire."""
        return max(one.wire_bytes for one in self.of_ranks)

    @property
    def collectives(self) -> int:
        """Return the most collectives that a rank calls."""
        return max(one.collectives for one in self.of_ranks)


def hardware_flops(work: Training, definition: str = EXECUTED, *, nominal: bool = False) -> int:
    """Return the FLOPs of a step on all ranks with those that checkpointing adds.

    ``definition`` says how attention counts. ``nominal``: a block that is run again counts a whole
    forward pass, though torch leaves out its end. Raises KeyError of unknown names.
    """
    return dict(work.flops)[definition] + flops_again(work, definition, nominal=nominal)


def predict(work: Training) -> Demands:
    """Return what a step needs of each rank that differs from others."""
    return Demands(tuple(predict_stage(work, stage) for stage in stages_of(work)))


def predict_stage(work: Training, stage: Stage) -> Prediction:
    """Return the prediction for a rank with these parts of the model."""
    return Prediction(memory_of(work, stage), _flops(work, stage),
                      traffic.together(_calls(work, stage)))


def _flops(work: Training, stage: Stage) -> int:
    """Return the FLOPs of a rank: those of its blocks, and of the ends that it has."""
    if work.communication == "only":
        return 0
    shape = model_of(work)
    if isinstance(shape, ResNetShape):
        return resnet.stage_flops(shape, stage.blocks, work.batch_size)
    if adapters_of(work):  # which no strategy divides among stages
        return hardware_flops(work) // work.dp
    one, two = (dict(flops(replace(shape, layers=layers), work.batch_size))[EXECUTED]
                for layers in (1, 2))
    again = sum(is_recomputed(work.checkpointing, number) for number in stage.blocks)
    of_recomputed = recomputed(replace(shape, layers=1), work.batch_size, work.checkpointing,
                               EXECUTED)
    head = (one - (two - one)) * stage.last
    return (len(stage.blocks) * (two - one) + again * of_recomputed + head) // work.tp


def _calls(work: Training, stage: Stage) -> list[traffic.Calls]:
    if work.communication == "off":
        return []
    step, shape = step_of(work), model_of(work)
    layout = step.layout
    local = laid_out(work, tensors_of(work, stage))
    made: list[traffic.Calls] = []
    if layout.groups:
        made += traffic.fsdp_calls(held_blocks(work, stage), _roots(local, stage), layout.groups)
    elif layout.buckets and work.dp > 1:
        made += traffic.ddp_calls(trained(local), work.dp, layout.buckets.mib, layout.buckets.hook)
    made += own_traffic(work, local)
    if work.tp > 1:
        assert isinstance(shape, ModelShape)  # noqa: S101  (no plan divides others by tensors)
        again = sum(is_recomputed(work.checkpointing, number) for number in stage.blocks)
        made += tensor_calls(shape, stage, step, again)
    if layout.pipeline:
        made.append(pipeline_calls(work, shape, stage, step))
    if work.dtype == "fp16" and work.tp * work.pp > 1:
        made.append(traffic.calls("all_reduce", work.dp * work.tp * work.pp, [_OVERFLOWED]))
    elif work.dtype == "fp16" and layout.shards > 1:
        made.append(traffic.calls("all_reduce", layout.shards, [_OVERFLOWED]))
    return made


def _roots(local: Sequence[Tensor], stage: Stage) -> list[list[Tensor]]:
    """Return what is no block, as it is gathered: at once, or with the stage that it is of."""
    ends = [[item for item in local if item.name.startswith(end)]
            for end in (("embedding.", "stem."), "head.")]
    gathered = ends if stage.alone else [ends[0] + ends[1]]
    return [items for items in gathered if items]


def memory_of(work: Training, stage: Stage) -> Memory:
    """Return what the rank with these parts of the model needs, of its group the one with most."""
    step, shape = step_of(work), model_of(work)
    whole = tensors_of(work, stage)
    local = laid_out(work, whole)
    own = [item._replace(extents=(-(-item.extents[0] // step.layout.shards), *item.extents[1:]))
           for item in local]  # of the first rank, which has most where shards are uneven
    return Memory(
        parameters=sum(item.held_bytes for item in own) + scale_bytes(adapters_of(work), whole),
        gradients=_elements(trained(own)) * WEIGHT_BYTES,
        optimizer=_state_bytes(work.optimizer, trained(own), step.layout.state_ranks),
        activations=_activations(work, shape, stage, step),
        buffers=_buffers(work, stage, step, local))


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


def _activations(work: Training, shape: AnyShape, stage: Stage, step: Step) -> int:
    """Return what forward leaves, of all micro-batches that are under way at once."""
    kept = step.kept
    if isinstance(shape, ResNetShape):
        element, samples = kept.element, step.samples
        return int(resnet.kept_bytes(shape, stage.blocks, samples, element) * stage.under_way
                   + resnet.working_bytes(shape, max(stage.blocks), samples, element))
    again = [is_recomputed(work.checkpointing, number) for number in stage.blocks]
    full = activations.block_bytes(shape, kept)
    less = activations.recomputed_bytes(shape, kept, keeps_products(work.checkpointing))
    of_token = sum(less if each else full for each in again)
    of_token += stage.first * activations.embedding_bytes(shape, kept)
    of_token += stage.last * activations.head_bytes(shape, kept)
    working = max(full * any(again), activations.loss_bytes(shape, kept) * stage.last)
    return int(step.tokens * (of_token * stage.under_way + working))


def _buffers(work: Training, stage: Stage, step: Step, local: Sequence[Tensor]) -> int:
    """Return what lies beside weights and activations.

    One weight that is held in 4 bits is there as numbers, too.
    """
    shape = model_of(work)
    running = resnet.running_bytes(shape, stage.blocks) if isinstance(shape, ResNetShape) else 0
    beside = running + _largest_packed(work, shape) * step.kept.element
    if step.layout.groups:
        return beside + _gathered(step, step.layout.groups, held_blocks(work, stage), local)
    return beside + _copies(work, stage, step, local)


def _gathered(
    step: Step, groups: Groups, blocks: Sequence[Sequence[Tensor]], local: Sequence[Tensor],
) -> int:
    """Return what is whole at once of parameters that are spread block by block.

    The largest block and the next one, one more that is being gathered, what is no block, and the
    gradients of two.
    """
    def whole_bytes(parameters: Sequence[Tensor]) -> int:
        return sum(item.elements * traffic.travelling_bytes(item, step.kept.element)
                   for item in parameters)

    sizes = sorted(map(whole_bytes, blocks), reverse=True)
    root = whole_bytes(local) - sum(sizes)
    gathers = groups.shards > 1 or step.kept.element < WEIGHT_BYTES
    whole = sizes[:2] if groups.reshard else sizes
    gathered = sum(whole) + sizes[0] + root if gathers else 0
    return gathered + 2 * max(_elements(trained(block)) for block in blocks) * WEIGHT_BYTES


def _copies(work: Training, stage: Stage, step: Step, local: Sequence[Tensor]) -> int:
    """Return the buckets of DDP, and autocast's copies of weights.

    Those are of all products that are not held in its dtype.
    """
    shape, buckets = model_of(work), 0
    if step.layout.buckets and not step.layout.buckets.are_views:
        buckets = _elements(trained(local)) * WEIGHT_BYTES
    products = [item for item in local if len(item.extents) > 1
                and item.element_bytes > step.kept.element
                and not item.name.startswith("embedding.")]
    tied = isinstance(shape, ModelShape) and shape.tied and stage.last and not stage.alone
    logits = -(-work.vocab // work.tp) * work.hidden if tied else 0
    return buckets + step.kept.copies * step.kept.element * (_elements(products) + logits)


def _largest_packed(work: Training, shape: AnyShape) -> int:
    """Return the elements of the largest weight that is held in 4 bits, 0 if there is none."""
    adapters = adapters_of(work)
    if adapters is None or not isinstance(shape, ModelShape):
        return 0
    return max((item.elements for item in block_tensors(shape) if adapters.packs(item.name)),
               default=0)
