"""How often are flags and two modes reported of cases that have nothing of the sort?

    python benchmarks/flags.py [--series 1000]

A simulation, no machine. Flags: samples are late at random, whatever they take; a case is reported
although its times do not depend on that. Modes: of series with one mode. Drift: `trend` or `change`
in nine passes of flat series. The exit code is 1 if more
than 1 % of a kind of series is reported, beyond chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import Statistics
from hpcbench.reduce.timing import Flagged, changed, is_unsettled, summarise
from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.order import high_outliers
from hpcbench.statistics.steady import change_point, modes_around_median, trend

ALLOWED, CHANCE = 0.01, 3.0
"""Share of series, and standard errors by which it may be exceeded."""
COUNTS = (30, 100, 400)
PASSES = 9
"""Of the shipped job."""
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
Times = npt.NDArray[np.float64]
Kind = Callable[[np.random.Generator, int], Times]


def correlated(correlation: float) -> Kind:
    """Return lognormal series (sigma 0.3) whose neighbours correlate so much."""
    def make(random: np.random.Generator, n: int) -> Times:
        noise = random.standard_normal(n)
        for at in range(1, n):
            noise[at] = correlation * noise[at - 1] + np.sqrt(1 - correlation ** 2) * noise[at]
        return np.exp(0.3 * noise)
    return make


UNIMODAL: dict[str, Kind] = {
    "uniform": lambda random, n: 1 + random.random(n),
    "lognormal 0.3": correlated(0.0),
    "lognormal 1": lambda random, n: np.exp(random.standard_normal(n)),
    "heavy tail": lambda random, n: 1 + random.pareto(1.5, n),
    "correlation 0.5": correlated(0.5),
    "correlation 0.8": correlated(0.8),
}
BIMODAL: dict[str, Kind] = {
    f"two modes 1 : {ratio}": lambda random, n, ratio=ratio: (  # type: ignore[misc]
        np.where(random.random(n) < 0.5, 1, ratio) * np.exp(0.1 * random.standard_normal(n)))
    for ratio in (1.5, 2, 4)}


def flags(times: Times, late: npt.NDArray[np.bool_]) -> tuple[bool, bool]:
    """Return whether late starts, and all flags, are said to change the median of ``times``."""
    statistics: Statistics = summarise(times)
    found = changed(statistics, Flagged(
        times, late, ~(late | high_outliers(times)), [times.size]), statistics.median_s)
    return found["late_starts"], found["fragile"]


def shares_flagged(kind: Kind, n: int, late: float, series: int) -> tuple[float, float]:
    """Return in which share of the series either flag is set."""
    random = np.random.default_rng([n, int(100 * late)])
    found = []
    for _ in range(series):
        times = kind(random, n)
        found.append(flags(times, random.random(n) < late))
    first, second = np.mean(found, axis=0)
    return float(first), float(second)


def share_of_modes(kind: Kind, n: int, series: int) -> float:
    """Return in which share of the series two modes are found around the median."""
    random = np.random.default_rng(n)
    return float(np.mean([bool(modes_around_median(times, median_interval(times)))
                          for times in (kind(random, n) for _ in range(series))]))


def shares_drifting(kind: Kind, n: int, series: int) -> tuple[float, float]:
    """Return in which share of flat series a pass of nine drifts, and in which that matters."""
    random = np.random.default_rng(n)
    found = []
    for _ in range(series):
        times = kind(random, PASSES * n)
        none = np.zeros(times.size, dtype=bool)
        drifts = any((drift := trend(part)) is not None and drift.significant
                     or change_point(part) is not None for part in np.split(times, PASSES))
        found.append((drifts, drifts and is_unsettled(
            summarise(times), Flagged(times, none, ~none, [n] * PASSES))))
    any_share, matters = np.mean(found, axis=0)
    return float(any_share), float(matters)


def table(series: int) -> Iterator[tuple[str, float]]:
    """Yield a line, and the share that must not exceed ALLOWED (0 where there is none)."""
    yield "flags of random samples, % of series: late, fragile", 0.0
    for name, kind in UNIMODAL.items():
        for n in COUNTS:
            found = [shares_flagged(kind, n, late, series) for late in SHARES]
            yield (f"{name:16} n={n:4}  " + "  ".join(
                f"{late:.0%}: {100 * a:4.1f} {100 * b:4.1f}"
                for late, (a, b) in zip(SHARES, found, strict=True)),
                max(max(pair) for pair in found))
    yield "two modes, % of series", 0.0
    for name, kind in {**UNIMODAL, **BIMODAL}.items():
        shares = [share_of_modes(kind, n, series) for n in COUNTS]
        yield f"{name:16} " + "  ".join(
            f"n={n}: {100 * share:4.1f}" for n, share in zip(COUNTS, shares, strict=True)), (
            0.0 if name in BIMODAL else max(shares))
    yield f"trend or change in {PASSES} passes, % of series: in a pass, flagged", 0.0
    for name, kind in UNIMODAL.items():
        found = [shares_drifting(kind, n, series) for n in COUNTS[:2]]
        yield f"{name:16} " + "  ".join(
            f"n={n}: {100 * a:4.1f} {100 * b:4.1f}"
            for n, (a, b) in zip(COUNTS[:2], found, strict=True)), max(b for _, b in found)


def main() -> int:
    """Print the tables; return 1 if a share is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--series", type=int, default=1000)
    series = parser.parse_args().series
    limit = ALLOWED + CHANCE * np.sqrt(ALLOWED * (1 - ALLOWED) / series)
    failed = False
    for line, share in table(series):
        failed |= share > limit
        print(line + ("  TOO MANY" if share > limit else ""), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
