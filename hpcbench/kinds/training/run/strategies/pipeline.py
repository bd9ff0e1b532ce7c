"""Pipelines of torch.distributed.pipelining, alone and with replicas and divided layers.

Each rank has some of the blocks, and micro-batches pass through them. Stages record when they
compute: the time between is waiting and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.utils.hooks import RemovableHandle

from hpcbench.backends.counting_backend import COUNTING_BACKEND, Tally, is_counted
from hpcbench.kinds.training.plan.any_model import COLOURS, bottlenecks, model_of, resnet_of
from hpcbench.kinds.training.plan.spec import (
    fewer_microbatches,
    layers_on,
    layout_of,
    pipelining,
    stages_on,
)
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import make_loss, make_model
from hpcbench.kinds.training.run.models.fp8 import in_8_bits
from hpcbench.kinds.training.run.models.model import Model, fill_part
from hpcbench.kinds.training.run.models.transformer import TIED
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.moe import WithExperts
from hpcbench.kinds.training.run.strategies.replica import whole
from hpcbench.kinds.training.run.strategies.tensor import Spreader, TensorParallel
from hpcbench.operations.data import DTYPES
from hpcbench.operations.models import ModelShape
from hpcbench.operations.place import Place
from hpcbench.trace.schema import ARRIVAL

Result = TypeVar("Result")


class StageClock:
    """The phases of the step that is under way, for all stages of a rank."""

    def __init__(self, *, exchanges: bool) -> None:
        self.phases: base.PhaseClock | None = None
        self._exchanges = exchanges

    def timed(self, phase: str, compute: Callable[[], Result]) -> Result:
        """Return the result; its time counts as ``phase``, the time before as ``exchange``."""
        if self.phases is None:
            return compute()
        self.phases.end("exchange")
        result = compute()
        self.phases.end(phase)
        if phase == "backward" and self._exchanges:
            self.phases.arrive(f"{ARRIVAL}1")  # of several the last: all own gradients are there
        return result


class TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage whose forward and backward passes are phases, of each micro-batch."""

    clock: StageClock

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        return self.clock.timed(
            "forward", lambda: PipelineStage.forward_one_chunk(self, *arguments, **named))

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        return self.clock.timed(
            "backward", lambda: PipelineStage.backward_one_chunk(self, *arguments, **named))

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        return self.clock.timed(
            "backward", lambda: PipelineStage.backward_weight_one_chunk(self, *arguments, **named))


Whole = Callable[[nn.Parameter], torch.Tensor]


