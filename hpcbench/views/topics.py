"""The topics of answers: the question of each, and how its record is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpcbench.analysis.answer import Analysis, Answered, Asked, Run
from hpcbench.analysis.bandwidth import bandwidth
from hpcbench.analysis.conditions import conditions
from hpcbench.analysis.cost import cost
from hpcbench.analysis.diagnose import diagnose
from hpcbench.analysis.machine import machine
from hpcbench.analysis.recommend import recommend
from hpcbench.analysis.scaling import scaling
from hpcbench.analysis.waits import waits
from hpcbench.views import conditions as condition_views
from hpcbench.views import cost as cost_views
from hpcbench.views import diagnose as diagnose_views
from hpcbench.views import machine as machine_views
from hpcbench.views import scaling as scaling_views
from hpcbench.views import waits as waits_views
from hpcbench.views.bandwidth import bandwidth_charts, bandwidth_tables
from hpcbench.views.chart import Chart
from hpcbench.views.recommend import recommend_charts, recommend_tables
from hpcbench.views.table import Table


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: ``analysis`` makes the record that ``tables`` and ``charts`` show.

    ``is_told`` is whether its answers stand in the summary, and at the end of a run and of
    ``show``, in short; ``is_quiet``, whether only what it finds stands at the end.
    """

    name: str
    question: str
    analysis: Analysis
    tables: Callable[[Any], Iterable[Table]]
    charts: Callable[[Any], Iterable[Chart]]
    is_told: bool = False
    is_quiet: bool = False


TOPICS: tuple[Topic, ...] = (
    Topic("recommend", "which setting is best for what, and by how much", recommend,
          recommend_tables, recommend_charts, is_told=True),
    Topic("diagnose", "which ranks the others wait for, and by how much", diagnose,
          diagnose_views.tables, diagnose_views.charts, is_told=True),
    Topic("waits", "how much ranks wait for one another, and what makes one slow", waits,
          waits_views.tables, waits_views.charts, is_told=True, is_quiet=True),
    Topic("conditions", "what changed or disturbed the machine meanwhile, and what that cost",
          conditions, condition_views.tables, condition_views.charts, is_told=True, is_quiet=True),
    Topic("machine", "which links and nodes of the machine are slow", machine,
          machine_views.tables, machine_views.charts),
    Topic("scaling", "how work scales over ranks, and what keeps it from it", scaling,
          scaling_views.tables, scaling_views.charts),
    Topic("cost", "what training costs in time, money and energy, and which choice is best", cost,
          cost_views.tables, cost_views.charts),
    Topic("bandwidth", "how much of the links was used, and which values cannot be true",
          bandwidth, bandwidth_tables, bandwidth_charts),
)
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a topic says of runs: its ``record``, which has the answers."""

    topic: Topic
    record: Answered


def told_of(run: Run) -> tuple[Told, ...]:
    """Return what stands at the end of a run and in its summary."""
    return tuple(Told(topic, topic.analysis([run], Asked())) for topic in TOPICS if topic.is_told)
