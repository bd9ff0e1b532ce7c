"""All subjects in their order."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbench.errors import ExitCode
from hpcbench.plan.case import Plan
from hpcbench.validation.affinity import affinity_lines
from hpcbench.validation.devices import device_lines
from hpcbench.validation.launching import launching_lines
from hpcbench.validation.limits import limit_lines
from hpcbench.validation.lines import Line, State
from hpcbench.validation.network import network_lines
from hpcbench.validation.rank_report import JobReport
from hpcbench.validation.software import software_lines
from hpcbench.validation.storage import storage_lines
from hpcbench.validation.sweep import sweep_lines
from hpcbench.validation.timing import clock_lines


def judge(job: JobReport, plan: Plan | None) -> list[Line]:
    """Return every line about the reports; those of a sweep if there is a ``plan``."""
    subjects = (software_lines, launching_lines, device_lines, affinity_lines, network_lines,
                clock_lines, storage_lines, limit_lines)
    lines = [line for subject in subjects for line in subject(job)]
    return [*lines, *(sweep_lines(job, plan) if plan else ())]


def exit_code(lines: Sequence[Line]) -> ExitCode:
    """Return FINDINGS if anything fails, else OK: a warning does not stop a run."""
    failed = any(line.state is State.FAIL for line in lines)
    return ExitCode.FINDINGS if failed else ExitCode.OK
