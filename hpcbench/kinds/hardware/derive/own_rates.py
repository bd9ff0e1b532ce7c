"""Which clock a rate is by, and how fast each rank was by itself, without waiting for others.

Products and memory are measured on the device where it has a clock of its own (two events around
the call): the host's time also holds the wait for the device, 10 to 20 us of a call on a GPU.
"""

from __future__ import annotations

import numpy as np

from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.stack import counts
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag

DEVICE, HOST = "device", "host"


def rate_seconds(item: CaseResult) -> tuple[float, str] | None:
    """Return the seconds of a call that its rate is by, and whose clock that is; None: no rate.

    ``device``: the median over samples of the slowest rank's time between two events; ``host``, on
    devices without events and in older results: the median time.
    """
    if item.statistics is None or not item.statistics.median_s > 0:
        return None
    if item.timing is not None and item.timing.device_s:
        return item.timing.device_s, DEVICE
    return item.statistics.median_s, HOST


def own_rates(
    amount: float, samples: CaseSamples, calls: int = 1, *, on_device: bool = False,
) -> tuple[float, ...]:
    """Return ``amount`` of a call over the median seconds of each rank's own samples.

    A sample is so many ``calls``. Only samples that count are looked at; nothing is returned
    without any. ``on_device``: by the device's clock, where all of them have one.
    """
    used = (counts(samples.use) if samples.use is not None
            else ~np.any(samples.flags & Flag.WARMUP, axis=0))
    if not used.any():
        return ()
    times_ns = samples.device_ns[:, used]
    if not on_device or (times_ns == NO_DEVICE_TIME).any():
        times_ns = (samples.end_ns - samples.start_ns)[:, used]
    own_s = np.median(times_ns, axis=1) / 1e9 / calls
    return tuple(amount / float(time_s) for time_s in own_s if time_s > 0)
