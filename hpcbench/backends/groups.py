"""The process group under test, by backend; the control group is another one, always gloo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def open_group(backend: str, timeout: timedelta, ranks: Sequence[int] | None = None) -> Any:
    """Return a new group of all workers, or of ``ranks`` (``ucc/tl/ucp`` is backend ucc).

    All workers call this, also those that are not in ``ranks``; they cannot use what they get.
    """
    return dist.new_group(
        None if ranks is None else list(ranks), backend=backend.partition("/")[0],
        timeout=timeout)


def open_groups(backend: str, timeout: timedelta, world_size: int, groups: int, rank: int) -> Any:
    """Return the group of ``rank`` out of ``groups`` equal groups of consecutive ranks."""
    if groups == 1:
        return open_group(backend, timeout)
    size = world_size // groups
    opened = [open_group(backend, timeout, range(first, first + size))
              for first in range(0, world_size, size)]
    return opened[rank // size]
