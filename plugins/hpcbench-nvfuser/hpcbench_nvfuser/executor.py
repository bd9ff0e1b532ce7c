"""nvFuser's multi-device executor on the ranks of a case. Never run.

nvFuser connects the processes of a job by itself, once, and takes the GPU of its local rank. What
it reads is in its csrc/multidevice/communicator.cpp; names of the executor are those of
python/python_direct/multidevice.cpp.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

import nvfuser_direct as nvfuser
import torch
import torch.distributed as dist

from hpcbench.plugins import CaseError, Inputs, Place, meeting_point

Define = Callable[[Any, Any], None]
"""Define the fusion, an `nvfuser.FusionDefinition`, on a mesh of all ranks."""


@cache
def _connect(place: Place) -> None:
    """Tell nvFuser where the ranks meet; its communicator is made by the first executor.

    Raises CaseError where it would take another GPU than the case has, and as `meeting_point` does.
    """
    address, port = meeting_point(place)
    hosts: list[str] = [""] * place.world_size
    dist.all_gather_object(hosts, socket.gethostname())
    if str(place.device.index) != os.environ["LOCAL_RANK"]:
        raise CaseError(f"nvFuser takes the GPU of its local rank, {os.environ['LOCAL_RANK']}, not "
                        f"{place.device}: show the ranks of a node all its GPUs")
    os.environ.setdefault("NVFUSER_MASTER_ADDR", address)
    os.environ.setdefault("NVFUSER_MASTER_PORT", str(port))
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(hosts.count(socket.gethostname())))


def executor_of(inputs: Inputs, define: Define, streams: int | None = None) -> Any:
    """Return nvFuser's executor of a fusion; all ranks must call."""
    place, work = inputs.place, inputs.spec
    _connect(place)
    params = nvfuser.multidevice.MultiDeviceExecutorParams()
    params.backend_type = _communicator(inputs)
    params.use_allocation_cache = True
    params.offset_stream_indexing_by_rank = bool(work.option("offset_stream_indexing_by_rank"))
    params.inter_stream_synchronization = bool(work.option("inter_stream_synchronization"))
    if streams is not None:
        params.number_of_streams = streams
    mesh = nvfuser.multidevice.DeviceMesh(torch.arange(place.world_size))
    with nvfuser.FusionDefinition() as fusion:
        define(fusion, mesh)
    return nvfuser.multidevice.MultiDeviceExecutor(fusion.fusion, params)


def element_type(inputs: Inputs) -> Any:
    """Return nvFuser's name of the element type."""
    return {torch.float64: nvfuser.DataType.Double, torch.float32: nvfuser.DataType.Float,
            torch.float16: nvfuser.DataType.Half,
            torch.bfloat16: nvfuser.DataType.BFloat16}[inputs.dtype]


def on_symmetric_memory(inputs: Inputs) -> bool:
    """Return whether a result must lie where other GPUs can write it, as DDLB has it."""
    work = inputs.spec
    if work.option("communicator") != "cuda":
        return False
    algorithm, offset = work.option("algorithm"), work.option("offset_stream_indexing_by_rank")
    return algorithm == "default" or algorithm == "p2p_pipeline" and not offset


def _communicator(inputs: Inputs) -> Any:
    kinds = nvfuser.CommunicatorBackend
    if inputs.spec.option("communicator") == "cuda":
        return kinds.cuda
    return kinds.ucc if dist.get_backend(inputs.place.group) == "ucc" else kinds.nccl
