"""Tasks that a run did in several ways: cases that differ in one key, and in its options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.analysis.answer import Run
from hpcbench.analysis.sides import ENV, OPTION, UNSET
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
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
