"""JAX in a worker: started once, on the ranks of the worker's torch process group.

JAX needs a coordinator, a server at which its processes find each other, until they are connected.
A process that loses its coordinator is aborted by JAX, so a worker that ends, or dies in a later
case, would take the others with it. On CPUs the coordinator is therefore closed as soon as they are
connected. On GPUs it stays: NCCL connects later.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hpcbench.plugins import CaseError, Place, meeting_point

AXIS = "ranks"
_CONNECT_TIMEOUT_S = 60


def mesh_of(place: Place) -> Mesh:
    """Start JAX, connect the ranks, and return one device of each, in rank order.

    All ranks must call. JAX starts once in a process and lives as long, so what is kept does not
    depend on torch's group: ranks without workers (--inline, torchrun) open one in every pass.
    Raises CaseError where JAX has no such device or was started for others, and as
    `meeting_point` does.
    """
    return _start(replace(place, group=None))


@cache
def _start(place: Place) -> Mesh:
    """Do so; ``place`` has no group. What is cached lives as long as JAX itself."""
    address, port = meeting_point(place)
    _refuse_another_start(place)
    _configure(place.device.type)
    if place.world_size == 1:
        return Mesh(_devices(place.device.type), (AXIS,))
    jax.distributed.initialize(
        f"{address}:{port}", place.world_size, place.rank,
        local_device_ids=None if place.device.index is None else [place.device.index],
        cluster_detection_method="deactivate", initialization_timeout=_CONNECT_TIMEOUT_S)
    mesh = Mesh(_devices(place.device.type), (AXIS,))
    if place.device.type == "cpu":
        _connect(mesh)
        jax.distributed.shutdown()
    return mesh


def _refuse_another_start(place: Place) -> None:
    """Raise CaseError on all ranks where JAX of one was started for other ranks or devices."""
    platforms = jax.config.jax_platforms
    other = _start.cache_info().currsize > 0 or platforms not in (None, "", place.device.type)
    others = [other] * place.world_size
    dist.all_gather_object(others, other)
    if any(others):
        raise CaseError(f"JAX starts once in a process, and has started for another number of "
                        f"ranks or other devices: put cases of {place.world_size} rank(s) on "
                        f"{place.device.type} into a run of their own")


def _configure(device_type: str) -> None:
    """Set what JAX and XLA read before they start.

    fp64 is fp64; SIGTERM stays the worker's; the CPU client has as many threads as torch
    (PJRT_NPROC: xla/pjrt/utils.cc, DefaultThreadPoolSize). On a GPU torch has memory, too.
    """
    os.environ["PJRT_NPROC"] = str(torch.get_num_threads())
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_platforms", device_type)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_enable_x64", True)


def _devices(device_type: str) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return one device of each process. Raises CaseError where this JAX has none of the type."""
    try:
        found = jax.devices(device_type)
    except RuntimeError as error:
        raise CaseError(f"this JAX has no {device_type} device, install jax[cuda12] or "
                        f"jax[cuda13]: {error}") from error
    first = {device.process_index: device for device in reversed(found)}
    return np.array([first[rank] for rank in sorted(first)])


def _connect(mesh: Mesh) -> None:
    """Call a first collective: it opens the connections that all later ones use."""
    one = on_mesh(torch.ones(1), mesh, PartitionSpec(AXIS))
    added = jax.shard_map(lambda part: jax.lax.psum(part, AXIS), mesh=mesh,
                          in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(), check_vma=False)
    jax.jit(added)(one).block_until_ready()


def on_mesh(own: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Return a global array of which this rank has ``own``, a copy, as ``spec`` divides it."""
    divided = [*spec, *[None] * (own.dim() - len(spec))]
    extents = [extent * (mesh.size if axis == AXIS else 1)
               for extent, axis in zip(own.shape, divided, strict=True)]
    copied = jax.numpy.array(jax.dlpack.from_dlpack(own), copy=True)
    return jax.make_array_from_single_device_arrays(
        tuple(extents), NamedSharding(mesh, spec),
        [jax.device_put(copied, mesh.local_devices[0])])
