"""The case of a run that another is compared with, and the times that are compared."""

from __future__ import annotations

from collections.abc import Iterable

from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.overlap import PassTimes

_WAYS = ("block", "warmup", "iterations", "min_iterations", "validate", "wakeup_s")
"""How partners may differ; of several the one that differs least is taken."""


def nearest(item: CaseResult, candidates: Iterable[CaseResult]) -> CaseResult | None:
    """Return the candidate that was measured most like a case, of equals the first planned one."""
    return min(candidates, default=None, key=lambda other: (
        other.statistics is None,
        sum(getattr(other.case, way) != getattr(item.case, way) for way in _WAYS),
        other.case.index))


def why_unpaired(name: str, what: str, item: CaseResult, other: CaseResult | None) -> str:
    """Return why a partner's times do not compare with the case's; nothing if they do."""
    if other is None:
        return (f"{name} of the same {what} was not run: it has another order or size, or is not "
                "in the sweep")
    if other.statistics is None:
        return f"{name} of the same {what} is {other.status}"
    folds = [one.timing.fold if one.timing else "" for one in (other, item)]
    if folds[0] != folds[1]:
        return f"the time of {name} has fold {folds[0]}, not {folds[1]}"
    in_both = any(map(all, zip(pass_medians_s(item), pass_medians_s(other), strict=False)))
    return "" if in_both else f"there is no pass in which {name} was run, too"


def pass_medians_s(item: CaseResult | None) -> PassTimes:
    """Return the medians of the passes in seconds, none where nothing was timed."""
    return item.timing.pass_medians_s if item is not None and item.timing is not None else ()


def median_s(item: CaseResult | None) -> float | None:
    """Return the median in seconds, None where there are no statistics."""
    return item.statistics.median_s if item is not None and item.statistics is not None else None
