"""What holds of all comparisons that a report makes, of every kind: one family of tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.reduce.comparison import LATE_START, Comparison, settled
from hpcbench.reduce.results import CaseResult, Results

Derived = Mapping[str, Mapping[str, Any]]


def comparisons(results: Results) -> Iterator[Comparison]:
    """Yield all comparisons of a report: who starts late, and those of the records.

    Among them are those that could not be made, as of cases of older results.
    """
    yield from _all(results.cases, results.derived)
    yield from (Comparison(LATE_START) for item in results.cases if item.case.world_size > 1
                and item.timing is not None and item.timing.late_start is None)


def settle(cases: Sequence[CaseResult], derived: Derived) -> tuple[tuple[CaseResult, ...], Derived]:
    """Return cases and records, each comparison in them with whether it holds."""
    known = settled([*_all(cases, derived)])
    judged = tuple(_with_start(item, known) for item in cases)
    return judged, {kind: {case_id: _with_own(record, known) for case_id, record in records.items()}
                    for kind, records in derived.items()}


def _all(cases: Iterable[CaseResult], derived: Derived) -> Iterator[Comparison]:
    yield from (item.timing.late_start for item in cases
                if item.timing is not None and item.timing.late_start is not None)
    for records in derived.values():
        for record in records.values():
            yield from _own(record)


def _own(record: Any) -> tuple[Comparison, ...]:
    """Return the comparisons of a record; those of a kind that makes none have no such field."""
    return getattr(record, "comparisons", ())


def _with_start(item: CaseResult, known: Iterator[Comparison]) -> CaseResult:
    if item.timing is None or item.timing.late_start is None:
        return item
    return replace(item, timing=replace(item.timing, late_start=next(known)))


def _with_own(record: Any, known: Iterator[Comparison]) -> Any:
    if not (own := _own(record)):
        return record
    return replace(record, comparisons=tuple(next(known) for _ in own))
