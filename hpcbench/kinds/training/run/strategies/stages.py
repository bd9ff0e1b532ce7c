"""The stages of a pipeline: which blocks each has, which rank it is on, and all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcbench.kinds.training.plan.any_model import model_of
from hpcbench.kinds.training.plan.lookup import pipelining
from hpcbench.kinds.training.plan.schedules import stages_on
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.operations.models import ModelShape

Whole = Callable[[nn.Parameter], torch.Tensor]


class Stages:
    """Where the parts of a model are: ranks and stages are those of one pipeline, from 0."""

    def __init__(self, work: Training) -> None:
        pipelined = pipelining(work)
        assert pipelined is not None  # noqa: S101  (the strategy is one with stages)
        self.schedule, self.per_rank, self.microbatches = pipelined
        self.count = work.pp * self.per_rank
        self._work, self._shape = work, model_of(work)
        self._on = [stages_on(self.schedule, work.pp, rank, self.per_rank)
                    for rank in range(work.pp)]

    @property
    def last(self) -> int:
        """Return the last stage."""
        return self.count - 1

    @property
    def tied(self) -> bool:
        """Return whether the first and the last stage have copies of one weight."""
        return isinstance(self._shape, ModelShape) and self._shape.tied

    def on(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return self._on[rank]

    def rank_of(self, stage: int) -> int:
        """Return the rank that a stage is on."""
        return next(rank for rank, stages in enumerate(self._on) if stage in stages)

    def blocks(self, stage: int) -> range:
        """Return the blocks of a stage."""
        each = self._shape.layers // self.count
        return range(stage * each, (stage + 1) * each)

    def gather(
        self, own: Mapping[int, Model], whole: Whole, group: Any, device: torch.device,
    ) -> dict[str, torch.Tensor]:
        """Return something whole of every parameter of the model, fp32 on the CPU, by its name.

        ``own`` are this rank's stages; ``group`` is the pipeline's, and all of it calls.
        """
        with torch.device("meta"):
            model = make_model(self._work)
        rank, values = dist.get_rank(group), {}
        for name, parameter in model.named_parameters():
            stage = self._stage_of(name)
            owner = self.rank_of(stage)
            value = (whole(own[stage].get_parameter(name)) if owner == rank else
                     torch.empty(parameter.shape)).to(device, torch.float32)
            dist.broadcast(value, dist.get_global_rank(group, owner), group=group)
            values[name] = value.cpu()
        return values

    def _stage_of(self, name: str) -> int:
        """Return the stage that has a parameter; a tied one is the first stage's."""
        part, *rest = name.split(".")
        if part == "blocks":
            return int(rest[0]) // (self._shape.layers // self.count)
        return self.last if part == "head" else 0
