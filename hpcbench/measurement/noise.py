"""How quiet the core is that a rank runs on: how much of its time others take, and in which pieces.

`look_for_detours` reads the clock without pause and notes the gaps ("selfish detour": Beckman,
Iskra, Yoshii, Coghlan, Nataraj, "Benchmarking the effects of operating system interference on
extreme-scale parallel machines", Cluster Computing 11, 2008). `repeat_fixed_work` times equal
pieces of work ("fixed work quantum": Sottile and Minnich, CLUSTER 2004). All ranks of a node run
them at the same time, as they run the sweep; else ranks that share a core would not show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from hpcbench.measurement.process import no_garbage_collection
from hpcbench.trace.schema import FixedWork, Noise

Clock = Callable[[], int]

MIN_DETOUR_NS = 2000
"""A gap shorter than this is not counted, however fast the loop is: switching to another thread and
back costs about that much, while reading the clock itself may take a cache miss or two."""
_DETOUR_STEPS = 10
"""A gap is a detour from so many times the median step on, should the loop be slow."""
_CALIBRATION_STEPS = 2000
_PARTS = 10
"""Equal parts, by which a rank can be compared with others."""
_WORK_NS = 500_000
"""Duration of fixed work: longer than an interrupt, shorter than a time slice of 1 to 4 ms."""
_WORK_SIZES = (1000, 500_000)
"""Least and most numbers to add up; a clock that is too coarse to time them would ask for more."""
_MIN_LOOPS = 20

_SHARE, _SURE_S = 0.1, 0.2
"""Share of a job's estimated time; and seconds, in which one detour of 1 ms is not yet HB144."""
_QUIET_SHARE = 0.005
"""A core that loses no more is quiet: half of `_SURE_S` tells that."""


def check_s(most_s: float, estimate_s: float) -> float:
    """Return the seconds to check: ``most_s``, or a tenth of a short job."""
    return min(most_s, max(_SHARE * estimate_s, _SURE_S))


def measure_noise(seconds: float = 0.5) -> dict[str, Any]:
    """Return {"detours": `Noise`, "fixed_work": `FixedWork`} as JSON values; a quarter of
    ``seconds`` is fixed work.

    Of a short job a quiet core is looked at for half as long: all ranks spin, and wait for it."""
    look_s, work_s = 0.75 * seconds, 0.25 * seconds
    lost = look_for_detours(look_s / 2) if seconds <= _SURE_S else None
    if lost is not None and lost.stolen_share <= _QUIET_SHARE:
        work_s /= 2
    else:
        lost = look_for_detours(look_s)
    return {"detours": asdict(lost), "fixed_work": asdict(repeat_fixed_work(work_s))}


def look_for_detours(seconds: float = 0.5, now_ns: Clock = time.perf_counter_ns) -> Noise:
    """Spin on the clock and count gaps above 10 median steps of a short run before, at least 2
    us."""
    with no_garbage_collection():
        stamps = [now_ns() for _ in range(_CALIBRATION_STEPS)]
        median_ns = float(np.median(np.diff(np.array(stamps, dtype=np.int64))))
        threshold_ns = max(float(MIN_DETOUR_NS), _DETOUR_STEPS * median_ns)
        gaps: list[int] = []
        ended: list[int] = []
        begin = previous = now_ns()
        end = begin + round(seconds * 1e9)
        while previous < end:
            current = now_ns()
            if current - previous > threshold_ns:
                gaps.append(current - previous)
                ended.append(current)
            previous = current
    lasted_ns = max(previous - begin, 1)
    stolen_ns = sum(gaps) - len(gaps) * median_ns
    in_parts, _ = np.histogram(  # counted where they ended
        [at - begin for at in ended], bins=_PARTS, range=(0, lasted_ns), weights=gaps)
    return Noise(
        seconds=lasted_ns / 1e9, n_detours=len(gaps), stolen_share=stolen_ns / lasted_ns,
        longest_ns=max(gaps, default=0), median_step_ns=median_ns, threshold_ns=threshold_ns,
        part_shares=tuple((in_parts * _PARTS / lasted_ns).tolist()))


def add_up(size: int) -> int:
    return sum(range(size))


def repeat_fixed_work(
    seconds: float = 0.25, now_ns: Clock = time.perf_counter_ns,
    work: Callable[[int], object] = add_up,
) -> FixedWork:
    with no_garbage_collection():
        size = _work_size(now_ns, work)
        times_ns: list[int] = []
        end = now_ns() + round(seconds * 1e9)
        while len(times_ns) < _MIN_LOOPS or now_ns() < end:
            begin = now_ns()
            work(size)
            times_ns.append(now_ns() - begin)
    times = np.array(times_ns, dtype=np.float64)
    median = max(float(np.median(times)), 1.0)
    return FixedWork(
        n_loops=len(times), median_ns=median, cv=float(times.std() / max(times.mean(), 1.0)),
        p99_over_median=float(np.percentile(times, 99)) / median,
        max_over_median=float(times.max()) / median)


def _work_size(now_ns: Clock, work: Callable[[int], object]) -> int:
    tried = 10_000
    times_ns = []
    for _ in range(3):
        begin = now_ns()
        work(tried)
        times_ns.append(now_ns() - begin)
    least, most = _WORK_SIZES
    return min(max(least, tried * _WORK_NS // max(min(times_ns), 1)), most)
