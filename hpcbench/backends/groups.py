"""The process group under test, by backend; the control group is another one, always gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def open_group(backend: str, timeout: timedelta, mpi_comm: Any = None) -> Any:
    """Return a new group of all workers on ``backend`` (``ucc/tl/ucp`` is backend ucc).

    ``mpi_comm`` is the communicator of these workers, which backend mpi works on.
    """
    if backend == "mpi":
        from hpcbench.backends.mpi_group import NAME, register

        register()
        return dist.new_group(backend=NAME, timeout=timeout, pg_options=mpi_comm)
    return dist.new_group(backend=backend.partition("/")[0], timeout=timeout)
