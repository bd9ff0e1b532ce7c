"""What changed or disturbed the machine while a run went on, and what that cost its cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbench.analysis.answer import Answer, Asked, Run
from hpcbench.analysis.disturbed import (
    Following,
    Share,
    following,
    lowest_clock,
    shares_of_nodes,
    waiting_rank,
)
from hpcbench.analysis.disturbed_answers import Seen, clock_answers, noise_answers
from hpcbench.analysis.drift import Drifting, drifts
from hpcbench.analysis.drift_answers import drift_answers
from hpcbench.analysis.pass_readings import readings
from hpcbench.errors import command_line


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What in a run was so all the time: the rank that waits most, the one with the lowest clock,
    and nodes that lost cores.
    """

    path: str
    waiting: Share | None
    clock: Share | None
    others: tuple[Share, ...]
    steal: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The record of the topic: series that drift, cases that follow a condition, lost cores."""

    drifts: tuple[Drifting, ...]
    following: tuple[Following, ...]
    disturbed: tuple[Disturbed, ...]
    answers: tuple[Answer, ...]


def conditions(runs: Sequence[Run], asked: Asked) -> Conditions:
    """Return what changed or disturbed the machine during these runs."""
    read = {run.path: readings(run) for run in runs}
    drifting, follows = drifts(runs), following(read)
    lost = tuple(Disturbed(
        path, waiting_rank(one.cases), lowest_clock(one.cases),
        shares_of_nodes(one.cases, "others"), shares_of_nodes(one.cases, "steal"))
        for path, one in read.items())
    command = command_line("advise", *read, "--only", "conditions")
    answers = [*drift_answers(runs, drifting, command)]
    for run, one in zip(runs, lost, strict=True):
        seen = Seen(run, read[run.path], tuple(f for f in follows if f.path == run.path), command)
        answers += clock_answers(seen, one.clock)
        answers += noise_answers(seen, one.waiting, one.others, one.steal)
    return Conditions(drifting, follows, lost, tuple(answers))
