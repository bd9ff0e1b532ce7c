"""How fast each rank was by itself, without waiting for others."""

from __future__ import annotations

import numpy as np

from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.use import counts
from hpcbench.trace.schema import Flag


def own_rates(amount: float, samples: CaseSamples) -> tuple[float, ...]:
    """Return ``amount`` of a call over the median seconds of each rank's own samples.

    Only samples that count are looked at; nothing is returned without any.
    """
    used = (counts(samples.use) if samples.use is not None
            else ~np.any(samples.flags & Flag.WARMUP, axis=0))
    if not used.any():
        return ()
    own_s = np.median((samples.end_ns - samples.start_ns)[:, used], axis=1) / 1e9
    return tuple(amount / float(time_s) for time_s in own_s if time_s > 0)
