"""The table of parallel efficiency and its factors, below those of the blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.derive.pop import Pop
from hpcbench.kinds.training.present.stalls import titles
from hpcbench.reduce.results import CaseResult
from hpcbench.views.table import Column, Group, Row, Show, Table

FACTORS = {"load_balance": "load balance", "communication": "communication",
           "serialisation": "serialisation", "transfer": "transfer"}
"""Field of the efficiency -> what it is called."""
DEFINITION = (
    "score = useful time of all ranks / (ranks x step) = load balance x communication, in %;",
    "  communication = serialisation x transfer; global = score x computation scaling;",
    "  limits: the smallest factor, where it is below 80 % (docs/hardware.md)",
)
_COLUMNS = (
    Column("case", "training"), Column("ranks", "ranks", Show.COUNT),
    Column("score", "score", Show.PERCENT, "%", "useful over consumed device time", "more"),
    *(Column(name, title, Show.PERCENT, "%", better="more", optional=True)
      for name, title in FACTORS.items()),
    Column("scaling", "comp. scaling", Show.PERCENT, "%",
           "useful time for a sample in the scaling's base over that here", "more", optional=True),
    Column("global", "global", Show.PERCENT, "%", "score x computation scaling", "more",
           optional=True),
    Column("limits", "limits", meaning="the smallest factor below what is acceptable",
           optional=True),
    Column("source", "by", meaning="what tells which time is useful"),
)


def efficiencies(
    items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
) -> Iterator[Table]:
    """Yield a row for each training of several ranks whose useful time is told; or nothing."""
    told = [(item, record.pop) for item in items if item.case.world_size > 1
            and (record := derived.get(item.case.case_id)) and record.pop]
    if told:
        named = titles([item for item, _ in told])
        yield Table("parallel efficiency of trainings", _COLUMNS, (Group("", tuple(
            _row(named[item.case.case_id], item, pop) for item, pop in told)),))


def _row(name: str, item: CaseResult, pop: Pop) -> Row:
    return Row((name, item.case.world_size, pop.score,
                *(getattr(pop.efficiency, factor) for factor in FACTORS),
                pop.computation_scaling, pop.global_efficiency, FACTORS.get(pop.limit or ""),
                pop.source),
               case_id=item.case.case_id)


FIELDS = {"efficiency_score": "score", "computation_scaling": "computation_scaling",
          "global_efficiency": "global_efficiency", "efficiency_of": "source"}
"""Field of the summaries -> what it is of the record, beside the factors."""
FACTOR_FIELDS = {"load_balance": "load_balance", "communication_efficiency": "communication",
                 "serialisation": "serialisation", "transfer": "transfer"}


def values(pop: Pop | None) -> dict[str, float | str | None]:
    """Return the fields of the summaries."""
    return {**{field: getattr(pop, name, None) for field, name in FIELDS.items()},
            **{field: getattr(pop and pop.efficiency, name, None)
               for field, name in FACTOR_FIELDS.items()}}
