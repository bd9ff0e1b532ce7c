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
