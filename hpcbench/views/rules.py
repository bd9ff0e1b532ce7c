"""Skips that follow from one rule: their reasons differ in numbers and in names of the case."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from hpcbench.plan.case import Case
from hpcbench.units import grouped, plural

Item = TypeVar("Item")
_WORD = re.compile(r"[\w.+-]+")


def by_rule(
    skips: Iterable[tuple[str, Item]], case_of: Callable[[Item], Case],
) -> Mapping[str, list[Item]]:
    """Return what was left out for each rule: pairs of a reason and whatever has a case.

    A rule is told by its first reason, and how many others there are like it.
    """
    rules = grouped((_rule(reason, case_of(item)), (reason, item)) for reason, item in skips)
    told: dict[str, list[Item]] = {}
    for same in rules.values():
        reasons = dict.fromkeys(reason for reason, _ in same)
        first, others = next(iter(reasons)), len(reasons) - 1
        more = f" (and {plural(others, 'more reason')} like it)" if others else ""
        told.setdefault(first + more, []).extend(item for _, item in same)
    return told


def _rule(reason: str, case: Case) -> str:
    """Return a reason without its numbers and without the words of its case."""
    own = {part for word in case.workload.words(case.world_size)
           for part in _WORD.findall(word)}
    return _WORD.sub(lambda found: "#" if found[0] in own or any(map(str.isdigit, found[0]))
                     else found[0], reason)
