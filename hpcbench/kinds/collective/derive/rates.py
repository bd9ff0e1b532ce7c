"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them."""

from __future__ import annotations

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.operations.bandwidth import Bandwidth, busbw_factor


def bandwidth(workload: Collective, world_size: int, time_s: float) -> Bandwidth | None:
    """Return S / t and S / t x factor; None for barrier and for a time that is not positive.

    Of several groups at once the rates are those of one group, in the time of the slowest.
    """
    factor = busbw_factor(workload.collective, world_size // workload.groups)
    if factor is None or not time_s > 0:
        return None
    algbw = workload.size_bytes / time_s
    return Bandwidth(algbw, algbw * factor)
