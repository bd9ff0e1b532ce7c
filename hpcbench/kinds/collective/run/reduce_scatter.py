"""reduce_scatter: rank r ends with part r of the reduction of all ranks' buffers."""

from __future__ import annotations

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation, reduce_op
from hpcbench.operations.data import contributed, reduced
from hpcbench.operations.place import Place
from hpcbench.operations.torch_calls import reduce_scatter_tensor


class ReduceScatter(Operation):
    """Reduce-scatter of one tensor; ``count`` elements are left on each rank.

    In place, the result is written to the rank's own slot of the input, as in nccl-tests.
    """

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        op, total, start = str(spec.op), spec.count * place.world_size, place.rank * spec.count
        self.op = reduce_op(op)
        self.source = self.on_device(
            contributed(place.rank, place.world_size, op, total, self.dtype, place.first))
        self.expected = self.on_device(
            reduced(place.world_size, op, start, spec.count, self.dtype, place.first))
        self.input = self.empty(total) if spec.in_place else self.source
        self.output = (self.input[start:start + spec.count] if spec.in_place
                       else self.empty(spec.count))

    def prepare(self) -> None:
        """Restore the input that an in-place call overwrote, or wipe the output."""
        if self.spec.in_place:
            self.input.copy_(self.source)
        else:
            self.output.fill_(self.poison)

    def run(self) -> None:
        """Reduce, and keep this rank's part."""
        reduce_scatter_tensor(self.output, self.input, self.op, group=self.place.group)
