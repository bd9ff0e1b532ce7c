"""Implementation ``jax`` of tensor parallelism: its specification, which imports no JAX."""

from __future__ import annotations

from hpcbench.plugins import ImplementationSpec

JAX = ImplementationSpec(
    name="jax", meaning="one compiled function of JAX: product and collective (never run on GPUs)",
    runners={"tp_columnwise": "hpcbench_jax.tensor_parallel:Columnwise",
             "tp_rowwise": "hpcbench_jax.tensor_parallel:Rowwise"},
    calls=(), backends=("gloo", "nccl"), modules=("jax",), connects=True)
"""``calls`` is empty: JAX has collectives of its own, and calls none of the process group's."""
