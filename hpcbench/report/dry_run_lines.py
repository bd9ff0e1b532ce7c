"""What a dry run prints: a line a case, and never a time or a bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hpcbench.kinds.kind import CountedCall
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Case, Plan
from hpcbench.report.terminal import open_console


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one case: ``accepted``, ``refused``, ``skipped`` or ``not tried``, and why.

    ``calls`` are the collectives that rank 0 called: name, how often, bytes of all of them as
    nccl-tests counts sizes.
    """

    case: Case
    outcome: str
    reason: str
    calls: tuple[CountedCall, ...] = ()


def print_trials(plan: Plan, trials: Iterable[Trial]) -> int:
    """Print each trial as it comes, then the counts; return how many were refused."""
    screen = open_console()

    def say(line: str) -> None:
        screen.print(line, markup=False, soft_wrap=True)

    say(f"dry run of {plan.name} as rank 0 of {plan.world_size}: no communication, "
        "buffers on the host, nothing is measured and nothing is written")
    counts: Counter[str] = Counter()
    for trial in trials:
        counts[trial.outcome] += 1
        reason = f"  {trial.reason}" if trial.reason else ""
        say(f"{trial.outcome:<9} {trial.case.label}{reason}")
        if trial.outcome in ("accepted", "not tried"):
            calls = trial.calls if trial.outcome == "accepted" else None
            for line in presenter_of(trial.case.kind).dry_run_lines(trial.case.workload, calls):
                say(f"{'':<10}{line}")
    totals = ", ".join(f"{counts[name]} {name}"
                       for name in ("accepted", "refused", "skipped", "not tried"))
    say(f"dry run, not a measurement: {len(plan.cases)} cases = {totals}")
    return counts["refused"]
