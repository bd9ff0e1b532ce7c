"""What one step of a training really did (`run.counted_step`), beside what was predicted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.predict import is_predicted, predict_stage
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult

COUNTED = "counted"
"""The key of a rank's detail for what it counted."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs: of each the most that any rank has; None where it is not known.

    ``calls`` are those of collectives, ``wire_bytes`` their sizes times busbw factors, ``flops``
    by the definition ``counted``, what is computed again included, ``activations_bytes`` what
    forward and backward take.
    """

    calls: int | None = None
    wire_bytes: int | None = None
    flops: int | None = None
    activations_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """A step that was counted.

    Attributes:
        measured, predicted: what it needed, and what the plan says.
        scores_again_flops: what a fused attention computes once more in backward; not in ``flops``.
        activations_of: what the measured activations are of.
        missing: what was not counted, and why.
    """

    measured: Demand
    predicted: Demand
    scores_again_flops: int | None = None
    activations_of: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


def counted(item: CaseResult) -> Counted | None:
    """Return what was counted of a case; None where nothing was."""
    by_rank = _by_rank(item.detail)
    if not by_rank:
        return None
    held = tuple((item.memory or {}).values())
    activations = [int(one["activations"]) for one in held if "activations" in one]
    calls = [one["calls"].values() for one in by_rank.values() if "calls" in one]
    return Counted(
        measured=Demand(
            calls=max((sum(count for count, _, _ in each) for each in calls), default=None),
            wire_bytes=max((sum(wire for _, _, wire in each) for each in calls), default=None),
            flops=_most(by_rank, "flops"), activations_bytes=max(activations, default=None)),
        predicted=_predicted(training_of(item.case)),
        scores_again_flops=_most(by_rank, "scores_again_flops"),
        activations_of=", ".join(dict.fromkeys(
            str(one["activations_of"]) for one in held if "activations_of" in one)),
        missing={name: reason for one in by_rank.values()
                 for name, reason in one.get("missing", {}).items()})


def counted_wire_bytes(item: CaseResult) -> float | None:
    """Return the sum over all ranks of what they counted in a step; None if one did not."""
    by_rank = [one["calls"].values() for one in _by_rank(item.detail).values() if "calls" in one]
    if len(by_rank) < item.case.world_size:
        return None
    return float(sum(wire for calls in by_rank for _, _, wire in calls))


def differences(case: Case, detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield what ranks called otherwise than predicted: other numbers of calls, or other bytes.

    Compared are the first ranks of each group that divides tensors: others may have smaller parts.
    """
    work = training_of(case)
    if not is_predicted(work) or not work.trains:
        return
    stages = stages_of(work)
    for rank, one in _by_rank(detail).items():
        if "calls" not in one or rank % work.tp:
            continue
        expected = {part.collective: (part.count, part.size_bytes)
                    for part in predict_stage(work, stages[rank // work.tp % len(stages)]).calls}
        found = {name: (count, size) for name, (count, size, _) in one["calls"].items()}
        for name in sorted({*expected, *found}):
            if found.get(name) != expected.get(name):
                yield (f"rank {rank} called {_text(name, found)} in a step, predicted was "
                       f"{_text(name, expected)}")


def _text(name: str, calls: Mapping[str, tuple[int, int]]) -> str:
    count, size = calls.get(name, (0, 0))
    return f"{count} {name} of {size} B" if count else f"no {name}"


def _by_rank(detail: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {int(rank): left[COUNTED] for rank, left in detail.items() if COUNTED in left}


def _most(by_rank: Mapping[int, Mapping[str, Any]], name: str) -> int | None:
    return max((one[name] for one in by_rank.values() if name in one), default=None)


def _predicted(work: Training) -> Demand:
    if not is_predicted(work):
        return Demand()
    ranks = [predict_stage(work, stage) for stage in stages_of(work)]
    return Demand(
        calls=max(one.collectives for one in ranks),
        wire_bytes=max(one.wire_bytes for one in ranks),
        flops=max(one.hardware_flops for one in ranks),
        # not of the fullest moment, which may be the update, after the last activation is gone
        activations_bytes=max(moment.activations for stage in stages_of(work)
                              for moment in moments(work, stage)))
