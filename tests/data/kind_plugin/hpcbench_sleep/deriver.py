"""The deriver of sleeps: how much longer than asked they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.plugins import CaseResult, Deriver, Metric
from hpcbench_sleep.planner import Sleep


class SleepDeriver(Deriver):
    """Derives how much too long sleeps were."""

    version = 2
    columns = (Metric("overslept_s", "s", "median beyond what was asked"),)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, Mapping[str, float]]:
        return {item.case.case_id: {
            "overslept_s": item.statistics.median_s - work.milliseconds / 1e3}
            for item in items if item.statistics is not None
            and isinstance(work := item.case.workload, Sleep)}
