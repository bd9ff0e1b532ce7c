"""What a kind knows of waiting within a call: how much, and which rank or part of it is the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

OWN_WORK, EXCHANGE = "own work", "exchange"
"""What a rank takes by itself; and what it takes once all ranks are ready to exchange."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How the exchange of a case varies from call to call, beside the work before it.

    Attributes:
        cv, own_cv: coefficients of variation of the exchange, and of the ranks' own work.
        share: mean deviation of the exchange over a call.
        chance: how likely chance makes it vary so much more than the work.
        is_high: whether it surely does.
    """

    cv: float
    own_cv: float
    share: float
    chance: float
    is_high: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much of a call ranks wait for whichever of them is last.

    ``share`` is None where nothing tells; ``low`` to ``high`` is its 95 % interval, None where
    there is none. ``missing`` says why a part of it is not known.
    """

    share: float | None = None
    low: float | None = None
    high: float | None = None
    variation: Variation | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class RankWork:
    """How long each rank takes for a part of a call in which it waits for nobody.

    Attributes:
        what: OWN_WORK or EXCHANGE.
        ranks: who; ``times_s`` are medians of its passes, (rank, pass).
        alike: a number for each rank: those with the same one have the same to do.
        group: what ranks with the same number share, such as a stage; empty if all have the same.
        ready_s: when each rank is ready to exchange, (rank, pass); empty of OWN_WORK.
    """

    what: str
    ranks: tuple[int, ...]
    times_s: tuple[tuple[float, ...], ...]
    alike: tuple[int, ...]
    group: str = ""
    ready_s: tuple[tuple[float, ...], ...] = ()
