"""What a dry run prints: a line a case, and never a time or a bandwidth."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.text import Text

from hpcbench.kinds.kind import CountedCall
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Case, Plan
from hpcbench.report.terminal import print_lines
from hpcbench.verbosity import Verbosity


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


def print_trials(
    plan: Plan, trials: Iterable[Trial], verbosity: Verbosity = Verbosity.NORMAL,
) -> int:
    """Print each trial as it comes, then the counts; return how many were refused.

    Quietly only the counts, and on standard error what was refused.
    """
    counts: Counter[str] = Counter()
    if verbosity.is_quiet:
        print_lines(map(Text, _refused_lines(trials, counts)), sys.stderr)
        print_lines([Text(_totals(plan, counts))])
    else:
        print_lines(map(Text, _lines(plan, trials, counts)))
    return counts["refused"]


def _refused_lines(trials: Iterable[Trial], counts: Counter[str]) -> Iterator[str]:
    """Yield a line for each trial that was refused, and count all of them."""
    for trial in trials:
        counts[trial.outcome] += 1
        if trial.outcome == "refused":
            yield _trial_line(trial)


def _lines(plan: Plan, trials: Iterable[Trial], counts: Counter[str]) -> Iterator[str]:
    """Yield a line and more for each trial, which is counted, and the counts."""
    yield (f"dry run of {plan.name} as rank 0 of {plan.world_size}: no communication, "
           "large tensors have no memory, nothing is measured and nothing is written")
    for trial in trials:
        counts[trial.outcome] += 1
        yield _trial_line(trial)
        if trial.outcome != "skipped":
            calls = trial.calls if trial.outcome == "accepted" else None
            for line in presenter_of(trial.case.kind).dry_run_lines(trial.case.workload, calls):
                yield f"{'':<10}{line}"
    yield _totals(plan, counts)


def _trial_line(trial: Trial) -> str:
    return f"{trial.outcome:<9} {trial.case.label}  {trial.reason}".rstrip()


def _totals(plan: Plan, counts: Counter[str]) -> str:
    totals = ", ".join(f"{counts[name]} {name}"
                       for name in ("accepted", "refused", "skipped", "not tried"))
    return f"dry run, not a measurement: {len(plan.cases)} cases = {totals}"
