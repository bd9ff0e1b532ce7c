"""tp_columnwise without an all-gather: as many broadcasts as there are ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpcbench import plugins


class Columnwise(plugins.Implementation[plugins.ColumnwiseInputs]):
    """Block r of A comes from rank r; with ``ahead`` all are on their way before the 1st product.

    ``empty`` gives buffers that are wiped before each call; ``run`` allocates nothing.
    """

    def __init__(self, inputs: plugins.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        work = inputs.spec
        self.output = self.empty(work.m, inputs.weight.shape[1])
        self._blocks = self.empty(work.m, work.k).chunk(self.ranks)
        self._results = self.output.chunk(self.ranks)
        self._ahead = bool(work.option("ahead"))

    def run(self) -> None:
        """Broadcast and multiply block by block."""
        self._blocks[self.rank].copy_(self.inputs.rows)
        started = [self._send(root) for root in range(self.ranks)] if self._ahead else []
        for root in range(self.ranks):
            (started[root] if started else self._send(root)).wait()
            torch.matmul(self._blocks[root], self.inputs.weight, out=self._results[root])

    def _send(self, root: int) -> Any:
        """Start the broadcast of a rank's block; torch wants the root's global rank."""
        return dist.broadcast(self._blocks[root], self.inputs.place.global_rank(root),
                              group=self.group, async_op=True)
