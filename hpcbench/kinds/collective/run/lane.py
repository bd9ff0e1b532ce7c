"""Collectives whose calls a group makes itself, without torch: backend ``mpi/direct``."""

from __future__ import annotations

from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.lane import Buffers, Lane


def take(operation: Operation, lane: Lane) -> None:
    """Have the operation make the lane's call; what is restored, checked and spoilt stays."""
    spec = operation.spec
    operation.run = lane.prepared(spec.collective, Buffers(  # type: ignore[method-assign, assignment]
        source=operation.given, output=operation.output, op=spec.op or "",
        root=int(spec.root or 0)))
