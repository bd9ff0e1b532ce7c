"""Tasks that runs did in several ways, and how each two ways of one compare, whoever asks.

A task is work: its ways differ in one key, and in its options. Two ways are compared in pairs that
were measured close together: the medians of the same pass, so that a disturbance for a while slows
both. The result holds in these launches. Where they differ by more than their passes explain, and
from eight on, each launch is one number, the mean over its passes (`shifts_in_launches`)."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hpcbench.answers.compare_inputs import ENV, OPTION, UNSET
from hpcbench.records import dataclass
from hpcbench.reduce.records import log_ratios, passes_by_launch
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.statistics.hypothesis_tests import benjamini_hochberg, shifts_in_launches
from hpcbench.statistics.order import Interval
from hpcbench.statistics.overlap import PassTimes
from hpcbench.units import grouped, plural, vary

RANKS = "world_size"
FEWEST = 3
"""Fewer pairs decide nothing."""
ENOUGH_PASSES = 9
"""The fewest passes that are requested where those there are decide nothing."""
PASSES, LAUNCHES = "passes", "launches"

PassesOfFiles = Sequence[Sequence[PassTimes]]
"""The medians of a case's passes in seconds, (file, launch, pass); a file without it is empty."""


def pairs_by_launch(
    first_s: PassesOfFiles, second_s: PassesOfFiles,
) -> list[npt.NDArray[np.float64]]:
    """Return the `log_ratios` of passes that two cases of the same files have in common."""
    return [logs for of_file in zip(first_s, second_s, strict=False)
            for logs in log_ratios(*of_file)]


@dataclass(frozen=True, slots=True)
class TaskCase:
    """A case with times, its task as text, and its setting."""
    run: int
    item: CaseResult
    task: str
    setting: Mapping[str, Any]

    def value(self, key: str) -> str | None:
        return str(self.setting[key]) if key in self.setting else (
            UNSET if key.startswith(ENV) else None)


@dataclass(frozen=True, slots=True)
class TaskSetting:
    """One way to do a task: the ``value`` of its key, and ``name`` with options that differ;
    ``items`` are its cases by the number of their run."""

    value: str
    name: str
    items: Mapping[int, CaseResult]

    @property
    def case_id(self) -> str:
        return next(iter(self.items.values())).case.case_id

    def passes_s(self, passes: Sequence[int]) -> PassesOfFiles:
        """Return the medians of its passes, of so many planned in a launch of each run."""
        return tuple(passes_by_launch(self.items.get(run), n) for run, n in enumerate(passes))


@dataclass(frozen=True, slots=True)
class Task:
    """A task done in ways that differ in ``key``; ``name``: the words that labels share."""

    kind: str
    name: str
    key: str
    ways: tuple[TaskSetting, ...]


def tasks_of(runs: Sequence[Results]) -> Iterator[Task]:
    """Yield the tasks with times for at least two values of a key, all other keys being the same.

    Options are free, since each value has its own; beside an option those that some of its values
    lack, as bucket_mb is only of over=data. More or fewer ranks: where the kind allows it."""
    for across_ranks in (False, True):
        done = [*_done(runs, across_ranks=across_ranks)]
        keys = dict.fromkeys(key for one in done for key in one.setting)
        for key in keys if not across_ranks else [RANKS]:
            yield from _tasks(done, key)


def _done(runs: Sequence[Results], *, across_ranks: bool) -> Iterator[TaskCase]:
    """Yield the cases with times that have a task to compare."""
    for at, run in enumerate(runs):
        for item in run.cases:
            case, timing, choice = item.case, item.timing, item.case.workload.choice()
            if (item.status != "ok" or item.statistics is None or timing is None
                    or choice.task is None or case.kind in run.missing_kinds
                    or case.sends_nothing or (across_ranks and not choice.any_ranks)):
                continue
            task = {"kind": case.kind, "device": case.device, "mode": case.mode,
                    "arrival": case.arrival.text, "fold": timing.fold, **choice.task}
            setting = {"backend": case.backend, "cuda_graph": case.cuda_graph, **choice.setting,
                       **{f"{ENV}{name}": value for name, value in case.env}}
            (setting if across_ranks else task)[RANKS] = case.world_size
            yield TaskCase(at, item, _text(task), setting)


def _tasks(done: Iterable[TaskCase], key: str) -> Iterator[Task]:
    def others(case: TaskCase, kept: Container[str] = ()) -> str:
        return _text({name: value for name, value in case.setting.items() if name != key and (
            name in kept or not name.startswith(OPTION))})

    groups = grouped(((one.task, others(one)), one) for one in done if one.value(key) is not None)
    for alike in groups.values():
        names = grouped((one.value(key), name) for one in alike for name in one.setting).values()
        kept = set.intersection(*map(set, names)) if key.startswith(OPTION) else set[str]()
        for cases in grouped((others(one, kept), one) for one in alike).values():
            if len({one.value(key) for one in cases}) > 1:
                yield _task(cases, key)


