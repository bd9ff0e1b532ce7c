"""The largest batch that a search found, beside the one that was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.memory.plan.search import bracket_of, predicted_largest, with_batch
from hpcbench.kinds.memory.plan.workload import TRIES, work_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.reduce.results import CaseResult


@dataclass(frozen=True, slots=True)
class Largest:
    """What a search found; None where there is no such number. Batches are a replica's samples.

    Attributes:
        largest_batch: the most that fitted on every rank.
        too_large_batch: the fewest that did not; None: all that were tried fitted.
        too_large_ended, too_large_reason: how that try ended, and why.
        tries: how many batches were tried.
        limit_bytes: what the training was allowed to take on a rank, the least of all ranks.
        predicted_largest_batch: the most that is predicted to need no more; 0: none.
        batch_deviation: largest over predicted, less 1.
    """

    largest_batch: int
    too_large_batch: int | None = None
    too_large_ended: str | None = None
    too_large_reason: str = ""
    tries: int = 0
    limit_bytes: int | None = None
    predicted_largest_batch: int | None = None
    batch_deviation: float | None = None


def tries_of(item: CaseResult) -> list[Mapping[str, Any]]:
    """Return what was tried, as rank 0 recorded it; nothing if it did not."""
    tries: list[Mapping[str, Any]] = item.detail.get("0", {}).get(TRIES, [])
    return tries


def measured_training(item: CaseResult) -> Training:
    """Return the training that the numbers of a case are of: of a search the one it found."""
    work = work_of(item.case)
    fits = bracket_of(tries_of(item)).fits if work.search else 0
    return with_batch(work.training, fits) if fits else work.training


def largest_of(item: CaseResult, limits: Mapping[int, int]) -> Largest | None:
    """Return what a search found, within these limits of its ranks; None of other cases."""
    work, tries = work_of(item.case), tries_of(item)
    if work.search is None or not tries:
        return None
    limit_bytes, found = min(limits.values()), bracket_of(tries)
    expected = predicted_largest(work.training, work.search.unit, limit_bytes)
    return Largest(
        largest_batch=found.fits, too_large_batch=found.too_large, too_large_ended=found.ended,
        too_large_reason=found.reason, tries=len(tries), limit_bytes=limit_bytes,
        predicted_largest_batch=expected,
        batch_deviation=found.fits / expected - 1 if expected else None)
