"""What one sweep file needs of these ranks: backends, devices, tools, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpcbench.launch.probe import Resolution, resolve
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
    yield from _skipped(plan, resolution)
    if n_failed := len(resolution.failures):
        yield fail("sweep", f"{plural(n_failed, 'case')} of GPUs will fail: CUDA did not answer",
                   "see the line of the probe")


def _skipped(plan: Plan, resolution: Resolution) -> Iterator[Line]:
    """Yield a line for each reason; of what lacks something in ``require`` it is a failure."""
    skips, unmet = resolution.skips, resolution.unmet
    counts = Counter((skips[case.case_id], unmet.get(case.case_id, ""))
                     for case in plan.cases if case.case_id in skips and case.skip is None)
    if planned := sum(case.skip is not None for case in plan.cases):
        yield not_applicable("sweep", f"{plural(planned, 'case')} skipped by the plan itself; see "
                             f"`hpcbench plan FILE --world-size {plan.world_size}` of the same "
                             "sweep file")
    for (reason, required), count in counts.most_common():
        judged = fail if required else warn
        yield judged("sweep", f"{plural(count, 'case')} skipped: {reason}",
                     f"the sweep requires {required} (require)" if required else
                     "leave these cases out, or see the line on what they lack")
