"""The topics of answers: the question of each, and how its record is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpcbench.analysis.answer import Analysis
from hpcbench.analysis.recommend import recommend
from hpcbench.views.chart import Chart
from hpcbench.views.recommend import recommend_charts, recommend_tables
from hpcbench.views.table import Table


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: ``analysis`` makes the record that ``tables`` and ``charts`` show.

    ``is_told`` is whether its answers stand at the end of a run and of ``show``, in short.
    """

    name: str
    question: str
    analysis: Analysis
    tables: Callable[[Any], Iterable[Table]]
    charts: Callable[[Any], Iterable[Chart]]
    is_told: bool = False


TOPICS: tuple[Topic, ...] = (
    Topic("recommend", "which setting is best for what, and by how much", recommend,
          recommend_tables, recommend_charts, is_told=True),
)
"""In the order in which they are shown."""
