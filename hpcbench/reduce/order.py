"""HB135: were the cases run in the order that the seed says?

A note: the order guards against drift of the machine that meets some cases only; each time is
right all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcbench.plan.case import Plan
from hpcbench.plan.order import Generation, Turn, generations, shuffled, turns
from hpcbench.reduce.results import Finding
from hpcbench.reduce.stack import PassKey
from hpcbench.trace.schema import Record


@dataclass(slots=True)
class ExecutedOrder:
    """Where rank 0 ran each case, collected record by record.

    Attributes:
        positions: (case id, launch, pass) -> position among the cases of its workers.
        skipped: ids of the cases that this machine could not run.
    """

    positions: dict[tuple[str, PassKey], int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    def add(self, records: Iterable[Record]) -> None:
        """Take in records of rank 0, a member of every case; later attempts have no position."""
        for record in records:
            if (record.begin_ns, record.end_ns) == (0, 0):
                self.skipped.add(record.case_id)
            elif record.position >= 0 and record.attempt == 0:
                key = PassKey(record.launch, record.pass_index)
                self.positions[record.case_id, key] = record.position


def order_findings(plan: Plan, executed: ExecutedOrder) -> Iterator[Finding]:
    """Yield one finding if cases were not run in the planned order.

    Cases that were not run or have no position (schema version 1) say nothing.
    """
    measure = plan.config.get("measure", {})
    if not executed.positions or "seed" not in measure:
        return
    runnable = (case for case in plan.cases if case.case_id not in executed.skipped)
    todo = generations(runnable)
    out_of_order = [(turn, *misplaced) for turn in turns(plan.launches, plan.passes)
                    for misplaced in _misplaced(todo, executed, measure, turn)]
    if out_of_order:
        turn, label, position, expected = out_of_order[0]
        yield Finding("HB135", "note", f"{len(out_of_order)} times a case was not run in its "
                      f"place, first {label} in launch {turn.launch}, pass {turn.pass_index}: "
                      f"as number {position} "
                      f"of its workers instead of {expected}: drift of the machine may meet some "
                      "cases only; run again, or set measure.order=planned to say so")


def _misplaced(
    todo: Sequence[Generation], executed: ExecutedOrder, measure: Mapping[str, Any], turn: Turn
) -> Iterator[tuple[str, int, int]]:
    """Yield (label, position, expected position) of the cases run out of order in one pass."""
    key = PassKey(turn.launch, turn.pass_index)
    for generation in todo:
        order = shuffled(generation.cases, measure["order"], measure["seed"], turn.number)
        for expected, case in enumerate(order):
            position = executed.positions.get((case.case_id, key), expected)
            if position != expected:
                yield case.label, position, expected
