"""The inputs of a comparison: sides of one or several results files, their common cases, and
their other differences, as possible causes of any change."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hpcbench.answers.answer import ends_of
from hpcbench.config.axes import CHECKED, unknown_name
from hpcbench.errors import UsageError
from hpcbench.plan.case import DEFAULT_MODE, PROGRAM_KIND, Case, case_id
from hpcbench.records import dataclass
from hpcbench.reduce.records import passes_by_launch
from hpcbench.reduce.results import IMPORTED, PRINTED_FOLD, CaseResult, Results, RunInfo
from hpcbench.reduce.results_file import each_once, open_results, refuse_copies
from hpcbench.reduce.run_checks import stable_facts
from hpcbench.statistics.overlap import PassTimes
from hpcbench.texts import valid
from hpcbench.units import grouped, vary
from hpcbench.views.columns import median_cell

OPTION, ENV = "options.", "env."
UNSET = "unset"
"""Value of an environment variable that a case leaves as it is."""
PLACE = ("backend", "device", "world_size", "mode", "warmup", "batch", "cuda_graph")
"""Fields that distinguish a case from others, beside its workload and its environment."""
PROTOCOL = ("mode", "warmup", "batch")
"""Those that say how it is measured, not what."""
UNSTATED = ("warmup", "batch")
"""Those of them that programs choose as they like: they may differ beside an imported table."""
IMPLEMENTATION = "implementation"


@dataclass(frozen=True, slots=True)
class Side:
    """Results that count as one: equal jobs at different times. ``label`` names them, ``names``
    each of those in files."""

    label: str
    results: tuple[Results, ...]
    names: tuple[str, ...] = ()

    @property
    def apart(self) -> tuple[str, ...]:
        """Return the names of several results; an empty one of a single."""
        return self.names if len(self.names) > 1 else ("",)


@dataclass(frozen=True, slots=True)
class CaseOfSide:
    """A case on one side.

    ``launch_s`` are the medians of its launches in seconds, of all files; ``passes_s`` those of its
    passes (file, launch, pass), a file without times is empty. ``time_s`` is the median that `show`
    has of one file, with ``ends_s`` of its interval; None of several. ``phases_s`` are the medians
    of the phases of a step, one value a file; ``problem`` is why there are no times. ``jobs``: of
    how many they are. ``repeats``: launches of a file ran in the same processes and count as
    one. ``is_imported``: a program printed the times, without samples; each file is a launch.
    ``protocol`` is how it was measured, by the keys of the sweep file."""

    case: Case
    launch_s: tuple[float, ...]
    passes_s: tuple[tuple[PassTimes, ...], ...] = ()
    phases_s: Mapping[str, tuple[float, ...]] | None = None
    problem: str = ""
    jobs: int = 1
    repeats: bool = False
    is_imported: bool = False
    protocol: Mapping[str, str] = field(default_factory=dict)
    time_s: float | None = None
    ends_s: tuple[float, float] | None = None

    @property
    def pass_s(self) -> PassTimes:
        """Return the medians of the passes where there is one launch in all, else nothing."""
        return tuple(time_s for launches in self.passes_s for launch in launches
                     for time_s in launch) if len(self.launch_s) == 1 else ()


def read_side(text: str) -> Side:
    """Return the side of ``A1,A2`` or ``NAME=A1,A2``: files or folders, separated by commas.

    Raises FileError, and UsageError where no file is named."""
    name, equals, files = text.partition("=")
    first = text.split(",", maxsplit=1)[0]
    if not equals or not name or os.sep in name or os.path.lexists(first):
        name, files = "", text  # a path that exists has no name in front
    paths = separate(files)
    if not paths:
        raise UsageError(f'"{text}" names no results file; write FILE, or NAME=FILE,FILE')
    side = side_of(paths, valid(name))
    return side if name else replace(side, label=valid(text))


def separate(files: str) -> list[Path]:
    """Return the paths that commas separate; one that exists with its commas is one path."""
    whole = [files] if os.path.lexists(files) else files.split(",")
    return [Path(part) for part in whole if part]


def side_of(paths: Sequence[Path], label: str = "") -> Side:
    """Return the side of files or folders, named ``label``, or as they are. Raises FileError, and
    UsageError for a run that is given twice."""
    kept, results = each_once(paths), list[Results]()
    for path in kept:
        with open_results(path) as file:
            results.append(file.results)
    refuse_copies(kept, [one.run.run_id for one in results])
    names = [valid(str(path)) for path in kept] if not label else [label] if len(kept) == 1 else [
        f"{label} ({one.run.run_id})" for one in results]
    return Side(label or ",".join(map(str, paths)), tuple(results), tuple(names))


def cases_of(side: Side) -> dict[str, CaseOfSide]:
    """Return the cases of a side by their names in `items_of`, with the launches of all files."""
    return {name: replace(
        _merged([item for _, item in items]), is_imported=any(
            side.results[at].run.imported for at, _ in items),
        jobs=sum(side.results[at].jobs_of(item) for at, item in items if item.statistics) or 1,
        passes_s=tuple(passes_by_launch(of_file.get(at), results.plan.passes)
                       for at, results in enumerate(side.results)))
        for name, items in items_of(side.results).items() for of_file in [dict(reversed(items))]}


def items_of(several: Sequence[Results]) -> dict[str, list[tuple[int, CaseResult]]]:
    """Return the results of each case of several files (`keys_of`), each with its file's number, by
    `id_in_any_version` of the first."""
    keys = keys_of(several)
    of_key = grouped((key, (at, item)) for at, results in enumerate(several)
                     for item, key in zip(results.cases, keys[at], strict=True))
    return {id_in_any_version(items[0][1].case): items for items in of_key.values()}


def keys_of(several: Sequence[Results]) -> list[list[str]]:
    """Return a key of each case of each file; those with one key are one case: `measured_id`, or
    where a file measures that more than once `id_in_any_version`, which also has how often. Times
    that another program printed are a case of their own."""
    files = [[item.case for item in results.cases] for results in several]
    each = {case.case_id: case for cases in files for case in cases}  # many files have the same
    measured = {one: measured_id(case) for one, case in each.items()}
    twice = {key for cases in files for key, count in Counter(
        measured[case.case_id] for case in cases).items() if count > 1}
    return [[IMPORTED * bool(results.run.imported) + (
        id_in_any_version(case) if measured[case.case_id] in twice else measured[case.case_id])
        for case in cases] for cases, results in zip(files, several, strict=True)]


def aligned(
    first: Mapping[str, CaseOfSide], second: Mapping[str, CaseOfSide],
) -> dict[str, CaseOfSide]:
    """Return the second side's cases, under the first side's keys where both measured the same.

    The same key is the same case, else the same `measured_id`, if no second case of a side has it,
    else one label, likewise, with the timing mode and the number of checks in it or else without,
    if they differ in the protocol alone. Of imported tables only the label is certain."""
    keys = {key: key for key in second if key in first}
    for label in (measured_id, attrgetter("label"),
                  lambda case: replace(case, check=CHECKED).label, label_of):
        mine, others = (grouped((label(found.case), key) for key, found in side.items()
                                if key not in taken)
                        for side, taken in ((first, {*keys.values()}), (second, {*keys})))
        for name in mine.keys() & others.keys():
            a, b = mine[name], others[name]
            if len(a) == len(b) == 1 and (
                    first[a[0]].is_imported or second[b[0]].is_imported
                    or not other_parameters(first[a[0]].case, second[b[0]].case)):
                keys[b[0]] = a[0]
    return {keys.get(key, key): found for key, found in second.items()}


def label_of(case: Case) -> str:
    """Return the label of a case without its timing mode and its number of checks."""
    return replace(case, mode=DEFAULT_MODE, check=CHECKED).label


def other_parameters(first: Case, second: Case) -> list[str]:
    """Return the names of the parameters that differ, but for those of the protocol."""
    return _differing(parameters(first), parameters(second), PROTOCOL)


def _differing(
    first: Mapping[str, Any], second: Mapping[str, Any], may_differ: Collection[str],
) -> list[str]:
    return [name for name in {**first, **second}
            if name not in may_differ and first.get(name) != second.get(name)]


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase of a training step: its time on both sides in seconds, and its share of the change.
    """

    name: str
    first_s: float
    second_s: float
    share: float


