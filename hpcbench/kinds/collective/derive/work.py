"""What a call of a collective does: it moves bytes, and more ranks do not share that."""

from __future__ import annotations

from typing import Any

from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.operations.bandwidth import busbw_factor
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.work import Work
from hpcbench.units import size_text


def work(item: CaseResult, record: Any | None) -> Work | None:
    """Return the bytes that count for busbw; None of one rank, and of what moves no data."""
    of = collective_of(item.case)
    ranks = item.case.world_size // of.groups
    factor = busbw_factor(of.collective, ranks)
    if not factor or ranks < 2:
        return None
    words = (of.collective, of.dtype, of.op, "in_place" if of.in_place else "",
             f"split={of.split}" if of.split != "even" else "",
             f"groups={of.groups}" if of.groups > 1 else "",
             f"stride={of.group_stride}" if of.group_stride > 1 else "")
    return Work(
        task=(of.collective, of.dtype, of.op, of.root, of.in_place, of.split, of.groups,
              of.group_stride, of.requested_bytes),
        title=" ".join(filter(None, words)), way="", amount=of.size_bytes * factor, unit="bytes",
        only_communicates=True, size=size_text(of.requested_bytes))
