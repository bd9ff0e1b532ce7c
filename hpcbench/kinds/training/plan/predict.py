"""What a training will need, before it runs: memory, flops and traffic of a rank.

Pure arithmetic from the extents; what an allocator keeps beyond that is not in it.

Which trainings of a sweep are the same program under several names.

A model of a few MiB has its gradients in one bucket, whether a bucket may hold 5, 25 or 100 MiB.
Such cases take equally long; what their medians differ by is noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from hpcbench.kinds.training.plan import resnet
from hpcbench.kinds.training.plan import spec as traffic
from hpcbench.kinds.training.plan.any_model import NAMES, flops_again, model_of
from hpcbench.kinds.training.plan.flops import EXECUTED, flops, recomputed
from hpcbench.kinds.training.plan.memory import Memory, held_of, memory_of
from hpcbench.kinds.training.plan.model_traffic import pipeline_calls, tensor_calls
from hpcbench.kinds.training.plan.models import Parameters, is_recomputed
from hpcbench.kinds.training.plan.registry import adapters_of, own_traffic, strategy
from hpcbench.kinds.training.plan.resnet import ResNetShape
from hpcbench.kinds.training.plan.spec import buckets
from hpcbench.kinds.training.plan.step import Stage, stages_of, step_of
from hpcbench.kinds.training.plan.workload import CHUNKED, Training
from hpcbench.operations.models import ModelShape

_KEPT = 256
"""Roots that are kept: a sweep asks for them again with each batch."""
_OVERFLOWED = 4
"""Bytes of the all_reduce by which ranks agree whether fp16 gradients overflowed."""


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
        return max(one.hardware_flops for one in self.of_ranks)

    @property
    def wire_bytes(self) -> int:
        return max(one.wire_bytes for one in self.of_ranks)

    @property
    def collectives(self) -> int:
        return max(one.collectives for one in self.of_ranks)


def hardware_flops(work: Training, definition: str = EXECUTED, *, nominal: bool = False) -> int:
    """Return the FLOPs of a step on all ranks with those that checkpointing adds.

    ``definition`` says how attention counts. ``nominal``: a block that is run again counts a whole
    forward pass, though torch leaves out its end. Raises KeyError of unknown names.
    """
    return dict(work.flops)[definition] + flops_again(work, definition, nominal=nominal)


def predict(work: Training) -> Demands:
    return Demands(tuple(predict_stage(work, stage) for stage in stages_of(work)))


def is_predicted(work: Training) -> bool:
    """Return whether the plan's arithmetic is here: of others' strategies and models it is not."""
    return work.model in NAMES and strategy(work.strategy) is not None


def predict_stage(work: Training, stage: Stage) -> Prediction:
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
    if work.loss == CHUNKED:  # which no strategy that divides a model takes
        head += 2 * shape.vocab * shape.hidden * shape.seq_length * work.batch_size
    return (len(stage.blocks) * (two - one) + again * of_recomputed + head) // work.tp


def _calls(work: Training, stage: Stage) -> list[traffic.Calls]:
    if work.communication == "off":
        return []
    step, shape = step_of(work), model_of(work)
    layout = step.layout
    _, local, blocks = held_of(work, stage)
    made: list[traffic.Calls] = []
    if layout.groups:
        made += traffic.fsdp_calls(blocks, _roots(local, alone=stage.alone), layout.groups)
    elif layout.buckets and work.dp > 1:
        made += traffic.ddp_calls(local.trained, work.dp, layout.buckets.mib, layout.buckets.hook)
    made += own_traffic(work, local.tensors)
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


@lru_cache(maxsize=_KEPT)
def _roots(local: Parameters, *, alone: bool) -> list[Parameters]:
    """Return what is no block, as it is gathered: at once, or with the stage that it is of."""
    ends = [[item for item in local.tensors if item.name.startswith(end)]
            for end in (("embedding.", "stem."), "head.")]
    gathered = ends if alone else [ends[0] + ends[1]]
    return [Parameters(tuple(items)) for items in gathered if items]


def program_of(work: Training) -> tuple[object, ...]:
    """Return what is equal for two trainings exactly if they run the same.

    It is the training without options that only cut calls into pieces (`StrategySpec.cuts`), the
    calls that are predicted of each rank, and how many gradients each of DDP's buckets holds.
    """
    spec = strategy(work.strategy)
    if spec is None or not spec.cuts:
        return (work,)
    layout, pieces = step_of(work).layout, []
    for stage in stages_of(work):
        filled = (buckets(held_of(work, stage).local.trained.tensors, layout.buckets.mib)
                  if layout.buckets else [])
        pieces.append((predict_stage(work, stage).calls, tuple(map(len, filled))))
    kept = tuple(option for option in work.options if option[0] not in spec.cuts)
    return (replace(work, options=kept), *pieces)
