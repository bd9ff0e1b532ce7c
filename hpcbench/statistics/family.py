"""Several tests in one report: which of them hold if any false one counts as an error."""

from __future__ import annotations

from collections.abc import Sequence


def holm(chances: Sequence[float], rate: float) -> list[bool]:
    """Return which tests hold, so that any false one does in at most a share ``rate`` of reports.

    ``chances`` are their p-values, however they depend on one another (Holm, Scandinavian Journal
    of Statistics 6, 1979).
    """
    holds = [False] * len(chances)
    in_order = sorted(range(len(chances)), key=chances.__getitem__)
    for place, at in enumerate(in_order):
        if chances[at] * (len(chances) - place) > rate:
            break
        holds[at] = True
    return holds


def benjamini_hochberg(chances: Sequence[float]) -> list[float]:
    """Return for each test the least share of false ones among those that hold, if it holds.

    ``chances`` are p-values. Tests below a share q of these numbers are false in at most a share q
    in the mean (Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995).
    """
    adjusted = [0.0] * len(chances)
    least = 1.0
    in_order = sorted(range(len(chances)), key=chances.__getitem__)
    for place in range(len(chances), 0, -1):
        at = in_order[place - 1]
        least = min(least, chances[at] * len(chances) / place)
        adjusted[at] = least
    return adjusted
