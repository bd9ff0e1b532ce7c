"""What parts of a machine reached, side by side, for the diagnosis: links, and ranks by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What ranks reached with each other in one case, more is better.

    Attributes:
        what: what was measured, such as ``bandwidth``.
        rates: (from, to); None of a rank with itself, and where nothing was measured.
        distances: how far apart the two are, in words; only links of the same are compared.
        each_way: whether both ways were measured by themselves; else a link has one value.
    """

    what: str
    rates: tuple[tuple[float | None, ...], ...]
    distances: tuple[tuple[str, ...], ...]
    each_way: bool


@dataclass(frozen=True, slots=True)
class RankRates:
    """What each rank reached by itself in one case, all with the same to do; more is better."""

    what: str
    rates: tuple[float, ...]
