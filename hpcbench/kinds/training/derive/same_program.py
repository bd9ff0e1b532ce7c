"""Cases of a run that are the same program, so that nobody ranks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcbench.kinds.training.plan.program import program_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped


def same_programs(items: Iterable[CaseResult]) -> Mapping[str, str]:
    """Return for each case that runs the same as an earlier one of the run the id of the first."""
    groups = grouped(((program_of(training_of(item.case)), item.case.backend, item.case.device,
                       item.case.world_size, item.case.env, item.case.mode, item.case.batch),
                      item.case) for item in items)
    return {case.case_id: group[0].case_id for group in groups.values() for case in group[1:]}
