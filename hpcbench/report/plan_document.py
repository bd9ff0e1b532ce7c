"""A plan as JSON: what ``hpcbench plan --json`` prints (docs/commands.md)."""

from __future__ import annotations

from typing import Any

from hpcbench import __version__
from hpcbench.plan.case import Case, Plan, case_to_json
from hpcbench.report.plan_lines import plan_estimate_s
from hpcbench.report.terminal import print_document

SCHEMA_VERSION = 1


def print_plan_document(plan: Plan) -> None:
    """Print `plan_document`."""
    print_document(plan_document(plan))


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON values; ``estimate_s`` of the totals is of all repeats."""
    runs = [case for case in plan.cases if case.skip is None]
    return {
        "schema": "hpcbench.plan", "schema_version": SCHEMA_VERSION,
        "hpcbench_version": __version__, "name": plan.name, "plan_hash": plan.plan_hash,
        "world_size": plan.world_size, "passes": plan.passes, "launches": plan.launches,
        "totals": {
            "cases": len(plan.cases), "to_run": len(runs),
            "skipped": len(plan.cases) - len(runs), "duplicates": plan.duplicates,
            "with_needs": sum(bool(case.needs) for case in runs),
            "estimate_s": plan_estimate_s(plan),
            "largest_memory_bytes": max(
                (case.memory_bytes + case.host_bytes for case in runs), default=0),
        },
        "notes": list(plan.config.get("notes", ())),
        "cases": [_case(case) for case in plan.cases],
    }


def _case(case: Case) -> dict[str, Any]:
    """Return a case as plans store it, with its label; its variables as a mapping."""
    return {"label": case.label, **case_to_json(case), "env": dict(case.env),
            "needs": list(case.needs)}
