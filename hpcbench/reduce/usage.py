"""What a case used of the machine, and what was read of it: records of the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pass of a case used, from the reading before it to the one after it; None: not read.

    Sums over ranks or nodes are of a mean pass. With set-up, warm-ups and checks, and of counters
    of a node with all that its other processes did.

    Attributes:
        passes: how many passes readings bracket, of the table that has most.
        window_s: how long such a bracket is.
        energy_j, mean_power_w: of what ``energy_of`` names: ``cpu`` (packages and memory by RAPL),
            ``gpu``, or ``cpu and gpu``.
        clock_low_mhz, clock_high_mhz: the least and the greatest clock that was read, of
            ``clock_of``: ``gpu`` or ``cpu``.
        throttled, throttled_by: whether heat or a limit of power lowered a clock, and which.
        cpu_s, wait_s: CPU time of the workers, and time that their main threads waited for a core.
        minor_faults, major_faults: page faults of the workers.
        steal_share: share of the time of the nodes' cores that a hypervisor gave to others.
        sent_bytes, sent_by_node: sent by all interfaces, and by those of each node.
        loopback_bytes: what of it stayed on its node.
        dropped: packets dropped by interfaces.
        nvlink_bytes: sent over NVLinks.
        computed_bytes: what all ranks send in as many calls, by the formulas of the case's kind.
        xids, ecc_errors: last XID of GPUs that have one, and memory errors of GPUs.
        spans_ns: begin and end of each pass of the newest attempt, on the global clock.
    """

    passes: int
    window_s: float | None = None
    energy_j: float | None = None
    energy_of: str = ""
    mean_power_w: float | None = None
    clock_low_mhz: float | None = None
    clock_high_mhz: float | None = None
    clock_of: str = ""
    throttled: bool | None = None
    throttled_by: tuple[str, ...] = ()
    cpu_s: float | None = None
    wait_s: float | None = None
    minor_faults: float | None = None
    major_faults: float | None = None
    steal_share: float | None = None
    sent_bytes: float | None = None
    sent_by_node: tuple[float, ...] = ()
    loopback_bytes: float | None = None
    dropped: float | None = None
    nvlink_bytes: float | None = None
    computed_bytes: float | None = None
    xids: tuple[int, ...] = ()
    ecc_errors: float | None = None
    spans_ns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RankTold:
    """What one rank read in one attempt, and why not the rest (`trace.telemetry.Told`)."""

    rank: int
    attempt: int
    rate_hz: float
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
