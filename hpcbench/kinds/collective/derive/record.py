"""What is derived of one case of a collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from hpcbench.kinds.collective.derive.rates import bandwidth
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.operations.bandwidth import Bandwidth, busbw_factor
from hpcbench.reduce.results import CaseResult, Statistics


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """Rates of a collective; None where there is no such number.

    Attributes:
        busbw_factor: busbw / algbw; None of barrier. Cases that were not ok have it, too.
        bandwidth: rates in the median time.
        busbw_at: bus bandwidth in bytes/s in each time that the statistics name (``min_s``,
            ``ci_low_s``); times that are absent are left out.
    """

    busbw_factor: float | None = None
    bandwidth: Bandwidth | None = None
    busbw_at: Mapping[str, float] = field(default_factory=dict)


def collective_record(item: CaseResult) -> CollectiveRecord:
    """Return what is derived of one case."""
    case, work = item.case, collective_of(item.case)
    factor = busbw_factor(work.collective, world_size=case.world_size // work.groups)
    if item.statistics is None:
        return CollectiveRecord(factor)
    rates = {name: bandwidth(work, case.world_size, time_s)
             for name, time_s in _times(item.statistics).items()}
    return CollectiveRecord(
        factor, bandwidth(work, case.world_size, item.statistics.median_s),
        {name: rate.busbw_bytes_per_s for name, rate in rates.items() if rate is not None})


def _times(statistics: Statistics) -> dict[str, float]:
    return {name: value for name, value in asdict(statistics).items()
            if name.endswith("_s") and value is not None}
