"""The deriver of sleeps: how much longer than asked they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.plugins import CaseColumn, CaseResult, Deriver
from hpcbench_sleep.planner import Sleep


@dataclass(frozen=True, slots=True)
class SleepRecord:
    """What is derived from a case: the median beyond what was asked."""

    overslept_s: float


class SleepDeriver(Deriver):
    """Derives how much too long sleeps were."""

    record = SleepRecord
    version = 1
    columns = (CaseColumn("overslept_s", "s", "median beyond what was asked"),)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, SleepRecord]:
        return {item.case.case_id: SleepRecord(item.statistics.median_s - work.milliseconds / 1e3)
                for item in items if item.statistics is not None
                and isinstance(work := item.case.workload, Sleep)}
