"""What an analysis says: a sentence with its number, how sure it is, the evidence, the command.

Each topic (recommend, diagnose, scaling, cost) is a module beside this one. Its function takes runs
and what was asked, and returns a frozen record of JSON values in SI units that has a tuple
``answers``. The topic's module in `hpcbench.views` makes tables and charts of that record, so that
every renderer shows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcbench.reduce.results import Results, SampleSource

CLEAR, NONE, CANNOT_TELL = "clear", "none", "cannot tell"
CERTAINTIES = (CLEAR, NONE, CANNOT_TELL)
"""How an answer ends: something is found; it was looked for and is not there; the data cannot say.
"""
MOST_UNSEEN = 0.2
"""A negative answer that may have missed more than this share is ``cannot tell``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a topic.

    Attributes:
        certainty: one of CERTAINTIES.
        sentence: what holds, with its number and the interval of it; of ``cannot tell`` also why.
        evidence: from which cases and figures it follows, a phrase each.
        command: the command that shows or repeats it; empty where there is none.
        subject: what it is about, such as ``all_reduce 4 MiB`` or ``rank 2``.
    """

    certainty: str
    sentence: str
    evidence: tuple[str, ...] = ()
    command: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """Results that are analysed: ``path`` is what the user named; ``samples`` are their stamps."""

    path: str
    results: Results
    samples: SampleSource


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What the user asked beside the files; each topic takes what concerns it.

    ``price``: of a device for an hour, in the user's currency, None where none is known.
    ``samples``: training samples whose time and cost are told.
    """

    price: float | None = None
    samples: int = 10_000


class TopicRecord(Protocol):
    """What a topic's record has: its answers. All other fields are the topic's own."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return the answers, the most useful first."""


Analysis = Callable[[Sequence[Run], TopicOptions], TopicRecord]
