"""A case that is several runs: how each try ended, and what the next one is (`Workload.next_try`).

Every try has new workers, so that nothing of an earlier one is left, and its end costs no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcbench.plan.workload import Workload

MOST_TRIES = 40
"""Of one case, whatever its workload asks for."""


class Ended(str, Enum):
    """How a run ended on all ranks together."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    """A rank was refused memory, and said so."""
    DIED = "died"
    """A worker was killed, or ended by itself."""
    ERROR = "error"
    """Anything else, an end that was asked for included."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One run of a case: of which workload, how it ended and why, and how long it took."""

    workload: Workload
    ended: Ended
    reason: str
    seconds: float