class Pipeline(WithExperts):
    """One of torch's schedules over the stages of a model, of which a rank may have several."""

    def __init__(self, spec: Training, place: Place) -> None:
        super().__init__(spec, place)
        self.grid = grid = base.parallel_grid(spec, place)
        self._group = grid.groups["pp"]
        self._spreader = Spreader(spec, place, grid)
        self._tokens, self.experts = self._spreader.tokens, self._spreader.experts
        self._stages = Stages(spec)
        self._own = {stage: self._build(self._stages.blocks(stage))
                     for stage in self._stages.by_rank[dist.get_rank(self._group)]}
        self.holds_loss = self._stages.last in self._own
        self._parameters = [parameter for model in self._own.values()
                            for parameter in model.parameters()]
        self.optimizer = base.optimizer_of(spec, self._parameters, place.device)
        self.scaler = base.AgreedScaler(spec.dtype, place.device, place.group)
        self._mean_loss = make_loss(spec)
        self._clock = StageClock(exchanges=spec.dp * spec.cp > 1)
        fewer = self._stages.fewer if is_counted(self._group) else ()
        self._counts: tuple[int, ...] = fewer or (self._stages.microbatches,)
        self._modules: list[nn.Module] = []  # as the schedules call them
        self._schedules = [self._open_schedule(count) for count in self._counts]

    def _build(self, blocks: range) -> Model:
        with torch.device("meta"):
            draft = make_model(self.spec, blocks)
        in_8_bits(self.spec, draft)
        return self._spreader.build(
            draft, lambda model, part: fill_part(model, part, self.place.device, SEED))

    def _open_schedule(self, microbatches: int) -> Any:
        """Return the schedule of so many micro-batches over this rank's stages.

        The loss is divided, not gradients: torch's scaling would divide earlier parts of an
        accumulation again."""
        kind = get_schedule_class(self._stages.schedule.name)
        stages = [TimedStage(self._called(model), stage, self._stages.count, self.place.device,
                             group=self._group, **self._examples(stage))
                  for stage, model in self._own.items()]
        for stage in stages:
            stage.clock = self._clock
            self._modules.append(stage.submod)
        several = issubclass(kind, PipelineScheduleMulti)
        return kind(stages if several else stages[0], microbatches,
                    loss_fn=self._loss, scale_grads=False)

    def _leave_out_votes(self) -> None:
        """Have the first step of a dry run count what later ones do: drop the messages before it,
        by which torch's stages agree once."""
        handles: list[RemovableHandle] = []

        def begin(*_: Any) -> None:
            self._group.call_log.tally.pop("send_recv", None)
            while handles:
                handles.pop().remove()

        handles += (one.register_forward_pre_hook(begin, prepend=True) for one in self._modules)

    def _examples(self, stage: int) -> dict[str, torch.Tensor]:
        """Return a stage's input and output for a dry run, of a ResNet, and of experts.

        Otherwise torch gets them from a computation of neighbours, which batch norms would count,
        and in which experts would have to take part."""
        spec = self.spec
        samples = spec.batch_size // spec.accumulation // self._stages.microbatches
        if spec.of_images:
            return self._images(stage, samples)
        if dist.get_backend(self._group) != COUNTING_BACKEND and not layout_of(spec).experts:
            return {}
        own = spec.seq_length // spec.cp
        tokens = torch.empty((samples, own), dtype=torch.int64, device="meta")
        width = own // (spec.tp if layout_of(spec).by_tokens else 1)
        cast = spec.is_narrow or (spec.is_mixed and isinstance(self._own[stage], FSDPModule))
        hidden = torch.empty((samples, width, spec.hidden), device="meta", requires_grad=True,
                             dtype=DTYPES[spec.dtype] if cast else torch.float32)
        logits = torch.empty((samples, own, spec.vocab), device="meta")
        return {"input_args": tokens if stage == 0 else hidden,
                "output_args": logits if stage == self._stages.last else hidden}

    def _images(self, stage: int, samples: int) -> dict[str, torch.Tensor]:
        shape, first = resnet_of(self.spec), stage == 0
        blocks = self._stages.blocks(stage)

        def made(*extents: int, **kind: Any) -> torch.Tensor:
            return torch.empty((samples, *extents), device="meta", **kind)

        def passed(number: int) -> torch.Tensor:
            block = bottlenecks(shape)[number]
            return made(block.outputs, block.extent_behind, block.extent_behind,
                        dtype=DTYPES[self.spec.dtype], requires_grad=True)

        last = stage == self._stages.last
        return {"input_args": made(COLOURS, shape.image, shape.image) if first else
                passed(blocks.start - 1),
                "output_args": made(shape.classes, dtype=DTYPES[self.spec.dtype]) if last else
                passed(blocks.stop - 1)}

    def _called(self, model: Model) -> nn.Module:
        if self.spec.is_mixed and not isinstance(model, FSDPModule):
            return base.Autocast(model, self.spec, self.place.device)
        return model

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's part of the mean loss, scaled."""
        parts = self._stages.microbatches * self.spec.accumulation
        return self._clock.timed(
            "forward", lambda: self.scaler.scale(self._mean_loss(logits, targets) / parts))

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        self._clock.phases, batch = phases, self._tokens.of(batch)
        losses = self._counted(batch) if is_counted(self._group) else self._pass(
            self._schedules[0], batch)
        base.align_gradients(self._parameters)
        self._add_tied()
        phases.end("exchange")
        total = sum(losses, torch.zeros((), device=self.place.device)) / self.scaler.get_scale()
        return self._tokens.mean(total, phases) if self.holds_loss else total

    def _counted(self, batch: base.Batch) -> list[torch.Tensor]:
        """Pass a batch in a dry run; in place of many micro-batches two smaller numbers of them.

        Each micro-batch calls the same, so the calls of all follow from the difference."""
        tally: Tally = self._group.call_log.tally
        found: list[dict[str, Counter[int]]] = []
        losses: list[torch.Tensor] = []
        for schedule, count in zip(self._schedules, self._counts, strict=True):
            self._leave_out_votes()
            tally.clear()
            inputs, targets = (
                torch.cat([part[:len(part) * count // self._stages.microbatches]
                           for part in half.chunk(self.spec.accumulation)]) for half in batch)
            losses = self._pass(schedule, (inputs, targets))
            found.append({name: Counter(sizes) for name, sizes in tally.items()})
        for name, counted in found[-1].items() if len(found) > 1 else ():
            more = (self._stages.microbatches - self._counts[1]) // (
                self._counts[1] - self._counts[0])
            tally[name] += more * [*(counted - found[0].get(name, Counter())).elements()]
        return losses

    def _pass(self, schedule: Any, batch: base.Batch) -> list[torch.Tensor]:
        """Pass a batch through the pipeline, and return the losses of its parts."""
        losses: list[torch.Tensor] = []
        for inputs, targets in zip(*(half.chunk(self.spec.accumulation) for half in batch),
                                   strict=True):
            part_losses: list[torch.Tensor] = []
            with self._spreader.divider.loss():
                schedule.step(
                    *([inputs] if 0 in self._own else []), return_outputs=False,
                    **({"target": targets, "losses": part_losses} if self.holds_loss else {}))
            losses += (local(loss.detach()) for loss in part_losses)
        return losses

    def _add_tied(self) -> None:
        """Add up the gradients of both copies of a tied weight, so that their optimizers agree."""
        if not self._stages.tied:
            return
        gradients = [local(self._own[stage].get_parameter(name).grad) for stage, name in (
            (0, TIED[1]), (self._stages.last, TIED[0])) if stage in self._own]
        if len(gradients) == 2:
            gradients[0].add_(gradients[1])
            gradients[1].copy_(gradients[0])
        elif gradients:
            other = self._stages.rank_of(self._stages.last if 0 in self._own else 0)
            gradients[0].add_(self._exchanged(gradients[0], other))

    def _exchanged(self, tensor: torch.Tensor, other: int) -> torch.Tensor:
        received, peer = torch.empty_like(tensor), dist.get_global_rank(self._group, other)
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, tensor, peer, self._group),
                dist.P2POp(dist.irecv, received, peer, self._group)]):
            work.wait()
        return received

    def full_gradients(self) -> dict[str, torch.Tensor]:
        scale = self.scaler.get_scale()
        gradients = self._gathered(lambda parameter: whole(parameter.grad))
        return {name: gradient / scale for name, gradient in gradients.items()}

    def full_weights(self) -> dict[str, torch.Tensor]:
        return self._gathered(whole)

    def _gathered(self, pick: Whole) -> dict[str, torch.Tensor]:
        return self._stages.gather(self._own, pick, self._group, self.place.device)

    def modules(self) -> Iterable[nn.Module]:
        return self._own.values()


