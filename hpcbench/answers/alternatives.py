"""Tasks that a run did in several ways: cases that differ in one key, and in its options.

Two ways to do the same, compared in pairs that were measured close together.

A pair is the medians of the same pass: what slows the machine for a while slows both, and cancels.
Of three launches or more each launch is one number, the mean over its passes, because launches
differ by more than passes do. Of fewer launches passes are the numbers, and what they say holds in
these launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbench.answers.answer import Run
from hpcbench.answers.compare_inputs import ENV, OPTION, UNSET
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.order import t_tail
from hpcbench.statistics.overlap import mean_interval
from hpcbench.units import grouped

RANKS = "world_size"


@dataclass(frozen=True, slots=True)
class Done:
    """A case with times: what it does, as text, and how it is set."""

    run: int
    item: CaseResult
    task: str
    setting: Mapping[str, Any]

    def value(self, key: str) -> str | None:
        """Return what a key is set to; None of one that it does not have."""
        return str(self.setting[key]) if key in self.setting else (
            UNSET if key.startswith(ENV) else None)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do a task: the ``value`` of its key, and ``name`` with options that differ.

    ``items`` are its cases by the number of the run that they are of.
    """

    value: str
    name: str
    items: Mapping[int, CaseResult]

    @property
    def case_id(self) -> str:
        """Return the id of its case in the first run that has one."""
        return next(iter(self.items.values())).case.case_id


@dataclass(frozen=True, slots=True)
class Task:
    """What several ways do, which differ in ``key``: ``name`` are the words that labels share."""

    kind: str
    name: str
    key: str
    ways: tuple[Way, ...]


def short(key: str) -> str:
    """Return a key as a sweep file has it in its place: without ``env.`` or ``options.``."""
    return key.removeprefix(ENV).removeprefix(OPTION)


def tasks_of(runs: Sequence[Run]) -> Iterator[Task]:
    """Yield the tasks that were done, with times, with at least two values of a key.

    All other keys are the same. Options are free, since each value has its own, unless the key is
    an option. More or fewer ranks do the same task only where its kind says so.
    """
    for across_ranks in (False, True):
        found = [*_done(runs, across_ranks=across_ranks)]
        keys = dict.fromkeys(key for one in found for key in one.setting)
        for key in keys if not across_ranks else [RANKS]:
            yield from _tasks(found, key)


def _done(runs: Sequence[Run], *, across_ranks: bool) -> Iterator[Done]:
    """Yield the cases with times; cases of no choice are compared with no other."""
    for at, run in enumerate(runs):
        for item in run.results.cases:
            case, timing, choice = item.case, item.timing, item.case.workload.choice()
            if (item.status != "ok" or item.statistics is None or timing is None or choice is None
                    or case.kind in run.results.missing_kinds
                    or (across_ranks and not choice.any_ranks)):
                continue
            task = {"kind": case.kind, "device": case.device, "mode": case.mode,
                    "fold": timing.fold, **choice.task}
            setting = {"backend": case.backend, "cuda_graph": case.cuda_graph, **choice.setting,
                       **{f"{ENV}{name}": value for name, value in case.env}}
            (setting if across_ranks else task)[RANKS] = case.world_size
            yield Done(at, item, _text(task), setting)


def _tasks(found: Iterable[Done], key: str) -> Iterator[Task]:
    def others(one: Done) -> str:
        return _text({name: value for name, value in one.setting.items() if name != key and (
            key.startswith(OPTION) or not name.startswith(OPTION))})

    groups = grouped(((one.task, others(one)), one) for one in found if one.value(key) is not None)
    for same in groups.values():
        if len({one.value(key) for one in same}) > 1:
            yield _task(same, key)


