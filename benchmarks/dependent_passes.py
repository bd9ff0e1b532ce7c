"""Do ranks stay unaccused, and intervals right, where passes depend on one another? A simulation.

    python benchmarks/dependent_passes.py [--reports 2000] [--series 1000] [--samples 60]

Two tables over the same grid of passes and of the correlation of neighbours (AR(1)):

- in how many reports of equal ranks any rank is named. The medians of passes of each rank have 5 %
  of noise, whose neighbours correlate. A report has one comparison, or six of equal kind;
- how often an interval that is not flagged holds the median. Samples of a pass correlate, and each
  pass has a level of its own: its standard deviation is 0, 0.25, 0.5 or 1 times that of samples.

Goals: at most 1 % of reports name a rank; at least 93 % of intervals that are not flagged hold the
median. The exit code is 1 if one is missed by more than 3 standard errors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.comparison import compared, holm_corrected
from hpcbench.reduce.timing import CI_LEVEL, precision_of
from hpcbench.statistics.interval import median_interval

CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)
RANKS, PASSES, COMPARISONS = (2, 4, 16), (3, 9, 20), (1, 6)
EFFECTS = (0.0, 0.25, 0.5, 1.0)
NAMED, HELD, CHANCE = 0.01, 0.93, 3.0
LEAST, SPREAD = 0.01, 0.05
"""A rank counts from 1 % of the time on; noise of 5 %."""
Random = np.random.Generator
Values = npt.NDArray[np.float64]


def autoregressive(random: Random, series: int, n: int, correlation: float) -> Values:
    """Return stationary series of standard deviation 1, (series, n)."""
    noise = random.standard_normal((series, n))
    for at in range(1, n):
        noise[:, at] = (correlation * noise[:, at - 1]
                        + np.sqrt(1 - correlation ** 2) * noise[:, at])
    return noise


def named(random: Random, ranks: int, passes: int, correlation: float, comparisons: int) -> bool:
    """Return whether a report of equal ranks names any."""
    rows = [compared(f"{number}", range(ranks), 1 + SPREAD * autoregressive(
        random, ranks, passes, correlation), LEAST) for number in range(comparisons)]
    return any(one.is_clear for one in holm_corrected(rows))


def is_held(
    random: Random, passes: int, samples: int, correlation: float, effect: float,
) -> bool | None:
    """Return whether the interval of a case holds the median; None where it is flagged."""
    values = autoregressive(random, passes, samples, correlation)
    values += effect * random.standard_normal((passes, 1))
    times = [np.exp(SPREAD * part) for part in values]
    every = np.concatenate(times)
    found = precision_of(times, median_interval(every, CI_LEVEL, [samples] * passes),
                         (float(np.median(every)),), repeats=False)
    if not found.reliable or found.low_s is None or found.high_s is None:
        return None
    return found.low_s <= 1 <= found.high_s


def rows_of_reports(reports: int) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the name of each row, its cells, and whether all meet the goal."""
    limit = NAMED + CHANCE * np.sqrt(NAMED / reports)
    for ranks in RANKS:
        for passes in PASSES:
            for comparisons in COMPARISONS:
                random = np.random.default_rng([ranks, passes, comparisons])
                shares = [np.mean([named(random, ranks, passes, correlation, comparisons)
                                   for _ in range(reports)]) for correlation in CORRELATIONS]
                yield (f"{ranks} ranks, {passes} passes, {comparisons} rows",
                       [f"{100 * share:.1f} %" for share in shares], max(shares) <= limit)


def rows_of_intervals(series: int, samples: int) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the same of intervals; a cell is the share that hold, and the share flagged."""
    for passes in PASSES:
        for effect in EFFECTS:
            random, cells, is_met = np.random.default_rng([passes, int(4 * effect)]), [], True
            for correlation in CORRELATIONS:
                found = [is_held(random, passes, samples, correlation, effect)
                         for _ in range(series)]
                judged = [one for one in found if one is not None]
                share = float(np.mean(judged)) if judged else 1.0
                least = HELD - CHANCE * np.sqrt(HELD * (1 - HELD) / max(len(judged), 1))
                is_met &= share >= least
                cells.append(f"{100 * share:.1f} ({100 * (1 - len(judged) / series):.0f})")
            yield f"{passes} passes, level {effect:g}", cells, is_met


def table(title: str, rows: Iterator[tuple[str, list[str], bool]]) -> bool:
    """Print a table as it is made; return whether all of its rows meet the goal."""
    met = True
    print(f"{title:<30}" + "".join(f"{correlation:>12g}" for correlation in CORRELATIONS))
    for name, cells, is_met in rows:
        print(f"{name:<30}" + "".join(f"{cell:>12}" for cell in cells)
              + ("" if is_met else "  missed"), flush=True)
        met &= is_met
    print()
    return met


def main(words: Sequence[str]) -> int:
    """Print both tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=60, help="of each pass")
    given = parser.parse_args(words)
    met = table("reports that name a rank", rows_of_reports(given.reports))
    met &= table("intervals that hold, flagged", rows_of_intervals(given.series, given.samples))
    return int(not met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
