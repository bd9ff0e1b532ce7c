"""The deriver of trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.kind import Deriver
from hpcbench.kinds.training.derive.exposed import UNPAIRED, exposures, paired
from hpcbench.kinds.training.derive.problems import contradictions
from hpcbench.kinds.training.derive.record import TrainingRecord, training_record
from hpcbench.kinds.training.derive.scaling import scaling, scaling_record
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem
from hpcbench.reduce.results import CaseResult


class TrainingDeriver(Deriver):
    """Derives rates, exposed communication and scaling."""

    record = TrainingRecord

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, TrainingRecord]:
        """Return what each case gives alone, and beside the others."""
        exposed, partners, scaled = exposures(items), paired(items), scaling(items)
        return {case_id: training_record(
            item, hardware, exposed.get(case_id, UNPAIRED),
            scaling_record(scaled[case_id]) if case_id in scaled else None,
            is_partner=case_id in partners)
            for item in items for case_id in [item.case.case_id]}

    def problems(
        self, case: Case, time_s: float, nodes: Mapping[int, str], hardware: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Yield HB149 for numbers that contradict one another, or the devices."""
        yield from contradictions(case, time_s, hardware)
