"""From what a step left to the verdict on one of its goals."""

from __future__ import annotations

import json
from pathlib import Path

from gpu.judges import JUDGES, Evidence, Judgement, flop_rate
from gpu.record import Record
from gpu.report import Verdict
from gpu.running import Setting, last_words
from gpu.steps import Goal, Step
from hpcbench.errors import HpcbenchError
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results


def judged(goal: Goal, step: Step, setting: Setting, record: Record) -> Verdict:
    """Return the verdict of a step that is done; what goes wrong in judging is one, too."""
    try:
        found = _judgement(goal, setting.folder(step), setting)
    except Exception as error:  # one goal that cannot be judged is no reason to lose the others
        found = Judgement("failed", f"it cannot be judged: {type(error).__name__}: {error}")
    return Verdict(goal.id, goal.text, record.name, found.verdict, found.detail)


def _judgement(goal: Goal, folder: Path, setting: Setting) -> Judgement:
    if not goal.judge:
        return Judgement("met", last_words(folder / "output.log"))
    if goal.judge == "own":
        told = json.loads((folder / "verdicts.json").read_text("utf-8"))[goal.id]
        return Judgement(told["verdict"], told["detail"])
    evidence = Evidence(_results(folder), setting.machine, _peaks(setting.session))
    return JUDGES[goal.judge](evidence, **goal.options)


def _results(folder: Path) -> Results:
    with open_results(folder / "results") as file:
        return file.results


def _peaks(session: Path) -> dict[str, float]:
    """Return the FLOP/s that the step ``peak`` measured by dtype; nothing where it has not run."""
    try:
        results = _results(session / "steps" / "peak")
    except (HpcbenchError, OSError):
        return {}
    found: dict[str, float] = {}
    for item in results.cases:
        dtype, rate = item.case.workload.dtype, flop_rate(results, item)
        if rate:
            found[dtype] = max(rate, found.get(dtype, 0.0))
    return found
