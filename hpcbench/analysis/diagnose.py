"""Which ranks straggle, by how much, and what a call would take if they were as the others.

A rank is named where a comparison of ranks holds among all those of its report (Holm, at most
`FALSE_ALARMS` of the reports of equal ranks name any; `reduce.comparison`). The lateness is that
behind the next rank: all wait for so long, and so much a call would be shorter at most. The phase
is named as the cause only where it explains `EXPLAINS` of the lateness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcbench.analysis.answer import Answer, Asked, Run
from hpcbench.analysis.diagnose_answers import answers
from hpcbench.kinds.registry import kinds
from hpcbench.reduce.comparison import NEEDED, Comparison
from hpcbench.reduce.lateness import BEFORE_THE_CALL, Lateness
from hpcbench.reduce.results import CaseResult

EXPLAINS = 0.8
"""A cause is named from this share of the lateness on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value; ``low`` to ``high`` is its 99 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Look:
    """What one comparison of the ranks of a case says.

    Attributes:
        path, case_id, label: of which results and case.
        rank, next_rank: the rank that is last, and the one before it.
        host: that of ``rank``; empty where nothing tells it.
        behind_s: how long after the next one.
        share: that over the time of a call, or of a step.
        call_s: this time; ``what_if_s`` is it without ``behind_s``.
        phase: the phase that explains the lateness; empty where none does.
        explained: the share of the lateness that arises in the phase with most of it.
        is_clear: whether the rank is named.
        faults: what was injected on purpose.
        shortest_wait: in which share of the samples the rank has the shortest call, as one has
            that all wait for; no clock is in it. None where another rank has it more often.
    """

    path: str
    case_id: str
    label: str
    rank: int
    next_rank: int
    host: str
    behind_s: Estimate
    share: Estimate
    call_s: float
    what_if_s: Estimate
    phase: str
    explained: float
    is_clear: bool
    faults: tuple[str, ...] = ()
    shortest_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Untold:
    """A case whose ranks could not be compared, and why."""

    path: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The record of the topic: looks at ranks, of which some name one, and what could not be told.
    """

    looks: tuple[Look, ...]
    untold: tuple[Untold, ...]
    answers: tuple[Answer, ...]


def diagnose(runs: Sequence[Run], asked: Asked) -> Diagnosis:
    """Return which ranks straggle in these runs."""
    found = [one for run in runs for item in run.results.cases for one in _of_case(run, item)]
    looks = tuple(one for one in found if isinstance(one, Look))
    untold = tuple(one for one in found if isinstance(one, Untold))
    return Diagnosis(looks, untold, tuple(answers(looks, untold, [run.path for run in runs])))


def _of_case(run: Run, item: CaseResult) -> Iterator[Look | Untold]:
    """Yield what the start of the ranks of a case says, then what its kind knows more."""
    if item.case.world_size == 1 or item.status == "skipped":
        return
    if item.timing is None or item.statistics is None:
        yield Untold(run.path, item.case.label, f"a case has no times (status {item.status})")
        return
    for one in (_start(item.timing.late_start), *_within(run, item)):
        if one.missing or one.comparison is None:
            yield Untold(run.path, item.case.label, one.missing)
        elif one.comparison.rank is not None:
            yield _look(run, item, one, one.comparison)


def _start(start: Comparison | None) -> Lateness:
    if start is None or start.chance is None:
        return Lateness(missing=f"{NEEDED}, on one clock, to tell who starts late")
    return Lateness(start, BEFORE_THE_CALL, max(start.apart_s, 0.0))


def _within(run: Run, item: CaseResult) -> tuple[Lateness, ...]:
    spec = kinds().get(item.case.kind)
    if spec is None or item.case.kind in run.results.missing_kinds:
        return ()
    return tuple(spec.deriver().lateness(item, run.results.record_of(item)))


def _look(run: Run, item: CaseResult, late: Lateness, found: Comparison) -> Look:
    assert item.statistics is not None and item.timing is not None
    assert found.rank is not None and found.next_rank is not None
    call_s = item.statistics.median_s * item.timing.calls  # stamps are of whole samples
    behind = Estimate(found.apart_s, found.low_s, found.high_s)
    quickest = item.timing.quickest_rank == found.rank and late.phase == BEFORE_THE_CALL
    explained = min(1.0, late.phase_s / found.apart_s) if found.apart_s > 0 else 0.0
    return Look(
        run.path, item.case.case_id, item.case.label, found.rank, found.next_rank,
        _host(run, found.rank), behind,
        Estimate(*(value / call_s for value in (behind.value, behind.low, behind.high))), call_s,
        Estimate(*(max(0.0, call_s - value) for value in (behind.value, behind.high, behind.low))),
        late.phase if explained >= EXPLAINS else "", explained, found.is_clear,
        tuple(run.results.run.faults), item.timing.quickest_share if quickest else None)


def _host(run: Run, rank: int) -> str:
    return next((one.hostname for one in run.results.topology.ranks if one.rank == rank), "")
