"""JAX in a worker: started once, on the ranks of the worker's torch process group.

JAX needs a coordinator, a server at which its processes find each other, until they are connected.
On CPUs it is closed again then. A process that loses its coordinator is aborted by JAX, so a worker
that ends, or dies in a later case, would take the others with it.
"""

from __future__ import annotations

import os
import socket
from functools import cache

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hpcbench.plugins import CaseError, Place

AXIS = "ranks"
_CONNECT_TIMEOUT_S = 60


def mesh_of(place: Place) -> Mesh:
    """Return one device of each rank of a group, in rank order; all ranks must call.

    Raises CaseError where JAX cannot run, or runs on other ranks than the group's.
    """
    if not dist.is_initialized() or dist.get_world_size() != place.world_size:
        raise CaseError("jax needs all ranks of a real job: it has collectives of its own, which "
                        "a dry run, or a part of the ranks, cannot stand in for")
    return _started(place.device.type, place.device.index)


@cache
def _started(device_type: str, index: int | None) -> Mesh:
    """Start JAX, connect the ranks, and return the mesh of their devices.

    What is cached lives as long as JAX itself in this process.
    """
    _configure(index if device_type == "cuda" else None)
    jax.distributed.initialize(
        _coordinator(), dist.get_world_size(), dist.get_rank(),
        local_device_ids=None if index is None else [index],
        cluster_detection_method="deactivate", initialization_timeout=_CONNECT_TIMEOUT_S)
    mesh = Mesh(_devices(device_type), (AXIS,))
    if device_type == "cpu":
        _connect(mesh)
        jax.distributed.shutdown()
    return mesh


def _configure(gpu: int | None) -> None:
    """Set what JAX and XLA read before they start.

    fp64 is fp64; SIGTERM stays the worker's; the CPU client has as many threads as torch
    (PJRT_NPROC: xla/pjrt/utils.cc, DefaultThreadPoolSize). On a GPU torch has memory, too.
    """
    os.environ["PJRT_NPROC"] = str(torch.get_num_threads())
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if gpu is None:
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_enable_x64", True)


def _coordinator() -> str:
    """Return address and port of the coordinator: rank 0's, on a port that is free there."""
    port = [0]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as server:
            port = [server.getsockname()[1]]
    dist.broadcast_object_list(port)
    return f"{os.environ['MASTER_ADDR']}:{port[0]}"  # where rank 0 is, as torch was told


def _devices(device_type: str) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Return one device of each process. Raises CaseError where this JAX has none of the type."""
    try:
        found = jax.devices(device_type)
    except RuntimeError as error:
        raise CaseError(f"this JAX has no {device_type}: {error}; install jax[cuda12], see JAX's "
                        "installation page") from error
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
    extents = [extent * (mesh.size if axis == AXIS else 1) for extent, axis in
               zip(own.shape, (*spec, *[None] * own.dim()), strict=False)]
    device = mesh.local_devices[0]
    copied = jax.device_put(jax.numpy.array(jax.dlpack.from_dlpack(own), copy=True), device)
    return jax.make_array_from_single_device_arrays(
        tuple(extents), NamedSharding(mesh, spec), [copied])
