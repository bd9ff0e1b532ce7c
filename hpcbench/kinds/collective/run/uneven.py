"""all_gather, reduce_scatter and all_to_all whose parts differ in size (the ``split`` axis).

What is called is the backend's own form with lists of parts or of sizes. gloo's and nccl's, inside
torch, may be several simpler operations of their own; nothing is put together here.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation, reduce_op
from hpcbench.operations.data import contributed, moved, reduced
from hpcbench.operations.place import Place
from hpcbench.operations.sizes import part_counts


class UnevenAllGather(Operation):
    """torch.distributed.all_gather: rank r gives part r to all."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        counts = part_counts(spec.split, place.world_size, spec.count)
        parts = [moved(rank, 0, count, self.dtype)
                 for rank, count in zip(place.numbers, counts, strict=True)]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(parts[place.rank])
        self.output = self.empty(sum(counts))
        self.parts = list(self.output.split(counts))

    def run(self) -> None:
        """Gather all parts."""
        dist.all_gather(self.parts, self.source, group=self.place.group)


class UnevenReduceScatter(Operation):
    """torch.distributed.reduce_scatter: rank r is left with part r of the reduction."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        counts = part_counts(spec.split, place.world_size, spec.count)
        op, start, own = str(spec.op), sum(counts[:place.rank]), counts[place.rank]
        self.op = reduce_op(op)
        self.source = self.on_device(contributed(
            place.rank, place.world_size, op, sum(counts), self.dtype, place.first))
        self.parts = list(self.source.split(counts))
        self.expected = self.on_device(
            reduced(place.world_size, op, start, own, self.dtype, place.first))
        self.output = self.empty(own)

    def run(self) -> None:
        """Reduce, and keep this rank's part."""
        dist.reduce_scatter(self.output, self.parts, self.op, group=self.place.group)


class UnevenAllToAll(Operation):
    """torch.distributed.all_to_all_single: every rank sends part d of its buffer to rank d."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.sent = part_counts(spec.split, place.world_size, spec.count)
        start, own = sum(self.sent[:place.rank]), self.sent[place.rank]
        self.received = [own] * place.world_size
        parts = [moved(rank, start, own, self.dtype) for rank in place.numbers]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(moved(place.number, 0, sum(self.sent), self.dtype))
        self.output = self.empty(sum(self.received))

    def run(self) -> None:
        """Exchange the parts."""
        dist.all_to_all_single(self.output, self.source, self.received, self.sent,
                               group=self.place.group)