def phase_changes(first: CaseOfSide, second: CaseOfSide) -> Iterator[PhaseChange]:
    """Yield the phases that both sides have, the largest part of the change first."""
    a, b = first.phases_s or {}, second.phases_s or {}
    times = [(name, float(np.median(a[name])), float(np.median(b[name])))
             for name in a if name in b]
    change = sum(later - earlier for _, earlier, later in times)
    for name, earlier, later in sorted(times, key=lambda one: -abs(one[2] - one[1])):
        if change:
            yield PhaseChange(name, earlier, later, (later - earlier) / change)


def differs_from_nearest(
    case: Case, others: Iterable[Case], may_differ: Collection[str] = (),
) -> tuple[SideDifference, ...]:
    """Return in which parameters a case differs from the one that differs in fewest.

    Those that ``may_differ`` do not count."""
    mine = parameters(case)
    names, own = min(((_differing(mine, own, may_differ), own) for own in map(parameters, others)),
                     key=lambda one: len(one[0]), default=([], mine))
    return tuple(SideDifference(name, (_stated(mine.get(name)), _stated(own.get(name))))
                 for name in names)


Described = Sequence[tuple[CaseOfSide, Mapping[str, Any]]]
"""Cases with their parameters, which are asked for each case of the other side."""


def _why_not_paired(case: CaseOfSide, others: Described, by: Collection[str]) -> str:
    """Return why a case is not compared with one that does the same and differs in a key alone;
    empty if there is none: another case of its own side is nearer to that one."""
    mine, may_differ = parameters(case.case), {*by, *PROTOCOL}
    for other, own in others:
        if other.launch_s and not _differing(mine, own, may_differ):
            if case.is_imported != other.is_imported:
                return "no pass has both: pairs of one run are compared"
            names = [one.key for one in protocol_differences(case, other) if one.key not in by]
            return f"measured with another {', '.join(names)}" if names else ""
    return ""


