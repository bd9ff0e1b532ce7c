"""What every collective is to the measuring loop: prepare, run, check."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.operations.check import AVG_ULPS, Mismatch, compare
from hpcbench.operations.data import average_is_exact, poison
from hpcbench.operations.dtypes import DTYPES
from hpcbench.operations.place import Place


class Operation:
    """One collective on its own buffers; subclasses allocate in ``__init__`` and define ``run``.

    ``source`` is what this rank starts from, ``buffer`` what an in-place form restores from it,
    ``output`` what is checked against ``expected`` if this rank ``has_result``. ``root`` is the
    global rank of the root, which is rank 0 of the group where the collective has none.
    """

    source: torch.Tensor
    output: torch.Tensor
    expected: torch.Tensor
    has_result = True
    given: torch.Tensor | None = None
    """What a lane's call reads, where that is not ``output`` (`run.lane`)."""

    def __init__(self, spec: Collective, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.dtype = DTYPES[spec.dtype]
        self.poison = poison(self.dtype)
        exact = spec.op != "avg" or average_is_exact(place.world_size, self.dtype)
        self._ulps = 0 if exact else AVG_ULPS
        self.name = spec.collective
        self.root = place.global_rank(int(spec.root or 0))
        self.is_root = place.number == self.root

    def prepare(self) -> None:
        """Make the next call start from the same inputs and an output that is not yet right."""
        self.output.fill_(self.poison)

    def run(self) -> None:
        """Issue the collective; on return it is complete, or ordered on the current stream."""
        raise NotImplementedError

    def spoil(self) -> None:
        """Make one element of the output wrong, for tests of the check."""
        if self.output.numel():
            self.output.reshape(-1)[-1] = self.poison

    def check(self) -> Mismatch | None:
        """Compare the buffer that was just timed with the expected result, if there is one."""
        if not self.has_result:
            return None
        return compare(self.output, self.expected, ulps=self._ulps)

    def empty(self, count: int) -> torch.Tensor:
        """Return an uninitialised buffer of ``count`` elements on the device."""
        return torch.empty(count, dtype=self.dtype, device=self.place.device)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` on the device of this place."""
        return tensor.to(self.place.device)


def reduce_op(name: str | None) -> dist.ReduceOp:
    """Return torch's reduction for sum, prod, min, max or avg."""
    return {
        "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG,
    }[str(name)]
