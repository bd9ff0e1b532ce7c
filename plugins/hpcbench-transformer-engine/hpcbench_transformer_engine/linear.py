"""tp_columnwise and tp_rowwise as one layer of Transformer Engine each. Never run.

``Linear`` under sequence parallelism gathers its input before the product (``column``), or scatters
its result (``row``). The all-gather overlaps the product by userbuffers. The reduce-scatter is a
collective of the group after it: DDLB has turned userbuffers off there, too (``ub_overlap_rs``).
Written against Transformer Engine 2: ``Linear`` of its user guide, ``initialize_ub`` of
transformer_engine/pytorch/module/base.py.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import transformer_engine.pytorch as te

from hpcbench import plugins

AnyInputs = TypeVar("AnyInputs", bound=plugins.Inputs)
_GATHERING = "qkv"
"""A layer for whose forward pass initialize_ub makes an all-gather by ring exchange."""


class Layer(plugins.Implementation[AnyInputs]):
    """``output`` is what the layer returned last."""

    def restore(self) -> None:
        """Wipe it: a later call can get the same memory."""
        if hasattr(self, "output"):
            self.output.fill_(float("nan"))


class Columnwise(Layer[plugins.ColumnwiseInputs]):
    """All-gather of A under the product. ``weight`` is the rank's columns of W, or all of W.

    All of W on every rank is a layer of ranks times n columns whose parts are equal.
    """

    def __init__(self, inputs: plugins.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        work = inputs.spec
        te.module.base.destroy_ub()  # an earlier case's have its shape
        te.module.base.initialize_ub(
            shape=[work.m, work.k], tp_size=self.ranks, use_fp8=False, dtype=inputs.dtype,
            bootstrap_backend="gloo")
        self._layer = _linear(inputs, inputs.weight, inputs.weight.shape[1] * self.ranks,
                              parallel_mode="column", ub_overlap_ag=True, ub_name=_GATHERING)

    def run(self) -> None:
        """Gather and multiply."""
        with torch.no_grad():
            self.output = self._layer(self.inputs.rows)


class Rowwise(Layer[plugins.RowwiseInputs]):
    """The product, and the reduce-scatter of the partial sums."""

    def __init__(self, inputs: plugins.RowwiseInputs) -> None:
        super().__init__(inputs)
        self._layer = _linear(inputs, inputs.weight, inputs.spec.n, parallel_mode="row")

    def run(self) -> None:
        """Multiply and scatter."""
        with torch.no_grad():
            self.output = self._layer(self.inputs.columns)


def _linear(
    inputs: plugins.Inputs, weight: torch.Tensor, out_features: int, **chosen: Any,
) -> Any:
    """Return a layer of k global input features whose weight is ``weight``, transposed.

    ``weight``: (k, columns of this rank) or (rows of this rank, n).
    """
    place = inputs.place
    layer = te.Linear(
        inputs.spec.k, out_features, bias=False, sequence_parallel=True, tp_group=place.group,
        tp_size=place.world_size, params_dtype=inputs.dtype, device=place.device, **chosen)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
    return layer
