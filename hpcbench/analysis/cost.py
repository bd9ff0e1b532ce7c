"""What training a number of samples costs: time, money and energy, and which choice is best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, NONE, Answer, Asked, Run
from hpcbench.analysis.compare import SAME, SLOWER
from hpcbench.analysis.cost_choices import Best, Choice, Step, Task, task_of
from hpcbench.analysis.scaling import band_text
from hpcbench.analysis.scaling_series import Band
from hpcbench.analysis.worked import confounders, untimed, worked
from hpcbench.errors import command_line
from hpcbench.reduce.work import SAMPLES
from hpcbench.units import format_seconds, grouped, plural

PRICE = "give --price, or hardware.price_per_device_hour in the sweep file"


@dataclass(frozen=True, slots=True)
class Costs:
    """What the trainings of one or several runs cost, by task."""

    answers: tuple[Answer, ...]
    samples: int
    tasks: tuple[Task, ...]


def cost(runs: Sequence[Run], asked: Asked) -> Costs:
    """Return what the asked number of samples takes on each choice. Times are without set-up."""
    cases = [case for case in worked(runs) if case.work.unit == SAMPLES]
    tasks = tuple(task_of(same, asked) for same in grouped(
        (case.key, case) for case in cases).values())
    command = " ".join((
        command_line("advise", *(run.path for run in runs), "--only", "cost"),
        *([f"--price {asked.price:g}"] if asked.price is not None else []),
        *([f"--samples {asked.samples}"] if asked.samples != Asked().samples else [])))
    beside = (*(f"without times: {text}" for text in untimed(runs)), *confounders(runs))
    answers = [answer for task in tasks for answer in _told(task)]
    if not tasks:
        answers = [Answer(CANNOT_TELL, "cannot tell what training costs, because no training was "
                          "timed")]
    answers += _without(runs, tasks)
    return Costs(tuple(replace(one, evidence=(*one.evidence, *beside), command=command)
                       for one in answers), asked.samples, tasks)


def arithmetic(task: Task, one: Choice) -> str:
    """Return how time and cost of a choice come about, nodes included."""
    even = one.ranks % one.nodes == 0
    devices = (f"{plural(one.nodes, 'node')} x {plural(one.ranks // one.nodes, 'device')}"
               if even else f"{plural(one.ranks, 'device')} of {plural(one.nodes, 'node')}")
    text = (f"{task.samples:,} samples / {one.samples_per_s:.4g} a second = "
            f"{one.time_s:.4g} s; {one.time_s:.4g} s x {devices} / 3600 = "
            f"{one.device_hours:.4g} device-hours")
    if one.cost is None or one.price is None:
        return text
    return f"{text}; x {one.price:g} = {one.cost:.4g} {task.unit}"


def _told(task: Task) -> Iterator[Answer]:
    """Yield which choice is fastest, which cheapest, the front, and what more ranks bring."""
    chosen = {one.label: one for one in task.choices}
    if len(chosen) < 2:
        (one,) = chosen.values()
        yield Answer(CANNOT_TELL, f"{task.title}: {_takes(task, one)}; cannot tell what is faster "
                     "or cheaper, because there is no other choice", (arithmetic(task, one),), "",
                     task.title)
        return
    yield _of_best(task, "fastest", task.fastest, chosen)
    yield _of_best(task, "cheapest", task.cheapest, chosen)
    front = [one for one in task.choices if one.on_front]
    yield Answer(
        CLEAR, f"{task.title}: of {plural(len(task.choices), 'choice')} "
        f"{len(front)} {'is' if len(front) == 1 else 'are'} on the Pareto front, by medians: "
        + "; ".join(f"{one.label} ({format_seconds(one.time_s)}, {one.spent:.4g} {task.unit})"
                    for one in sorted(front, key=lambda one: one.time_s)), (), "", task.title)
    for step in task.steps:
        yield _of_step(task, step)


def _of_best(task: Task, word: str, best: Best, chosen: dict[str, Choice]) -> Answer:
    one = chosen[best.labels[0]]
    evidence = tuple(arithmetic(task, chosen[label]) for label in best.labels) + tuple(
        f"{label}: its ranks share cores, so its time is no measure of more devices"
        for label in best.labels if chosen[label].shares_cores)
    where = " in this launch" if best.in_launch else ""
    if len(best.labels) > 1:
        why = ("they are the same within what matters" if best.alike else
               "cannot tell, because the launches do not tell them apart")
        return Answer(
            NONE if best.alike else CANNOT_TELL, f"{task.title}: no clear {word} choice among "
            f"{'; '.join(best.labels)}{where}: {why}; with the first {_takes(task, one)}"
            f"{_savings(task, one)}", evidence, "", task.title)
    return Answer(CLEAR, f"{task.title}: {word} is {one.label}{where}: {_takes(task, one)}"
                  f"{_savings(task, one)}", evidence, "", task.title)


def _takes(task: Task, one: Choice) -> str:
    energy = "" if one.kwh is None else f", {one.kwh:.3g} kWh by counters of {one.energy_of}"
    return (f"{task.samples:,} samples take {format_seconds(one.time_s)} and {one.spent:.4g} "
            f"{task.unit}{energy}")


def _savings(task: Task, one: Choice) -> str:
    if one.time_beside is None or one.cost_beside is None:
        return "; it is the default, the first planned"
    return (f"; beside the default ({task.default}) {_saved(one.time_beside, 'time')} and "
            f"{_saved(one.cost_beside, task.unit if one.cost is None else 'cost')}")


def _saved(beside: Band, word: str) -> str:
    """Return what is saved, or spent more, of a ratio to the default."""
    saved = Band(1 - beside.value, beside.high and 1 - beside.high, beside.low and 1 - beside.low)
    if saved.value >= 0:
        return f"it saves {band_text(saved, percent=True)} of {word}"
    more = Band(beside.value - 1, beside.low and beside.low - 1, beside.high and beside.high - 1)
    return f"it takes {band_text(more, percent=True)} more {word}"


def _of_step(task: Task, step: Step) -> Answer:
    """Return from which number of samples on more ranks are faster, and what an hour costs."""
    what = plural(step.more_nodes, "more node") if step.more_nodes > 0 else "more ranks"
    head = (f"{task.title}: {step.second} instead of {step.first} ({what}) takes "
            f"{band_text(step.time, percent=True)} of the time")
    if step.verdict in (SLOWER, SAME):
        why = "it is slower" if step.verdict == SLOWER else "it is as fast within what matters"
        return Answer(NONE, f"{head}: it never pays, because {why}", (), "", task.title)
    if step.hour_saved is None:
        return Answer(CANNOT_TELL, f"{head}; cannot tell whether it pays, because the launches do "
                      "not tell them apart", (), "", task.title)
    since = ("" if step.from_samples is None else
             f" from {plural(step.from_samples, 'sample')} on, set-up included,")
    spent = (f"each hour saved costs {step.hour_saved:.3g} {task.unit}" if step.hour_saved > 0 else
             f"each hour saved also saves {-step.hour_saved:.3g} {task.unit}")
    return Answer(CLEAR, f"{head}: it is faster{since} and {spent}", (), "", task.title)


def _without(runs: Sequence[Run], tasks: Sequence[Task]) -> Iterator[Answer]:
    """Yield why there is no money, and no energy."""
    choices = [one for task in tasks for one in task.choices]
    if choices and any(one.cost is None for one in choices):
        yield Answer(CANNOT_TELL, "cannot tell costs in money, because no price above 0 is known "
                     f"of every choice: device-hours are given; {PRICE}")
    missing = [one for one in choices if one.kwh is None]
    if missing:
        reasons = dict.fromkeys(
            f"{name}: {why}" for run in runs for told in run.results.told
            for name, why in told.missing.items() if name in ("energy", "gpu"))
        yield Answer(
            CANNOT_TELL, f"energy of {len(missing)} of {plural(len(choices), 'choice')} is not "
            "computed, because no counter of energy was read around it: cannot tell kWh",
            tuple(reasons))
