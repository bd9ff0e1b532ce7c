"""Where libraries that connect the ranks by themselves can meet."""

from __future__ import annotations

import os
import socket

import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.operations.place import Place


def meeting_point(place: Place) -> tuple[str, int]:
    """Return rank 0's address, and a port that is free there; all ranks must call.

    Such a library connects the processes of a job, so a group must have all of them, or CaseError
    is raised.
    """
    if dist.get_world_size() != place.world_size:
        raise CaseError(f"a library that connects processes by itself takes all "
                        f"{dist.get_world_size()} ranks, not a group of {place.world_size}")
    port = [0]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as server:
            port = [server.getsockname()[1]]
    dist.broadcast_object_list(port)
    return os.environ["MASTER_ADDR"], port[0]  # rank 0 opened the store of torch at this address
