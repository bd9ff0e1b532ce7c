"""The case that somebody names, by its id or its label, or by enough of one of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hpcbench.config.names import quote
from hpcbench.errors import UsageError
from hpcbench.reduce.results import CaseResult

MOST_NAMED = 3


def named_case(items: Sequence[CaseResult], name: str) -> CaseResult:
    """Return the case with this id or label, or the only one whose id begins with ``name``.

    Or else the only one whose label contains it. Raises UsageError where none or several fit, or
    where the case has no samples.
    """
    for fits in (
        [item for item in items if name in (item.case.case_id, item.case.label)],
        [item for item in items if name and item.case.case_id.startswith(name)],
        [item for item in items if name and name in item.case.label],
    ):
        if len(fits) > 1:
            raise UsageError(f"--case {quote(name)} fits {len(fits)} cases: {_listed(fits)}")
        for item in fits:
            if item.statistics is None:
                raise UsageError(f"--case {quote(name)}: the case is {item.status}, so it has no "
                                 "samples that count")
            return item
    raise UsageError(f"--case {quote(name)}: no case has this id or label; "
                     f"nearest: {_listed(_nearest(items, name))}")


def _nearest(items: Sequence[CaseResult], name: str) -> list[CaseResult]:
    """Return the cases whose label or id is most like the name, of those with samples."""
    def likeness(item: CaseResult) -> float:
        return max(difflib.SequenceMatcher(None, name.lower(), text.lower()).ratio()
                   for text in (item.case.label, item.case.case_id))
    timed = [item for item in items if item.statistics is not None]
    return sorted(timed, key=likeness, reverse=True)[:MOST_NAMED]


def _listed(items: Sequence[CaseResult]) -> str:
    named = ", ".join(f"{item.case.case_id} ({item.case.label})" for item in items[:MOST_NAMED])
    return f"{named} ..." if len(items) > MOST_NAMED else named or "none"
