"""What one sweep file needs of these ranks: backends, devices, tools, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hpcbench.config.schema import stored_config
from hpcbench.launch.probe import resolve
from hpcbench.plan.case import Plan
from hpcbench.units import plural
from hpcbench.validation.lines import Line, fail, not_applicable, ok, warn
from hpcbench.validation.rank_report import JobReport


def sweep_lines(job: JobReport, plan: Plan) -> Iterator[Line]:
    """Yield how many cases of the plan can run here, and why the others cannot."""
    if job.lost or len(job.with_facts) < job.world_size:
        yield not_applicable("sweep", "cannot be judged before all ranks and their torch answer")
        return
    resolution = resolve(plan, [report.rank_facts() for report in job.with_facts])
    total = len(plan.cases)
    if not resolution.devices:
        yield fail("sweep", f"none of the {total} cases of {plan.name} can run here",
                   "see the reasons below, or choose another sweep file")
    else:
        on = Counter(resolution.devices.values())
        devices = ", ".join(f"{count} on {device}" for device, count in sorted(on.items()))
        yield ok("sweep", f"{len(resolution.devices)} of {total} cases of {plan.name} can run "
                          f"here: {devices}")
    yield from _skipped(plan, resolution.skips)
    if n_failed := len(resolution.failures):
        yield fail("sweep", f"{plural(n_failed, 'case')} of GPUs will fail: CUDA did not answer",
                   "see the line of the probe")


def _skipped(plan: Plan, skips: Mapping[str, str]) -> Iterator[Line]:
    """Yield a line for each reason; of a backend in ``require`` it is a failure."""
    required = set(stored_config(plan.config).require)
    counts = Counter((skips[case.case_id], case.backend in required)
                     for case in plan.cases if case.case_id in skips and (
                         case.skip is None or case.backend in required))
    if planned := sum(case.skip is not None and case.backend not in required
                      for case in plan.cases):
        yield not_applicable("sweep", f"{plural(planned, 'case')} skipped by the plan itself; see "
                             f"`hpcbench plan --world-size {plan.world_size}`")
    for (reason, is_required), count in counts.most_common():
        judged = fail if is_required else warn
        yield judged("sweep", f"{plural(count, 'case')} skipped: {reason}",
                     "the sweep requires this backend (require)" if is_required else
                     "leave these cases out, or see the line on what they lack")
