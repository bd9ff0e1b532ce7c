"""The process group under test, by backend; the control group is another one, always gloo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.backends import ucc
from hpcbench.errors import CaseError


def open_group(backend: str, timeout: timedelta, ranks: Sequence[int] | None = None) -> Any:
    """Return a new group of all workers, or of ``ranks`` (``ucc/tl/ucp`` is backend ucc).

    All workers call this, also those that are not in ``ranks``; they cannot use what they get.
    Raises CaseError if the backend must be loaded and cannot be; the probe had found that it can.
    """
    name = backend.partition("/")[0]
    if name == "ucc" and (reason := ucc.load()):
        raise CaseError(f"ucc: {reason}")
    return dist.new_group(None if ranks is None else list(ranks), backend=name, timeout=timeout)


def open_groups(backend: str, timeout: timedelta, world_size: int, groups: int, rank: int) -> Any:
    """Return the group of ``rank`` out of ``groups`` equal groups of consecutive ranks."""
    if groups == 1:
        return open_group(backend, timeout)
    size = world_size // groups
    opened = [open_group(backend, timeout, range(first, first + size))
              for first in range(0, world_size, size)]
    return opened[rank // size]


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
