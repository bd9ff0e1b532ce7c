"""What a report says of faults that were injected: its numbers are of no machine."""

from __future__ import annotations

from hpcbench.config.fault import fault_texts
from hpcbench.plan.case import Plan
from hpcbench.reduce.results import RunInfo


def injected_text(run: RunInfo) -> str:
    """Return which faults were injected; nothing where none was."""
    return f"faults were injected: {'; '.join(run.faults)}" if run.faults else ""


def planned_text(plan: Plan) -> str:
    """Return which faults will be injected; nothing where none will be."""
    texts = fault_texts(plan.config.get("fault", ()))
    return f"faults will be injected: {'; '.join(texts)}" if texts else ""