def _task(cases: Sequence[TaskCase], key: str) -> Task:
    """Return the task of cases that differ in a key; of cases planned twice the first counts."""
    options = [name for name in dict.fromkeys(name for one in cases for name in one.setting)
               if name.startswith(OPTION) and name != key
               and len({one.value(name) for one in cases} - {None}) > 1]
    ways = []
    for alike in grouped((_text(one.setting), one) for one in cases).values():
        value = alike[0].value(key) or ""
        words = [f"{short(name)}={alike[0].value(name)}" for name in options
                 if name in alike[0].setting]
        ways.append(TaskSetting(value, " ".join([value, *words]),
                                {one.run: one.item for one in reversed(alike)}))
    shared, _ = vary(one.item.case.label.split() for one in cases)
    return Task(cases[0].item.case.kind, " ".join(shared), key, tuple(ways))


def _text(values: Mapping[str, Any]) -> str:
    return repr(sorted(values.items()))


def time_of(way: TaskSetting) -> float:
    """Return the geometric mean of the times of a way over its runs, in seconds."""
    logs = [math.log(item.statistics.median_s) for item in way.items.values()
            if item.statistics is not None]
    return math.exp(sum(logs) / len(logs))


def counted_as(count: int, unit: str) -> str:
    """Return ``1 pass``, ``9 passes``, ``2 launches`` of PASSES or LAUNCHES."""
    return plural(count, unit.removesuffix("es"))


def short(key: str) -> str:
    """Return a key without ``env.`` or ``options.``, as a sweep file has it."""
    return key.removeprefix(ENV).removeprefix(OPTION)


@dataclass(frozen=True, slots=True)
class Paired:
    """How many times as long the second of two ways takes: ``ratio`` is the geometric mean over
    ``n`` pairs of ``unit`` (PASSES, LAUNCHES), ``low`` to ``high`` its 95 % interval; ``chance``:
    how likely equal ways are so far apart, None for fewer than FEWEST pairs, and ``false_share``
    after Benjamini and Hochberg, of ``tested`` pairs. ``n_launches``: those in which both were
    measured."""

    ratio: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    false_share: float | None = None
    n: int = 0
    unit: str = PASSES
    n_launches: int = 0
    tested: int = 0

    @property
    def interval(self) -> Interval:
        return Interval(self.ratio, self.low, self.high)


OVER_PAIRS = "geometric mean over pairs of a pass, not the quotient of two medians"
"""What ratios by pairs are, here and in `compare`."""
W = TypeVar("W", bound=Hashable)


def paired(tasks: Sequence[Mapping[W, PassesOfFiles]]) -> list[dict[tuple[W, W], Paired]]:
    """Return, of each task, each two of its ways that have common passes, the second beside the
    first.

    The tasks are those of one key, as passes may depend on one another in what differs by another
    key only. All their pairs, whichever are shown, are one family, so that each has one interval
    and one verdict (`shifts_in_launches`, Benjamini and Hochberg)."""
    rows = {(at, first, second): row for at, ways in enumerate(tasks)
            for first, second in combinations(ways, 2)
            if (row := pairs_by_launch(ways[first], ways[second]))}
    shifts = shifts_in_launches([*rows.values()], [2 / len(tasks[at]) for at, _, _ in rows])
    chances = [one.chance for one in shifts if one.n >= FEWEST]
    shares = iter(benjamini_hochberg(chances))
    made: list[dict[tuple[W, W], Paired]] = [{} for _ in tasks]
    for ((at, first, second), row), shift in zip(rows.items(), shifts, strict=True):
        unit = LAUNCHES if shift.of_launches else PASSES
        share = next(shares) if shift.n >= FEWEST else None
        ratio = shift.interval.map(math.exp)
        for pair, times in (((first, second), ratio),
                            ((second, first), ratio.map(lambda one: 1 / one))):
            one = Paired(times.value, n=shift.n, unit=unit, n_launches=len(row))
            made[at][pair] = one if share is None else replace(
                one, low=times.low, high=times.high, chance=shift.chance, false_share=share,
                tested=len(chances))
    return made


def compared_tasks(
    runs: Sequence[Results], key: str | None = None,
) -> Iterator[tuple[Task, dict[tuple[int, int], Paired]]]:
    """Yield the tasks, or those of a key, each with its pairs of ways by their places in it."""
    passes = [run.plan.passes for run in runs]
    for of_key, tasks in grouped((task.key, task) for task in tasks_of(runs)).items():
        if key in (None, of_key):
            yield from zip(tasks, paired([
                {at: way.passes_s(passes) for at, way in enumerate(task.ways)}
                for task in tasks]), strict=True)
