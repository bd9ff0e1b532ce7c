"""From what a step left to the verdict on one of its goals."""

from __future__ import annotations

import json
from pathlib import Path

from gpu.judges import JUDGES, Evidence, Judgement
from gpu.record import Record
from gpu.report import Verdict, without_results
from gpu.running import Setting, last_words
from gpu.steps import Goal, Step
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results


def judged(goal: Goal, step: Step, setting: Setting, record: Record) -> Verdict:
    """Return the verdict on a goal, whatever its step came to; an error in judging is one, too."""
    gpus = setting.machine.gpus
    if setting.steps.device == "cuda" and gpus < goal.least_gpus:
        return Verdict(goal.id, goal.text, record.name, "skipped",
                       f"it needs {goal.least_gpus} GPUs, this machine has {gpus}")
    if nothing := without_results(goal, record):
        return nothing
    try:
        found = _judgement(goal, setting.folder(step), setting)
    except Exception as error:  # one goal that cannot be judged is no reason to lose the others
        what = f"{type(error).__name__}: {error}"
        found = Judgement("failed", f"its results cannot be judged: {what}")
    return Verdict(goal.id, goal.text, record.name, found.verdict, found.detail)


def _judgement(goal: Goal, folder: Path, setting: Setting) -> Judgement:
    if not goal.judge:
        return Judgement("met", last_words(folder / "output.log"))
    if goal.judge == "own":
        told = json.loads((folder / "verdicts.json").read_text("utf-8"))[goal.id]
        return Judgement(told["verdict"], told["detail"])
    return JUDGES[goal.judge](Evidence(_results(folder), setting.machine), **goal.options)


def _results(folder: Path) -> Results:
    with open_results(folder / "results") as file:
        return file.results
