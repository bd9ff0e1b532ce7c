"""The store at which the workers of a job meet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from hpcbench.errors import CaseError


def open_store(ports: Sequence[int], timeout_s: float) -> dist.TCPStore:
    """Start the store on the first free one of the ports. Raises CaseError if none is free."""
    problem: Exception | None = None
    for port in ports:
        try:
            return dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False,
                                 timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, OSError) as error:
            problem = error
    raise CaseError(f"no free port in {ports[0]}..{ports[-1]} (launch.port): {problem}")
