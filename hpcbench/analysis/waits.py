"""How much ranks wait for whichever is last, whether the exchange varies, and what is slow.

Who is late is the question of `analysis.diagnose`; here is how much of the waiting that explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpcbench.analysis.answer import Answer, Asked, Run
from hpcbench.analysis.causes import Cause, causes
from hpcbench.analysis.diagnose import diagnose
from hpcbench.analysis.waits_answers import LEAST_STALL, cause_answers, stalled_answers
from hpcbench.errors import command_line
from hpcbench.kinds.registry import kinds
from hpcbench.reduce.lateness import BEFORE_THE_CALL
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.waiting import Variation, Waiting


@dataclass(frozen=True, slots=True)
class Stalled:
    """What the stamps of a case say of waiting.

    Attributes:
        path, case_id, label: of which results and case.
        share: of the ranks' time in a call, spent waiting for the last one; ``low`` to ``high``
            is its 95 % interval.
        late_rank: the rank that is named as late within the call; ``late_share`` is what its
            lateness explains of that share.
        variation: how the exchange varies; None where that is not known.
        missing: why something is not known.
        is_clear: whether the share surely is at least `LEAST_STALL`.
    """

    path: str
    case_id: str
    label: str
    share: float | None
    low: float | None
    high: float | None
    late_rank: int | None
    late_share: float
    variation: Variation | None
    missing: str
    is_clear: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """The record of the topic."""

    stalled: tuple[Stalled, ...]
    causes: tuple[Cause, ...]
    answers: tuple[Answer, ...]


Late = Callable[[str, str], tuple[int, float] | None]
"""Of a path and a case: the rank that is named as late within the call, and its share of it."""


def waits(runs: Sequence[Run], asked: Asked) -> Waits:
    """Return how much ranks wait in these runs, and what is slow."""
    late = {(one.path, one.case_id): (one.rank, one.share.value)
            for one in diagnose(runs, asked).looks
            if one.is_clear and one.phase != BEFORE_THE_CALL}
    found = tuple(stalled(runs, lambda path, case_id: late.get((path, case_id))))
    why = causes(runs)
    command = command_line("advise", *(run.path for run in runs), "--only", "waits")
    return Waits(found, why, (*cause_answers(why, command), *stalled_answers(found, command)))


def stalled(runs: Sequence[Run], late: Late) -> Iterator[Stalled]:
    """Yield what is known of each case on several ranks."""
    for run in runs:
        for item in run.results.cases:
            if (waiting := _waiting(run, item)) is not None:
                yield _of_case(run, item, waiting, late(run.path, item.case.case_id))


def _waiting(run: Run, item: CaseResult) -> Waiting | None:
    if item.status != "ok" or item.case.world_size == 1 or item.case.kind not in kinds() or (
            item.case.kind in run.results.missing_kinds):
        return None
    return kinds()[item.case.kind].deriver().waiting(item, run.results.record_of(item))


def _of_case(
    run: Run, item: CaseResult, waiting: Waiting, late: tuple[int, float] | None,
) -> Stalled:
    share, ranks = waiting.share, item.case.world_size
    explained = late[1] * (ranks - 1) / ranks / share if late and share else 0.0
    return Stalled(
        run.path, item.case.case_id, item.case.label, share, waiting.low, waiting.high,
        late[0] if late else None, min(1.0, explained), waiting.variation, waiting.missing,
        is_clear=waiting.low is not None and waiting.low >= LEAST_STALL)
