"""The process group under test, by backend; the control group is another one, always gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.backends import ucc
from hpcbench.errors import CaseError


def open_group(backend: str, timeout: timedelta) -> Any:
    """Return a new group of all workers on ``backend`` (``ucc/tl/ucp`` is backend ucc).

    Raises CaseError if the backend must be loaded and cannot be; the probe had found that it can.
    """
    name = backend.partition("/")[0]
    if name == "ucc" and (reason := ucc.load()):
        raise CaseError(f"ucc: {reason}")
    return dist.new_group(backend=name, timeout=timeout)


def open_fake_world(world_size: int) -> Any:
    """Return the group of a world in which this process is rank 0 and nothing is communicated.

    torch's ``fake`` backend; the world that this process was in before is destroyed.
    """
    # registers the backend; torch has no public name for it
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=world_size)
    return dist.group.WORLD