def _where_nearest(case: Case, others: Described, may_differ: Collection[str]) -> str:
    """Return what the nearest case of its kind differs in, as the end of a sentence."""
    mine = parameters(case)
    of_kind = [own for one, own in others if one.case.kind == case.kind]
    names: list[str] = []
    for allowed in ({*may_differ, *UNSTATED}, {*may_differ}):
        names = names or min((_differing(mine, own, allowed) for own in of_kind), key=len,
                             default=[])
    return f", where the nearest differs in {', '.join(names)}" if names else (
        "" if of_kind else ", which has no case of its kind")


def protocol_differences(
    first: CaseOfSide, second: CaseOfSide, *, of_one_task: bool = True,
) -> tuple[SideDifference, ...]:
    """Return what differs in how two cases were measured, as far as both sides state it.

    ``of_one_task``: also what another program's table does not state of the task."""
    a, b = first.protocol, second.protocol
    pairs = [(name, a[name], b[name]) for name in a if name in b and a[name] != b[name]]
    if of_one_task:
        mine, others = parameters(first.case), parameters(second.case)
        unstated = [name for name in other_parameters(first.case, second.case)
                    if None in (mine.get(name), others.get(name))]
        pairs += [(name, _stated(mine.get(name)), _stated(others.get(name))) for name in unstated]
    return tuple(SideDifference(name, (one, other)) for name, one, other in pairs)


def protocol_between(
    first: CaseOfSide, second: CaseOfSide, *, in_launch: bool,
) -> tuple[SideDifference, ...]:
    """Return `protocol_differences`; none of cases of one run, whose sides have one sweep."""
    if in_launch and not (first.is_imported and second.is_imported):
        return ()
    return protocol_differences(first, second, of_one_task=not in_launch)


def why_absent(case: CaseOfSide, alike: Sequence[CaseOfSide]) -> str:
    """Return in which way a case is not among those of the other side with its label."""
    of_case = {name for one in alike for name in other_parameters(case.case, one.case)}
    names = of_case or {one.key for other in alike for one in protocol_differences(case, other)}
    several = "" if of_case else "one of several with its label, "
    return f"{several}only with another {', '.join(sorted(names))}" if names else "not"


