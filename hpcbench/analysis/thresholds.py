"""Limits of the sweep file: what a run must reach, or it ends with exit code 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcbench.analysis.check import GOOD, Checked, check_limits, refuse_unknown
from hpcbench.analysis.gate import STYLES
from hpcbench.config.limit import Limit, limit_below
from hpcbench.errors import ConfigError, ExitCode
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import Plan
from hpcbench.reduce.case_columns import COLUMNS
from hpcbench.reduce.reduce import exit_code
from hpcbench.reduce.results import Results


def limits_of(config: Mapping[str, Any]) -> list[Limit]:
    """Return the limits of a configuration in plain JSON values; none of one of earlier code."""
    return [*map(Limit.model_validate, config.get("limits", ())),
            *map(limit_below, config.get("fail_below", ()))]


def refuse_limits(plan: Plan) -> None:
    """Raise ConfigError for limits of columns that no case of the plan will have."""
    limits = limits_of(plan.config)
    if not limits:
        return
    own = (column for kind in plan.kinds if kind in kinds()
           for column in kinds()[kind].deriver().columns)
    try:
        refuse_unknown(limits, {
            column.name: column for column in (*COLUMNS, *own)})
    except ConfigError as error:
        raise ConfigError(f"limits of the sweep: {_one_line(str(error).splitlines())}") from None


def _one_line(lines: Iterable[str]) -> str:
    return "; ".join(lines)


def held(results: Results) -> Checked | None:
    """Return whether results hold the limits of their sweep; None of a sweep without limits."""
    limits = limits_of(results.plan.config)
    return check_limits(results, limits) if limits else None


def code_of(checked: Checked) -> int:
    """Return the exit code that ``hpcbench check`` has for an outcome."""
    return STYLES["ci"][checked.outcome]


def final_code(results: Results) -> ExitCode:
    """Return what a run ends with: its own code, and FINDINGS where only a limit does not hold."""
    code, checked = exit_code(results), held(results)
    if code == ExitCode.OK and checked is not None and checked.outcome != GOOD:
        return ExitCode.FINDINGS
    return code
