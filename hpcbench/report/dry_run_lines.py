"""What a dry run prints: a line a case, and never a time or a bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.text import Text

from hpcbench.kinds.kind import CountedCall
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Case, Plan
from hpcbench.report.terminal import print_lines


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
    counts: Counter[str] = Counter()
    print_lines(map(Text, _lines(plan, trials, counts)))
    return counts["refused"]


def _lines(plan: Plan, trials: Iterable[Trial], counts: Counter[str]) -> Iterator[str]:
    """Yield a line and more for each trial, which is counted, and the counts."""
    yield (f"dry run of {plan.name} as rank 0 of {plan.world_size}: no communication, "
           "buffers on the host, nothing is measured and nothing is written")
    for trial in trials:
        counts[trial.outcome] += 1
        yield f"{trial.outcome:<9} {trial.case.label}  {trial.reason}".rstrip()
        if trial.outcome in ("accepted", "not tried"):
            calls = trial.calls if trial.outcome == "accepted" else None
            for line in presenter_of(trial.case.kind).dry_run_lines(trial.case.workload, calls):
                yield f"{'':<10}{line}"
    totals = ", ".join(f"{counts[name]} {name}"
                       for name in ("accepted", "refused", "skipped", "not tried"))
    yield f"dry run, not a measurement: {len(plan.cases)} cases = {totals}"