def unmatched(
    first: Mapping[str, CaseOfSide], second: Mapping[str, CaseOfSide], labels: Sequence[str], *,
    in_launch: bool, by: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Yield the label of each case that is not compared, and why; where sides differ ``by`` a key,
    with what else the nearest case differs in."""
    for mine, other, here, there in ((first, second, labels[0], labels[1]),
                                     (second, first, labels[1], labels[0])):
        alike = {} if in_launch or mine.keys() <= other.keys() else grouped(
            (label_of(one.case), one) for one in other.values())
        described = [(one, parameters(one.case)) for one in other.values()] if by else []
        for key, case in mine.items():
            if key not in other:
                absent = why_absent(case, alike.get(label_of(case.case), ()))
                unlike = _why_not_paired(case, described, by) if by else ""
                beside = _where_nearest(case.case, described, by) if (
                    by and case.launch_s and not unlike) else ""
                yield case.case.label, (unlike or f"{absent} in {there}{beside}" if case.launch_s
                                        else f"{case.problem} in {here}")
            elif not case.launch_s and other[key].problem != case.problem:
                yield case.case.label, f"{case.problem} in {here}"
            elif not case.launch_s and mine is first:
                yield case.case.label, f"{case.problem} on both sides"


def _stated(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def id_in_any_version(case: Case) -> str:
    """Return the case's id; for one that runs a file, whose content is in the id, that of its
    parameters."""
    if not case.workload.features.files:
        return case.case_id
    return case_id({"parameters": _text(sorted(parameters(case).items()))})


def measured_id(case: Case) -> str:
    """Return the id of what a case measures: of all its parameters but the number of warm-ups;
    iterations and checks are none."""
    return case_id({"measures": _text(sorted(
        one for one in parameters(case).items() if one[0] != "warmup"))})


def split_by(side: Side, key: str) -> dict[str, dict[str, CaseOfSide]]:
    """Return value of ``key`` -> the other parameters of a case, as text -> the case.

    Options that only some values have, such as those of an implementation, belong to the value.
    Implementations of a part alone, such as compute_only, are left out if two others are there;
    the fastest implementation in most tasks comes first. Cases that differ in their number of
    calls or checks alone are distinguished by it, imported ones by their block. Raises UsageError
    where no case has such a key, or all have the same value."""
    values = _split(side, key)
    if len(values) < 2:
        offered = paired_keys(side)
        raise UsageError(
            f"--by {unknown_name(key, offered)}" if offered else
            f"--by {key}: no two cases of {side.label} do the same in ways that differ in one key, "
            "so there is nothing to compare")
    return _paired_first(_fastest_first(values) if key == IMPLEMENTATION else values)


def own_key(side: Side, key: str) -> str:
    """Return the key of cases that ``key`` names: an option needs no ``options.`` before it."""
    names = {name for found in cases_of(side).values() for name in _of_work(found.case)}
    return f"{OPTION}{key}" if key not in names and f"{OPTION}{key}" in names else key


def told_key(side: Side, key: str) -> str:
    """Return the shortest text that `own_key` takes for a key."""
    name = key.removeprefix(OPTION)
    return name if own_key(side, name) == key else key


def paired_keys(side: Side) -> list[str]:
    """Return the keys by which `split_by` has times of the same work on two sides or more."""
    return [key for key in varying(side) if has_pairs(side, own_key(side, key))]


def has_pairs(side: Side, key: str) -> bool:
    """Return whether `split_by` has times of the same work on two sides or more."""
    rows = grouped((rest, found.case) for cases in _split(side, key).values()
                   for rest, found in cases.items() if found.launch_s)
    return any(do_the_same(first, second) for cases in rows.values()
               for first, second in pairwise(cases))


def do_the_same(first: Case, second: Case) -> bool:
    """Return whether two cases do the same work, so that the one of less time is the better."""
    a, b = first.workload.choice(), second.workload.choice()
    return a.task == b.task and (a.any_ranks or first.world_size == second.world_size)


def _split(side: Side, key: str) -> dict[str, dict[str, CaseOfSide]]:
    alike = [(value, rest, found) for cases in _same_tasks(side, key).values()
             for value, rest, found in _labelled(cases, key)]
    if key == IMPLEMENTATION:
        whole = [one for one in alike if one[2].case.workload.choice().task is not None]
        alike = whole if len({value for value, _, _ in whole}) > 1 else alike
    often = Counter((value, rest) for value, rest, _ in alike)
    twice = {rest for (_, rest), count in often.items() if count > 1}
    values: dict[str, dict[str, CaseOfSide]] = {}
    for value, rest, measured in alike:
        case = measured.case
        more = "" if rest not in twice else f" {case.block}" if measured.is_imported else (
            f" iterations={case.iterations} warmup={case.warmup} batch={case.batch}"
            f" {case.check.text}")
        values.setdefault(value, {})[rest + more] = measured
    return values


def _paired_first(values: dict[str, dict[str, CaseOfSide]]) -> dict[str, dict[str, CaseOfSide]]:
    """Return the values, first those that have times of a task of another value, too."""
    timed = Counter(rest for cases in values.values() for rest, found in cases.items()
                    if found.launch_s)
    return {value: values[value] for value in sorted(values, key=lambda one: not any(
        timed[rest] > 1 for rest, found in values[one].items() if found.launch_s))}


def _fastest_first(
    values: dict[str, dict[str, CaseOfSide]],
) -> dict[str, dict[str, CaseOfSide]]:
    """Return the values, ordered by the number of tasks in which each is the fastest."""
    times = grouped((rest, (median(found.launch_s), value)) for value, cases in values.items()
                    for rest, found in cases.items() if found.launch_s)
    won = Counter(min(of_task)[1] for of_task in times.values() if len(of_task) > 1)
    return {value: values[value] for value in sorted(values, key=lambda one: -won[one])}


def _labelled(
    alike: Sequence[tuple[CaseOfSide, dict[str, Any]]], key: str,
) -> Iterator[tuple[str, str, CaseOfSide]]:
    """Yield, for each case of one task: the value of ``key``, the other parameters, the case."""
    _, options = vary([name for name in sorted(values) if name.startswith(OPTION) and name != key]
                      for _, values in alike)
    for (case, values), own in zip(alike, options, strict=True):
        parts = [_text(values[key]),
                 *(f"{name.removeprefix(OPTION)}={values[name]}" for name in own)]
        yield " ".join(parts), _text(sorted(
            (name, value) for name, value in values.items() if name not in {key, *own})), case


def varying(side: Side) -> list[str]:
    values = grouped((key, _text(value)) for found in cases_of(side).values()
                     for key, value in parameters(found.case).items())
    return [key for key, seen in values.items() if len(set(seen)) > 1]


def parameters(case: Case) -> dict[str, Any]:
    """Return the parameters that distinguish a case; environment variables as ``env.NAME``."""
    return {"kind": case.kind, **{name: getattr(case, name) for name in PLACE},
            "arrival": case.arrival.text, **case.workload.choice().axes,
            **{f"{ENV}{name}": value for name, value in case.env}}


def _of_work(case: Case) -> dict[str, Any]:
    """Return the parameters of a case, those that are options of its setting as ``options.NAME``.
    """
    setting = case.workload.choice().setting
    return {option if (option := f"{OPTION}{name}") in setting else name: value
            for name, value in parameters(case).items()}


def _same_tasks(
    side: Side, key: str,
) -> dict[str, list[tuple[CaseOfSide, dict[str, Any]]]]:
    """Return the cases with a key, with their parameters, that differ in it and in options only."""
    every = [(found, _of_work(found.case)) for found in cases_of(side).values()]
    if any(found.is_imported for found, _ in every):  # programs call as often as they like
        every = [(found, {name: value for name, value in values.items()
                          if name not in {*UNSTATED} - {key}}) for found, values in every]
    if key.startswith(ENV) and any(key in values for _, values in every):
        for _, values in every:
            values.setdefault(key, UNSET)
    return grouped((_text(sorted((name, value) for name, value in values.items()
                                 if name != key and not name.startswith(OPTION))), (found, values))
                   for found, values in every if key in values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _merged(items: Sequence[CaseResult]) -> CaseOfSide:
    """Return one case of several files; files without its times add nothing."""
    if not items[0].case.workload.features.is_for_time:
        return CaseOfSide(items[0].case, (), problem="not measured for its time")
    timed = [item for item in items if item.statistics is not None]
    if not timed:
        item = items[0]
        return CaseOfSide(item.case, (), problem=f"{item.status}: {item.reason}".rstrip(": "))
    launches = tuple(time_s for item in timed for time_s in launch_times(item))
    protocol = grouped(pair for item in timed for pair in _protocol(item).items())
    shown = timed[0].statistics if len(timed) == 1 else None
    return CaseOfSide(timed[0].case, launches, phases_s=dict(_phases(timed)),
                      time_s=shown.median_s if shown else None, ends_s=ends_of(median_cell(shown)),
                      repeats=any(item.timing.repeats for item in timed if item.timing),
                      protocol={name: " or ".join(dict.fromkeys(values))
                                for name, values in protocol.items()})


def _protocol(item: CaseResult) -> dict[str, str]:
    """Return how a timed case was measured; of a printed time what the program states."""
    case, timing = item.case, item.timing
    own = {"mode": case.mode, "time": "median", "check": "yes" if case.validate else "no"}
    if case.warmup or not (timing and timing.is_imported):
        own["warmup"] = str(case.warmup)
    if timing is None or not timing.is_imported:
        least = "" if case.is_fixed else f"{case.min_iterations} to "
        return {**own, "iterations": f"{least}{case.iterations}", "batch": str(case.batch),
                "poll_interval_s": f"{case.wakeup_s:g}"}
    if timing.fold == PRINTED_FOLD:
        own["time"] = f"mean of {case.batch} calls" if case.batch > 1 else "mean"
        return own
    return {**own, "batch": str(case.batch)}


def launch_times(item: CaseResult) -> tuple[float, ...]:
    """Return the medians in seconds of the launches of a timed case that count each for itself.

    Launches that repeat in the same processes count as one. Older results have no medians of
    launches; the first version had one launch."""
    assert item.statistics is not None
    if item.timing is None or item.timing.repeats:
        return (item.statistics.median_s,)
    return item.timing.launch_medians_s or (item.statistics.median_s,)


def _phases(items: Sequence[CaseResult]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield each phase of a step with the median over ranks, a value a file."""
    steps = [item.timing.steps for item in items if item.timing and item.timing.steps]
    for name, medians in grouped((phase.name, phase.median_s) for one in steps
                                 for phase in one.phases).items():
        yield name, tuple(sorted(ranks)[len(ranks) // 2] for ranks in medians)


FIRST = (IMPORTED, "versions.", "variables.", "nodes", "ranks")
"""Beginnings of keys that are listed first: software, settings, and where it ran."""
ABSENT, UNKNOWN = "-", "unknown"


@dataclass(frozen=True, slots=True)
class SideDifference:
    """A fact of the run that is not the same on all sides: its values, one a side."""

    key: str
    values: tuple[str, ...]


def differences(
    sides: Sequence[Side], compared: Collection[str] | None = None,
) -> list[SideDifference]:
    """Return the differences between the sides, the most likely causes (FIRST) first.

    ``compared``: the `measured_id` of the cases that they are causes of; None: of all. A side of
    several files has the values of all of them, separated by commas. What an imported table does
    not state is no difference."""
    each = [_facts(side, compared) for side in sides]
    keys = dict.fromkeys(key for facts in each for key in facts)
    differing = (SideDifference(key, tuple(facts.get(key, ABSENT) for facts in each))
                 for key in keys if len({facts.get(key) for facts in each
                                         if key in facts or IMPORTED not in facts})
                 > 1)
    return sorted(differing, key=lambda one: (
        next((at for at, begin in enumerate(FIRST) if one.key.startswith(begin)), len(FIRST)),
        one.key))


_BY_RANKS = ("ranks", "nodes", "scheduler.", "process.ranks_a_core")
"""Facts in which runs on several numbers of ranks differ by design."""


def other_differences(runs: Sequence[tuple[str, Results]]) -> list[str]:
    """Return in what named runs differ beside their ranks, the most likely causes first."""
    return [] if len(runs) < 2 else [
        one.key for one in differences([Side(name, (results,)) for name, results in runs])
        if not one.key.startswith(_BY_RANKS)]


def _facts(side: Side, compared: Collection[str] | None) -> Mapping[str, str]:
    values = grouped(fact for results in side.results for fact in facts_of(
        results.run, [item.case for item in results.cases
                      if compared is None or measured_id(item.case) in compared]))
    return {key: ", ".join(dict.fromkeys(seen)) for key, seen in values.items()}


def facts_of(run: RunInfo, cases: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """Yield what is stated of the software, the hardware and the placement of a run, as texts.

    The ranks are those of the job, but of files that add up jobs those of ``cases``."""
    adds_up = run.imported or any(case.kind == PROGRAM_KIND for case in cases)
    yield "ranks", str(max((case.world_size for case in cases if adds_up), default=run.world_size))
    yield "nodes", " ".join(run.nodes)
    if run.imported:
        yield IMPORTED, " and ".join(run.imported)
    else:
        yield "versions.hpcbench", run.hpcbench_version
    for name, version in run.versions.items():
        yield f"versions.{name}", version
    files = dict.fromkeys(pair for case in cases for pair in case.workload.features.files.items())
    for path, sha256 in files:
        yield f"versions.{Path(path).name}", sha256
    for key, value in stable_facts(run.environment).items():
        if not key.startswith("versions."):
            yield key, value.strip('"')
