"""How often do the canary's drift and the intervals over launches err? A simulation, no machine.

    python benchmarks/error_rates.py [--series 10000] [--runs 8 12 20 32 64 200]

Three tables: in how many stationary series of runs a drift is reported (at most 1 % is allowed); in
how many that do drift; and how often an interval holds the median over launches, for the rule of
hpcbench and for others. The exit code is 1 if more than 1 % of a stationary kind is reported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.interval import median_interval, over_launches
from hpcbench.statistics.steady import steady_drift

ALLOWED = 0.01
CHANCE = 3.0
"""Standard errors of a share of series by which it may exceed ALLOWED."""
Series = npt.NDArray[np.float64]
Random = np.random.Generator
Kind = Callable[[Random, int, int], Series]
Levels = Callable[[Random, tuple[int, int]], Series]
T_975 = {2: 12.7062047362, 3: 4.3026527297, 4: 3.1824463053, 5: 2.7764451052, 6: 2.5705818366,
         8: 2.3646242516, 10: 2.2621571628}
"""Number of medians -> 97.5 % quantile of Student's t (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""
SAMPLES = 60
"""Of each simulated launch."""


def autoregressive(correlation: float) -> Kind:
    """Return Gaussian series whose neighbours correlate so much."""
    def make(random: Random, series: int, n: int) -> Series:
        noise = random.standard_normal((series, n))
        for run in range(1, n):
            noise[:, run] = (correlation * noise[:, run - 1]
                             + np.sqrt(1 - correlation ** 2) * noise[:, run])
        return noise
    return make


def groups(count: int) -> Kind:
    """Return series of so many groups of runs, each with a level of its own, as launches have."""
    def make(random: Random, series: int, n: int) -> Series:
        levels = random.standard_normal((series, count))
        return (levels[:, np.arange(n) * count // n]
                + 0.1 * random.standard_normal((series, n)))
    return make


def two_modes(dwell: int) -> Kind:
    """Return series that stay in one of two modes for so many runs on average."""
    def make(random: Random, series: int, n: int) -> Series:
        mode = random.random((series, n)) < 0.5
        leave = random.random((series, n)) < 2 / dwell  # half of them stay in the mode
        for run in range(1, n):
            mode[:, run] = np.where(leave[:, run], mode[:, run], mode[:, run - 1])
        return mode + 0.05 * random.standard_normal((series, n))
    return make


STATIONARY: dict[str, Kind] = {
    "independent": autoregressive(0.0), "correlation 0.5": autoregressive(0.5),
    "correlation 0.8": autoregressive(0.8), "correlation 0.9": autoregressive(0.9),
    "two modes, 2 runs each": two_modes(2), "two modes, 10 runs each": two_modes(10),
    **{f"{count} groups": groups(count) for count in (3, 4, 5, 6, 8)}}
LAUNCHES: dict[str, Levels] = {
    "launches alike": lambda random, shape: np.zeros(shape),
    "normal, 1 %": lambda random, shape: 0.01 * random.standard_normal(shape),
    "normal, 30 %": lambda random, shape: 0.3 * random.standard_normal(shape),
    "70 % fast, 30 % twice": lambda random, shape: np.log(2) * (random.random(shape) < 0.3),
    "exponential, 30 %": lambda random, shape: 0.3 * random.exponential(size=shape)}
"""Logarithm of each launch's level."""


def reported(kind: Kind, series: int, n: int, drift: float = 0.0) -> float:
    """Return in what share of series a drift is reported; they rise by ``drift`` deviations."""
    random, at = np.random.default_rng([n, series]), np.arange(float(n))
    values = np.exp(0.1 * (kind(random, series, n) + drift * at / (n - 1)))
    found = [steady_drift(one, at) for one in values]
    return float(np.mean([one is not None and one.significant for one in found]))


def held(levels: Levels, series: int, count: int) -> dict[str, float]:
    """Return how often each interval holds the median over launches, of ``count`` launches each."""
    random = np.random.default_rng([count, series])
    truth = _true_median(levels)
    times = _times(levels, random, (series, count))
    medians, true_s = np.median(times, axis=2), np.exp(truth)
    shares = {"range or interval": np.mean([_holds(one, true_s) for one in medians])}
    for name, values, true in (("t", medians, true_s), ("t of logarithms", np.log(medians), truth)):
        half = T_975[count] * values.std(axis=1, ddof=1) / np.sqrt(count)
        shares[name] = np.mean(np.abs(values.mean(axis=1) - true) <= half)
    pooled = [median_interval(one.ravel(), segments=[SAMPLES] * count) for one in times]
    shares["all samples"] = np.mean([one.low <= true_s <= one.high for one in pooled if one])
    return {name: float(share) for name, share in shares.items()}


def _times(levels: Levels, random: Random, shape: tuple[int, int]) -> Series:
    """Return the times of the samples of each launch."""
    return np.exp(levels(random, shape)[:, :, None]
                  + 0.05 * random.standard_normal((*shape, SAMPLES)))


@lru_cache
def _true_median(levels: Levels) -> float:
    """Return the logarithm of the median over launches of their medians."""
    medians = np.median(_times(levels, np.random.default_rng(0), (1, 100_000)), axis=2)
    return float(np.log(np.median(medians)))


def _holds(medians: Series, true_s: float) -> bool:
    found = over_launches(medians, 0.95)
    ordered = np.sort(medians)
    low, high = (found.low, found.high) if found.rank is None else (
        ordered[found.rank - 1], ordered[-found.rank])
    return bool(low <= true_s <= high)


def rows(title: str, heads: Sequence[str], table: dict[str, list[float]]) -> str:
    """Return a table of percentages as text."""
    lines = [f"{title:<26}" + "".join(f"{head:>19}" for head in heads)]
    lines += [f"{name:<26}" + "".join(f"{100 * share:>17.2f} %" for share in shares)
              for name, shares in table.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--runs", type=int, nargs="+", default=[8, 12, 20, 32, 64, 200])
    parser.add_argument("--launches", type=int, nargs="+", default=[2, 3, 4, 5, 6, 8, 10],
                        choices=sorted(T_975))
    given = parser.parse_args()
    runs = [f"{n} runs" for n in given.runs]
    alarms = {name: [reported(kind, given.series, n) for n in given.runs]
              for name, kind in STATIONARY.items()}
    print(rows("drift reported of none", runs, alarms), flush=True)
    few = max(1, given.series // 20)
    print(rows("drift in deviations", runs, {
        f"{drift:g}": [reported(STATIONARY["independent"], few, n, drift) for n in given.runs]
        for drift in (2.0, 5.0, 10.0, 20.0)}))
    for name, levels in LAUNCHES.items():
        found = {f"{count} launches": held(levels, few, count) for count in given.launches}
        heads = list(next(iter(found.values())))
        print(rows(name, heads, {count: list(one.values()) for count, one in found.items()}))
    limit = ALLOWED + CHANCE * np.sqrt(ALLOWED * (1 - ALLOWED) / given.series)
    sys.exit(int(any(share > limit for shares in alarms.values() for share in shares)))


if __name__ == "__main__":
    main()
