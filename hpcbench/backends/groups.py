"""The process group under test, by backend; the control group is another one, always gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def open_group(backend: str, timeout: timedelta) -> Any:
    """Return a new group of all workers on ``backend`` (``ucc/tl/ucp`` is backend ucc)."""
    return dist.new_group(backend=backend.partition("/")[0], timeout=timeout)
