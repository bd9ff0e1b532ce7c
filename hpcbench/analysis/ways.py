"""Tasks that a run did in several ways: what each way is set to, and which cases are of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.analysis.answer import Run
from hpcbench.grouping import grouped
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult

RANKS, ENV, OPTION = "world_size", "env.", "options."
UNSET = "unset"
"""Value of an environment variable that a way leaves as it is."""
_PLAIN = ("backend", "strategy", "implementation", "order")
"""Settings whose values say what they are without the name."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do a task. ``setting`` has the keys in which ways of the task differ.

    ``items`` are its cases with times by the number of the run that they are of.
    """

    setting: Mapping[str, str]
    items: Mapping[int, CaseResult]

    @property
    def name(self) -> str:
        """Return the values of the setting in a few words."""
        return " ".join(value if key in _PLAIN else f"{short(key)}={value}"
                        for key, value in self.setting.items())


@dataclass(frozen=True, slots=True)
class Task:
    """What several ways do: ``name`` are the words that their labels share."""

    kind: str
    name: str
    ways: tuple[Way, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys in which its ways differ."""
        return tuple(dict.fromkeys(key for way in self.ways for key in way.setting))


def short(key: str) -> str:
    """Return a key as a sweep file has it in its place: without ``env.`` or ``options.``."""
    return key.removeprefix(ENV).removeprefix(OPTION)


def tasks_of(runs: Sequence[Run], *, across_ranks: bool = False) -> Iterator[Task]:
    """Yield the tasks that were done, with times, in at least two ways.

    ``across_ranks``: ways may differ in the number of ranks, if these can share one task.
    """
    timed = ((at, item) for at, run in enumerate(runs) for item in run.results.cases
             if item.status == "ok" and item.statistics is not None and item.timing is not None
             and item.case.kind not in run.results.missing_kinds)
    done = ((at, item, placed) for at, item in timed
            if (placed := _placed(item, across_ranks=across_ranks)) is not None)
    for same in grouped((task, (at, item, setting)) for at, item, (task, setting) in done).values():
        of_setting = grouped((_key(setting), (at, item, setting)) for at, item, setting in same)
        if len(of_setting) > 1:
            yield _task([*of_setting.values()])


def _placed(item: CaseResult, *, across_ranks: bool) -> tuple[str, dict[str, Any]] | None:
    """Return what a case does, as text, and how; None of one that is compared with no other."""
    case, timing = item.case, item.timing
    choice = case.workload.choice()
    if choice is None or timing is None or (across_ranks and not choice.any_ranks):
        return None
    setting = {"backend": case.backend, "cuda_graph": case.cuda_graph, **choice.setting,
               **{f"{ENV}{name}": value for name, value in case.env}}
    task = {"kind": case.kind, "device": case.device, "mode": case.mode, "fold": timing.fold,
            **choice.task}
    (setting if across_ranks else task)[RANKS] = case.world_size
    return _key(task), setting


def _task(ways: Sequence[Sequence[tuple[int, CaseResult, dict[str, Any]]]]) -> Task:
    settings = [same[0][2] for same in ways]
    keys = [key for key in dict.fromkeys(key for one in settings for key in one)
            if len({_key(one.get(key, UNSET)) for one in settings
                    if key in one or key.startswith(ENV)}) > 1]
    found = []
    for same, setting in zip(ways, settings, strict=True):
        items = {at: item for at, item, _ in reversed(same)}  # the first, if planned twice
        found.append(Way({key: str(setting.get(key, UNSET)) for key in keys
                          if key in setting or key.startswith(ENV)}, items))
    case = ways[0][0][1].case
    return Task(case.kind, _shared_words([same[0][1].case for same in ways]), tuple(found))


def _shared_words(cases: Iterable[Case]) -> str:
    """Return the words that are in the labels of all cases, in order."""
    first, *others = (case.label.split() for case in cases)
    return " ".join(word for word in first if all(word in words for words in others))


def _key(value: Any) -> str:
    return repr(sorted(value.items())) if isinstance(value, Mapping) else repr(value)
