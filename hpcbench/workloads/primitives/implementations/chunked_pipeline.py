"""Implementation ``chunked_pipeline``: one chunk is communicated while another is multiplied.

Collectives are started with ``async_op=True``: gloo's run on its own threads, NCCL's on its own
stream. Backend mpi's are complete when they are started (`backends.mpi_group`), so nothing
overlaps there and chunks only cost.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpcbench.workloads.primitives.implementations.base import AnyInputs, Implementation
from hpcbench.workloads.primitives.implementations.blocks import multiply_blocks
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs


class _Chunked(Implementation[AnyInputs]):
    """What all have in common: the number of chunks."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.chunks = int(inputs.spec.option("chunks"))


class Columnwise(_Chunked[ColumnwiseInputs]):
    """A chunk is as many rows of every rank; it is gathered, of A or of C, in one call."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        columns = inputs.weight.shape[1]
        rows = inputs.rows.shape[0] // self.chunks
        self._rows = inputs.rows.view(self.chunks, rows, -1)
        self.output = self.empty(inputs.spec.m, columns)
        self._placed = self.output.view(self.ranks, self.chunks, rows, columns)
        self._between = (
            self.empty(self.chunks, self.ranks, rows, inputs.spec.k) if inputs.gather_first else
            self.empty(self.chunks, rows, columns))

    def run(self) -> None:
        """Gather and multiply, in the order asked for."""
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        arriving = self._gather_rows(0)
        for chunk in range(self.chunks):
            arriving.wait()
            if chunk + 1 < self.chunks:
                arriving = self._gather_rows(chunk + 1)
            multiply_blocks(self._between[chunk], self.inputs.weight, self._placed[:, chunk])

    def _gather_rows(self, chunk: int) -> Any:
        return dist.all_gather_into_tensor(
            self._between[chunk].flatten(0, 1), self._rows[chunk], group=self.group, async_op=True)

    def _multiply_first(self) -> None:
        leaving = []
        for chunk in range(self.chunks):
            torch.mm(self._rows[chunk], self.inputs.weight, out=self._between[chunk])
            leaving.append(dist.all_gather(
                list(self._placed[:, chunk]), self._between[chunk], group=self.group,
                async_op=True))
        for work in leaving:
            work.wait()
