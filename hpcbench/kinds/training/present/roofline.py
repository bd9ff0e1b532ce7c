"""What binds trainings and their phases: the rows of the roofline, and fields of the summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.present.stalls import titles
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import roofline_values
from hpcbench.views.roofline import Shown


def rooflines(
    items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
) -> list[Shown]:
    """Return what binds each step and its phases, in the order of cases."""
    told = [(item, record.rooflines) for item in items
            if (record := derived.get(item.case.case_id)) and record.rooflines]
    named = titles([item for item, _ in told])
    return [Shown(named[item.case.case_id], item.case.case_id, one)
            for item, found in told for one in found]


def values(record: TrainingRecord) -> dict[str, Any]:
    """Return the fields of the step, and ``phase_bounds``: a line for each phase."""
    step = record.rooflines[0] if record.rooflines else None
    return {**roofline_values(step), "phase_bounds": [
        f"{one.part}: {one.bound_by or 'unknown'}: {one.evidence}" for one in record.rooflines[1:]]
        or None}
