"""What a dry run prints: a line a case, and never a time or a bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.plan_table import calls_text, demand_lines
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
    calls: tuple[tuple[str, int, int], ...] = ()


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
        for line in _of_training(trial):
            say(f"{'':<10}{line}")
    told = ", ".join(f"{counts[name]} {name}"
                     for name in ("accepted", "refused", "skipped", "not tried"))
    say(f"dry run, not a measurement: {len(plan.cases)} cases = {told}")
    return counts["refused"]


def _of_training(trial: Trial) -> Iterator[str]:
    """Yield what a training's step called, and what each of its ranks will need."""
    if trial.case.kind != "training" or trial.outcome not in ("accepted", "not tried"):
        return
    work = training_of(trial.case)
    if trial.outcome == "accepted":
        expected = {(one.collective, one.count, one.size_bytes)
                    for one in predict_stage(work, stages_of(work)[0]).calls}
        how = "as" if set(trial.calls) == expected else "other than"
        yield f"called by rank 0, {how} predicted: {calls_text(trial.calls)}"
    yield from demand_lines(work)
