"""tp_columnwise and tp_rowwise as one compiled function each: product and collective.

The order is that of the case. DDLB's JAX implementation leaves it to the compiler where the
collective stands; then nobody could say how many flops a rank did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.sharding import PartitionSpec

from hpcbench import plugins
from hpcbench_jax.runtime import AXIS, mesh_of, on_mesh

AnyInputs = TypeVar("AnyInputs", bound=plugins.Inputs)
Body = Callable[[jax.Array, jax.Array], jax.Array]
"""What a rank does with its parts of both operands."""
WHOLE, ROWS, COLUMNS = PartitionSpec(), PartitionSpec(AXIS, None), PartitionSpec(None, AXIS)


class Compiled(plugins.Implementation[AnyInputs]):
    """A function of two operands, compiled in set-up; ``run`` ends when its result is there."""

    def __init__(
        self, inputs: AnyInputs, body: Body,
        operands: tuple[tuple[torch.Tensor, PartitionSpec], ...], result: PartitionSpec,
    ) -> None:
        super().__init__(inputs)
        mesh = mesh_of(inputs.place)
        self._operands = [on_mesh(own, mesh, spec) for own, spec in operands]
        divided = jax.shard_map(body, mesh=mesh, in_specs=tuple(spec for _, spec in operands),
                                out_specs=result, check_vma=False)
        self._call: Any = jax.jit(divided).lower(*self._operands).compile()
        self._result: jax.Array | None = None

    @property
    def output(self) -> torch.Tensor:
        """Return this rank's part of the last result: a view of JAX's memory."""
        assert self._result is not None
        return torch.from_dlpack(self._result.addressable_data(0))

    def restore(self) -> None:
        """Wipe the last result: the next one can get the same memory."""
        if self._result is not None:
            self.output.fill_(float("nan"))

    def run(self) -> None:
        """Call it, and wait."""
        self._result = self._call(*self._operands)
        self._result.block_until_ready()


class Columnwise(Compiled[plugins.ColumnwiseInputs]):
    """All-gather of A's rows before the product, or of C's rows after it."""

    def __init__(self, inputs: plugins.ColumnwiseInputs) -> None:
        sharded = inputs.weight.shape[1] < inputs.spec.n
        columns = COLUMNS if sharded else WHOLE
        super().__init__(inputs, _gather_first if inputs.gather_first else _gather_last,
                         ((inputs.rows, ROWS), (inputs.weight, columns)), columns)


class Rowwise(Compiled[plugins.RowwiseInputs]):
    """The product, and the reduce-scatter or all-reduce of the partial sums."""

    def __init__(self, inputs: plugins.RowwiseInputs) -> None:
        super().__init__(inputs, _scatter_last if inputs.scatter else _reduce_last,
                         ((inputs.columns, COLUMNS), (inputs.weight, ROWS)),
                         ROWS if inputs.scatter else WHOLE)


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the product, added up in fp32 (fp64 of fp64), as torch does; no TF32 on GPUs."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    return lax.dot(left, right, precision=lax.Precision.HIGHEST,
                   preferred_element_type=wide).astype(left.dtype)


def _gather_first(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return _product(lax.all_gather(rows, AXIS, tiled=True), weight)


def _gather_last(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return lax.all_gather(_product(rows, weight), AXIS, tiled=True)


def _scatter_last(columns: jax.Array, weight: jax.Array) -> jax.Array:
    return lax.psum_scatter(_product(columns, weight), AXIS, tiled=True)


def _reduce_last(columns: jax.Array, weight: jax.Array) -> jax.Array:
    return lax.psum(_product(columns, weight), AXIS)
