"""The deriver of trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.kinds.kind import Deriver
from hpcbench.kinds.training.derive.problems import contradictions
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem


class TrainingDeriver(Deriver):
    """Derives rates, exposed communication and scaling."""

    def problems(
        self, case: Case, time_s: float, nodes: Mapping[int, str], hardware: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Yield HB149 for numbers that contradict one another, or the devices."""
        yield from contradictions(case, time_s, hardware)
