"""An operation whose call is captured in a CUDA graph once, and replayed as each sample.

After torch's notes on CUDA graphs (docs.pytorch.org/docs/stable/notes/cuda.html): a few calls on a
side stream first, so that NCCL has connected and libraries have their workspaces; then one captured
call. Replays read and write the memory of that call, which inputs and outputs keep. It has never
run on a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place

WARM_UP_CALLS = 3
"""As torch's examples have it."""


class Lining(Protocol):
    """What lines the ranks up; not under test."""

    def barrier(self) -> None:
        """Return when every rank has called."""


class Replayed:
    """The operation as it is, but for ``run``, which replays the graph."""

    def __init__(self, operation: AnyOperation, graph: Any) -> None:
        self._operation = operation
        self._graph = graph
        self.name = operation.name
        self.place: Place = operation.place

    def prepare(self) -> None:
        """Restore inputs and wipe outputs, where the graph reads and writes them."""
        self._operation.prepare()

    def run(self) -> None:
        """Replay the captured call on the current stream."""
        self._graph.replay()

    def spoil(self) -> None:
        """Make the result wrong, for tests of the check."""
        self._operation.spoil()

    def check(self) -> object | None:
        """Return what is wrong with the last result, or None."""
        return self._operation.check()


def captured(operation: AnyOperation, control: Lining) -> Replayed:
    """Capture one call; all ranks do at the same time. What CUDA refuses is raised as it is.

    Errors of other threads do not end the capture: NCCL's watchdog asks for events meanwhile.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            operation.prepare()
            operation.run()
    current.wait_stream(side)
    operation.prepare()
    torch.cuda.synchronize()
    control.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        operation.run()
    torch.cuda.synchronize()
    control.barrier()
    return Replayed(operation, graph)