class Stages:
    """Where the parts of a model are, in one pipeline; ``tied``: its ends have copies of one
    weight."""

    def __init__(self, work: Training) -> None:
        pipelined = pipelining(work)
        assert pipelined is not None  # noqa: S101  (the strategy is one with stages)
        self.schedule, per_rank, self.microbatches = pipelined
        self.count = work.pp * per_rank
        self.last = self.count - 1
        self.by_rank = [stages_on(self.schedule, work.pp, rank, per_rank)
                        for rank in range(work.pp)]
        self.fewer = fewer_microbatches(pipelined, work.pp)
        self._work, shape = work, model_of(work)
        self.tied = isinstance(shape, ModelShape) and shape.tied
        self._layers = [layers_on(shape.layers, self.count, stage) for stage in range(self.count)]

    def rank_of(self, stage: int) -> int:
        return next(rank for rank, stages in enumerate(self.by_rank) if stage in stages)

    def blocks(self, stage: int) -> range:
        return self._layers[stage]

    def gather(
        self, own: Mapping[int, Model], whole: Whole, group: Any, device: torch.device,
    ) -> dict[str, torch.Tensor]:
        """Return something whole of every parameter, fp32 on the CPU, by its name; all of the group
        call."""
        with torch.device("meta"):
            model = make_model(self._work)
        rank, values = dist.get_rank(group), {}
        for name, parameter in model.named_parameters():
            part, *rest = name.split(".")  # a tied weight is the first stage's
            stage = (next(stage for stage, own in enumerate(self._layers) if int(rest[0]) in own)
                     if part == "blocks" else self.last if part == "head" else 0)
            owner = self.rank_of(stage)
            value = (whole(own[stage].get_parameter(name)) if owner == rank else
                     torch.empty(parameter.shape)).to(device, torch.float32)
            dist.broadcast(value, dist.get_global_rank(group, owner), group=group)
            values[name] = value.cpu()
        return values


def hybrid(spec: Training, place: Place) -> base.Strategy:
    return (Pipeline if spec.pp > 1 else TensorParallel)(spec, place)
