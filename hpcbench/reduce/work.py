"""How much a call of a case does, and what it does the same as cases on other numbers of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.kinds.registry import kinds
from hpcbench.kinds.spec import in_this_package
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.statistics.overlap import OverPasses

SAMPLES = "samples"
"""The unit of trainings, by which their cost is counted."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a case does (of a training: a step), as its kind counts it.

    Attributes:
        task: what is equal in cases that do the same, however much and on however many ranks.
        title: the task in words.
        way: how the task is divided over ranks, in words; cases of one way are compared.
        amount: what all ranks together do in a call, in ``unit``: samples, rows or bytes.
        tokens: the same in tokens, of what has some.
        alone: what makes it the base of all ways, as it runs on one rank; else nothing.
        only_communicates: it moves data and computes nothing: more ranks do not share its work.
        size: the extent of what only communicates, in words.
        communication: the share of a call that communication adds to it; None if not measured.
    """

    task: tuple[object, ...]
    title: str
    way: str
    amount: float
    unit: str
    tokens: int | None = None
    alone: str = ""
    only_communicates: bool = False
    size: str = ""
    communication: OverPasses | None = None


def work_of(results: Results, item: CaseResult) -> Work | None:
    """Return what a case does, as its kind says it; a plug-in's fault costs only that.

    None of a case without statistics, and of a kind that does not count its work.
    """
    spec = kinds().get(item.case.kind)
    if spec is None or item.statistics is None or not item.statistics.median_s > 0:
        return None
    try:
        return spec.deriver().work(item, results.record_of(item))
    except Exception:
        if in_this_package(spec.deriver_path):
            raise
        return None
