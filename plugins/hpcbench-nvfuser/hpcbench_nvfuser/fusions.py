"""tp_columnwise and tp_rowwise as fusions of nvFuser, with DDLB's three algorithms. Never run.

A tensor that is divided among ranks has an axis of as many elements as there are ranks. It is
parallelized as ``mesh_x``; on a rank that axis has one element. An axis that is parallelized as
``stream`` is worked off part by part, the communication of one under the product of another.
"""

from __future__ import annotations

from typing import Any, TypeVar

import nvfuser_direct as nvfuser
import torch

from hpcbench import plugins
from hpcbench_nvfuser.executor import element_type, executor_of, on_symmetric_memory

AnyInputs = TypeVar("AnyInputs", bound=plugins.Inputs)
_RANKS, _STREAMS = nvfuser.ParallelType.mesh_x, nvfuser.ParallelType.stream


class Fused(plugins.Implementation[AnyInputs]):
    """``made`` is what the executor returned last, in memory that its next run gets again."""

    made: torch.Tensor | None = None

    def restore(self) -> None:
        """Wipe what the last call returned."""
        if self.made is not None:
            self.made.fill_(float("nan"))


class Columnwise(Fused[plugins.ColumnwiseInputs]):
    """The product of A, whose rows are divided, with a weight of which each rank has its own."""

    def __init__(self, inputs: plugins.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        work, d = inputs.spec, self.ranks
        self._interleaved = work.option("algorithm") == "coll_pipeline"
        parts = (int(work.option("s")),) if self._interleaved else ()
        whole = (*parts, d, work.m // (d * (parts[0] if parts else 1)), work.k)
        here = tuple(1 if axis == len(parts) else extent for axis, extent in enumerate(whole))
        self._rows = inputs.rows.view(here)
        self._executor = executor_of(
            inputs, lambda fusion, mesh: self._define(fusion, mesh, whole))

    def _define(self, fusion: Any, mesh: Any, shape: tuple[int, ...]) -> None:
        """Multiply A of ``shape``, ([s,] d, rows, k), by the weight."""
        inputs = self.inputs
        kind = element_type(inputs)
        left = fusion.define_tensor(shape=list(shape), contiguity=True, dtype=kind)
        right = fusion.define_tensor(shape=list(inputs.weight.shape), contiguity=True, dtype=kind)
        result = fusion.ops.matmul(left, right)
        if on_symmetric_memory(inputs):
            result.set_memory_type(nvfuser.MemoryType.symmetric)
        fusion.add_output(result)
        for tensor in (left, right, result):
            tensor.set_device_mesh(mesh)
        left.axis(len(shape) - 3).parallelize(_RANKS)
        if inputs.spec.option("algorithm") != "default":
            result.axis(0).parallelize(_STREAMS)

    def run(self) -> None:
        """Run the fusion; parts of a collective pipeline are put into the order of C's rows."""
        (self.made,) = self._executor.run([self._rows, self.inputs.weight])
        ordered = self.made.transpose(0, 1) if self._interleaved else self.made
        self.output = ordered.reshape(self.spec.m, -1)


class Rowwise(Fused[plugins.RowwiseInputs]):
    """Partial sums of which each rank has one, and their sum, whose rows are divided."""

    def __init__(self, inputs: plugins.RowwiseInputs) -> None:
        super().__init__(inputs)
        work, d = inputs.spec, self.ranks
        algorithm, rows = str(work.option("algorithm")), work.m // self.ranks
        streams = {"coll_pipeline": int(work.option("s")), "p2p_pipeline": d}.get(algorithm)
        columns = inputs.columns.view(d, rows, -1)
        if algorithm == "coll_pipeline":  # part s of every rank's rows, one after the other
            columns = columns.view(d, streams, -1, work.k // d).transpose(0, 1).contiguous()
        self._columns = columns.unsqueeze(0)
        self._weight = inputs.weight.view(1, *[1] * (columns.dim() - 2), *inputs.weight.shape)
        self._executor = executor_of(inputs, self._define, streams)

    def _define(self, fusion: Any, mesh: Any) -> None:
        """Multiply A, (d, [s,] d, rows, k / d), by W, (d, [1,] 1, k / d, n), and add up over d."""
        inputs, kind, algorithm = self.inputs, element_type(self.inputs), self.spec.option(
            "algorithm")
        left, right = (fusion.define_tensor(
            shape=[self.ranks, *tensor.shape[1:]], contiguity=True, dtype=kind)
            for tensor in (self._columns, self._weight))
        partial = fusion.ops.matmul(left, right)
        result = fusion.ops.sum(partial, 0)
        if algorithm == "p2p_pipeline" and on_symmetric_memory(inputs):
            result.set_memory_type(nvfuser.MemoryType.symmetric)
        fusion.add_output(result)
        for tensor in (left, right, partial, result):
            tensor.set_device_mesh(mesh)
        for tensor in (left, right):
            tensor.axis(0).parallelize(_RANKS)
        _SCHEDULES[str(algorithm)](left, partial, result)

    def run(self) -> None:
        """Run the fusion."""
        (self.made,) = self._executor.run([self._columns, self._weight])
        self.output = self.made.view(-1, self.spec.n)


def _in_turn(left: Any, partial: Any, result: Any) -> None:
    """All of the product, then one reduce-scatter."""
    partial.axis(0).parallelize(_RANKS)
    result.axis(1).parallelize(_RANKS)  # axis 0 is the one that was added up


def _by_collectives(left: Any, partial: Any, result: Any) -> None:
    """A reduce-scatter of each of s parts."""
    partial.axis(0).parallelize(_RANKS)
    partial.axis(1).parallelize(_STREAMS)
    result.axis(1).parallelize(_STREAMS)
    result.axis(2).parallelize(_RANKS)


def _by_messages(left: Any, partial: Any, result: Any) -> None:
    """Each rank's block of rows goes to that rank as soon as it is multiplied."""
    left.axis(1).parallelize(_STREAMS)
    partial.axis(0).parallelize(_STREAMS)
    partial.axis(1).parallelize(_RANKS)


_SCHEDULES = {"default": _in_turn, "coll_pipeline": _by_collectives, "p2p_pipeline": _by_messages}