def _task(same: Sequence[Done], key: str) -> Task:
    """Return the task of cases that differ in a key; of cases planned twice the first counts."""
    options = [name for name in dict.fromkeys(name for one in same for name in one.setting)
               if name.startswith(OPTION) and name != key
               and len({one.value(name) for one in same} - {None}) > 1]
    ways = []
    for alike in grouped((_text(one.setting), one) for one in same).values():
        value = alike[0].value(key) or ""
        words = [f"{short(name)}={alike[0].value(name)}" for name in options
                 if name in alike[0].setting]
        ways.append(Way(value, " ".join([value, *words]),
                        {one.run: one.item for one in reversed(alike)}))
    return Task(same[0].item.case.kind, _shared_words(one.item.case for one in same), key,
                tuple(ways))


def _shared_words(cases: Iterable[Case]) -> str:
    """Return the words that are in the labels of all cases, in order."""
    first, *others = (case.label.split() for case in cases)
    return " ".join(word for word in first if all(word in words for words in others))


def _text(values: Mapping[str, Any]) -> str:
    return repr(sorted(values.items()))


FEWEST = 3
"""Fewer pairs tell nothing."""
PASSES, LAUNCHES = "passes", "launches"


@dataclass(frozen=True, slots=True)
class Paired:
    """How many times as long the second of two ways takes.

    Attributes:
        ratio: geometric mean over pairs; ``low`` to ``high`` is its 95 % interval.
        chance: how likely equal ways are so far apart; None of fewer than FEWEST pairs.
        n, unit: how many pairs there are, of PASSES or LAUNCHES.
        n_launches: in how many launches both were measured.
    """

    ratio: float
    low: float | None
    high: float | None
    chance: float | None
    n: int
    unit: str
    n_launches: int


def paired(first: Way, second: Way, passes: Sequence[int]) -> Paired:
    """Return the second way beside the first; ``passes`` are those of a launch of each run."""
    launches = [logs for run, item in first.items.items() if run in second.items
                for logs in _launches(item, second.items[run], passes[run])]
    unit = LAUNCHES if len(launches) >= FEWEST else PASSES
    numbers = ([float(np.mean(logs)) for logs in launches] if unit == LAUNCHES
               else [log for logs in launches for log in logs])
    if not numbers:
        return Paired(second_over_first(first, second), None, None, None, 0, unit, 0)
    logs = np.array(numbers)
    mean = float(logs.mean())
    if len(logs) < FEWEST:
        return Paired(math.exp(mean), None, None, None, len(logs), unit, len(launches))
    interval = mean_interval(logs)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    chance = (2 * t_tail(abs(mean) / error, len(logs) - 1) if error > 0
              else float(mean == 0))
    return Paired(math.exp(mean), math.exp(interval.low), math.exp(interval.high), chance,
                  len(logs), unit, len(launches))


def hides(found: Paired, share: float) -> bool:
    """Return whether the interval leaves open that one way takes over ``share`` more."""
    return found.low is not None and found.high is not None and (
        found.high > 1 + share or found.low < 1 / (1 + share))


def second_over_first(first: Way, second: Way) -> float:
    """Return the ratio of the times of two ways, of all their samples."""
    return time_of(second) / time_of(first)


def time_of(way: Way) -> float:
    """Return the geometric mean of the times of a way over its runs, in seconds."""
    logs = [math.log(item.statistics.median_s) for item in way.items.values()
            if item.statistics is not None]
    return math.exp(sum(logs) / len(logs))


def _launches(first: CaseResult, second: CaseResult, passes: int) -> Iterator[list[float]]:
    """Yield, for each launch that has any pass of both, the logarithms of their ratios."""
    assert first.timing is not None and second.timing is not None
    both = [*zip(first.timing.pass_medians_s, second.timing.pass_medians_s, strict=False)]
    if first.timing.repeats or second.timing.repeats:  # of one process: they are one launch
        passes = len(both)
    for start in range(0, len(both), max(passes, 1)):
        logs = [math.log(b / a) for a, b in both[start:start + passes] if a and b]
        if logs:
            yield logs
