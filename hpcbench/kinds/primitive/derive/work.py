"""What a call of a primitive does: the rows of its product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcbench.kinds.primitive.derive.partners import does_both
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.work import Work
from hpcbench.statistics.overlap import OverPasses


def work(item: CaseResult, record: Any | None) -> Work | None:
    """Return the rows that all ranks multiply; None of a part alone, which is not divided so."""
    of = primitive_of(item.case)
    if not does_both(of) or item.statistics is None:
        return None
    options = " ".join(f"{name}={value}" for name, value in of.options)
    return Work(
        task=(of.primitive, of.order, of.dtype, of.n, of.k, of.groups),
        title=f"{of.primitive} {of.order} {of.dtype} n={of.n} k={of.k}",
        way=f"{of.implementation} {options}".rstrip(), amount=of.m, unit="rows",
        communication=_share(record.exposed_s, item.statistics.median_s) if record else None)


def _share(exposed_s: OverPasses | None, time_s: float) -> OverPasses | None:
    if exposed_s is None:
        return None
    return replace(exposed_s, **{name: getattr(exposed_s, name) / time_s
                                 for name in ("median", "least", "greatest")})
