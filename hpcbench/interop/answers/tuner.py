"""Where an algorithm and a protocol beat NCCL's own choice: the content of a tuner's table.

A case that sets NCCL_ALGO and NCCL_PROTO is compared with the case of the same work that sets
neither, in pairs measured close together (`tasks.paired`). As there, all pairs of ways of a table
are one family, and of 100 tables of equal choices at most one has a line. Tables know no dtype,
operator or mode, so a choice must gain in all that were measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpcbench.answers.answer import Run
from hpcbench.answers.compare import SMALLEST
from hpcbench.answers.recommend import is_clearly_slower
from hpcbench.answers.tasks import FEWEST, LAUNCHES, Paired, TaskSetting, paired, time_of
from hpcbench.errors import UsageError
from hpcbench.operations.arrival import TOGETHER
from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.schema import UNKNOWN
from hpcbench.units import grouped, plural

ALGORITHM, PROTOCOL = "NCCL_ALGO", "NCCL_PROTO"
TUNERS = ("NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE", "NCCLX_TUNER_CONFIG_FILE")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
COLLECTIVES: Mapping[str, str] = MappingProxyType({
    "broadcast": "broadcast", "reduce": "reduce", "all_gather": "allgather",
    "reduce_scatter": "reducescatter", "all_reduce": "allreduce"})
"""Our name -> the table's. Another name in a table would be read as allreduce, ring or simple."""
BACKEND = "nccl"
BAD = ("wrong", "failed", "timeout")
_NOT_IN_NAMES = re.compile("[^a-z0-9]")
_HOW = (f"sweep env {ALGORITHM} and {PROTOCOL} on backend {BACKEND}, and a block that sets "
        "neither")


@dataclass(frozen=True, slots=True, order=True)
class TunedChoice:
    """An algorithm and a protocol, as tables name them."""

    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True, order=True)
class TunedCalls:
    """Which calls a line is for: the table's name of the collective, and the communicator."""

    collective: str
    nodes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class TunedRange:
    """A choice that gains at each measured size from the first to the last of ``sizes``, in bytes.

    ``others`` are the other measured sizes of these calls. ``gain`` is how many times as long
    NCCL's own choice takes, at the size where that is least."""

    calls: TunedCalls
    choice: TunedChoice
    sizes: tuple[int, ...]
    others: tuple[int, ...]
    gain: Paired


@dataclass(frozen=True, slots=True)
class TunerTable:
    """The ranges, disjoint for the same calls. ``left_out`` are pairs of a reason and a case."""

    ranges: tuple[TunedRange, ...]
    n_compared: int
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    is_rccl: bool


@dataclass(frozen=True, slots=True)
class SweptCase:
    """A case on NCCL: its calls, size in bytes, settings that tables lack, and its choice.

    ``choice`` is None for NCCL's own. ``unfit`` is why no line can be about the case,
    ``unmeasured`` why its time does not count; both are empty where nothing is wrong."""

    run: int
    item: CaseResult
    calls: TunedCalls
    size: int
    variant: str
    choice: TunedChoice | None = None
    unfit: str = ""
    unmeasured: str = ""


def tuner_table(runs: Sequence[Run]) -> TunerTable:
    """Return a table's content from runs. Raises UsageError where nothing can be compared."""
    swept = [one for at, run in enumerate(runs) for one in _tried(at, run)]
    left_out = tuple((one.unfit or one.unmeasured, one.item.case.label) for one in swept
                     if one.unfit or one.unmeasured)
    gains = _gains(swept, [run.results.plan.passes for run in runs])
    if not any(gains.values()):
        why = f"{left_out[0][0]} ({left_out[0][1]}); {_HOW}" if left_out else _HOW
        raise UsageError(f"tuner: nothing to compare: {why}")
    ranges = tuple(_ranges(swept, gains))
    return TunerTable(
        ranges, sum(len(of_choices) for of_choices in gains.values()), left_out,
        tuple(_notes(runs, swept, gains, ranges)),
        any("hip" in run.results.run.versions for run in runs))


def _tried(at: int, run: Run) -> Iterator[SweptCase]:
    """Yield the cases of collectives on NCCL; without a choice only collectives of tables."""
    columns = run.results.kind_columns.values
    inherited = _inherited(run, (ALGORITHM, PROTOCOL))
    for item in run.results.cases:
        case, of = item.case, columns.get(item.case.case_id, {})
        name, env = of.get("collective"), dict(case.env)
        set_here = [env.pop(key, None) for key in (ALGORITHM, PROTOCOL)]
        if case.backend != BACKEND or not name or (not any(set_here) and name not in COLLECTIVES):
            continue
        tried = SweptCase(
            at, item, TunedCalls(COLLECTIVES.get(name, name), _n_nodes(run, item), case.group_size),
            int(of["size_bytes"]), _variant(item, env),
            unfit=_outside(item, of, env) or (_unknown(*set_here) if any(set_here) else inherited))
        if not tried.unfit:
            choice = _choice(*set_here)
            tried = replace(tried, choice=choice, unmeasured=_unmeasured(item, choice))
        yield tried


def _outside(item: CaseResult, columns: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return why no line can be about the calls of a case, or nothing."""
    case = item.case
    if columns["collective"] not in COLLECTIVES:
        return f"tuner tables have no {columns['collective']}"
    if columns.get("split") != "even":
        return "parts of different sizes (split)"
    if case.workload.groups > 1:
        return "groups of ranks"
    if case.group_size < 2:
        return "a single rank"
    if case.arrival != TOGETHER:
        return "ranks that enter late on purpose"
    return next((f"{name} is set: a tuner chooses" for name in TUNERS if name in env), "")


def _unknown(algorithm: str | None, protocol: str | None) -> str:
    """Return why no table has names for the two settings, or nothing."""
    for name, text, other, known in ((ALGORITHM, algorithm, PROTOCOL, ALGORITHMS),
                                     (PROTOCOL, protocol, ALGORITHM, PROTOCOLS)):
        if text is None:
            return f"{other} is set and {name} is not; a line needs both"
        if _named(text, known) is None:
            return f"{name}={text}: a line has one of {', '.join(known)}"
    return ""


def _choice(algorithm: str | None, protocol: str | None) -> TunedChoice | None:
    named = _named(algorithm or "", ALGORITHMS), _named(protocol or "", PROTOCOLS)
    return TunedChoice(named[0], named[1]) if named[0] and named[1] else None


def _unmeasured(item: CaseResult, choice: TunedChoice | None) -> str:
    """Return why a case has no time, or not that of its choice by NCCL's log; or nothing."""
    words = {"wrong": "wrong result", "not_run": "not run"}
    if item.status != "ok":
        return words.get(item.status, item.status)
    if item.statistics is None or item.timing is None:
        return "no times"
    logged = [(item.library or {}).get(name, UNKNOWN) for name in ("algorithm", "protocol")]
    wanted = (choice.algorithm, choice.protocol) if choice else logged
    if any(text != UNKNOWN and _plain(text) != _plain(name)
           for text, name in zip(logged, wanted, strict=True)):
        return f"NCCL took {' '.join(logged)} instead"
    return ""


def _plain(text: str) -> str:
    return _NOT_IN_NAMES.sub("", text.lower())


def _named(text: str, known: Iterable[str]) -> str | None:
    """Return the table's name of a value such as ``NVLSTree``; None for lists and ``^Ring``."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", text):
        return None
    return next((name for name in known if _plain(name) == _plain(text)), None)


def _inherited(run: Run, names: Iterable[str]) -> str:
    """Return the first of these variables that the job, or a file of NCCL, set, as a reason."""
    environment = run.results.run.environment
    variables, of_files = (environment.get(key) or {} for key in ("variables", "nccl_conf"))
    had = {name: f"{name}={one['value']} of {one['file']}" for name, one in of_files.items()
           if isinstance(one, dict) and one.get("value")}
    had |= {name: f"{name}={value}" for name, value in variables.items() if value}
    return next((f"the job had {had[name]}: not NCCL's own choice" for name in names
                 if name in had), "")


def _variant(item: CaseResult, env: Mapping[str, str]) -> str:
    """Return the settings of equal calls that no table has: dtype, operator, mode and so on."""
    case = item.case
    axes = {name: value for name, value in case.workload.choice().axes.items()
            if name != "requested_bytes"}
    return repr((sorted(axes.items()), case.mode, case.cuda_graph, case.device,
                 sorted(env.items())))


def _n_nodes(run: Run, item: CaseResult) -> int:
    hosts = {run.host(rank) for rank in item.case.group_ranks[0]}
    return max(len(hosts), 1)


Judged = Mapping[TunedChoice, tuple[Paired, bool]]
"""Choice -> NCCL's own choice beside it, and whether it clearly gains."""
Gains = Mapping[tuple[TunedCalls, int, str], Judged]
"""(Calls, size, variant) -> their comparisons."""


def _gains(swept: Sequence[SweptCase], passes: Sequence[int]) -> Gains:
    """Return all comparisons, judged as one family; also of variants where none could be made."""
    ways = {key: _ways(same) for key, same in grouped(
        ((one.calls, one.size, one.variant), one) for one in swept if not one.unfit).items()
        if any(one.choice for one in same)}
    pairs = paired([{choice: way.passes_s(passes) for choice, way in of.items()}
                    for of in ways.values()])
    gains = {key: {choice: of_task.get((choice, None), Paired(time_of(of[None]) / time_of(way)))
                   for choice, way in of.items() if choice is not None}
             for (key, of), of_task in zip(ways.items(), pairs, strict=True)}
    return {key: {choice: (one, is_clearly_slower(one)) for choice, one in of.items()}
            for key, of in gains.items()}


def _ways(of_task: Sequence[SweptCase]) -> dict[TunedChoice | None, TaskSetting]:
    """Return NCCL's own choice and each one that went wrong in no run; none without the own."""
    bad = {one.choice for one in of_task if one.item.status in BAD}
    ways = {choice: TaskSetting("", "", {one.run: one.item for one in reversed(alike)})
            for choice, alike in grouped(
                (one.choice, one) for one in of_task if not one.unmeasured).items()
            if choice not in bad}
    return {choice: way for choice, way in ways.items()
            if None in ways and _folds(way) == _folds(ways[None])}


def _folds(way: TaskSetting) -> set[str]:
    return {item.timing.fold for item in way.items.values() if item.timing}


def _ranges(swept: Sequence[SweptCase], gains: Gains) -> Iterator[TunedRange]:
    sizes = grouped((one.calls, one.size) for one in swept if not one.unfit)
    for calls in sorted(sizes):
        measured = sorted(set(sizes[calls]))
        good = [_good(_at(gains, calls, size)) for size in measured]
        for first, last, choice in spans([
                {choice: one.ratio for choice, one in of.items()} for of in good]):
            held = tuple(measured[first:last + 1])
            yield TunedRange(
                calls, choice, held, tuple(size for size in measured if size not in held),
                min((of[choice] for of in good[first:last + 1]), key=lambda one: one.ratio))


def _at(gains: Gains, calls: TunedCalls, size: int) -> list[Judged]:
    """Return the comparisons of each variant of a size."""
    return [of for (of_calls, of_size, _), of in gains.items()
            if (of_calls, of_size) == (calls, size)]


def _good(variants: Sequence[Judged]) -> dict[TunedChoice, Paired]:
    """Return the choices that gain in every variant and are as good as the best of them.

    Which of equal choices is the fastest is chance: with the fastest alone, the choice of a table
    would change at each size."""
    everywhere = set.intersection(*(
        {choice for choice, (_, gains) in of.items() if gains} for of in variants)) if (
        variants) else set()
    least = {choice: min((of[choice][0] for of in variants), key=lambda one: one.ratio)
             for choice in everywhere}
    best = max((one.ratio for one in least.values()), default=0.0)
    return {choice: one for choice, one in least.items() if one.ratio >= best / (1 + SMALLEST)}


def spans(
    good: Sequence[Mapping[TunedChoice, float]],
) -> Iterator[tuple[int, int, TunedChoice]]:
    """Yield the fewest runs of neighbouring sizes that one choice is good for: first, last, choice.

    ``good`` has, for each measured size in order, the gain of the choices that are good there. A
    size without any is in no run. If several choices fit a run the one with most gain is taken."""
    first = 0
    while first < len(good):
        shared, last = set(good[first]), first
        while shared and last + 1 < len(good) and shared & set(good[last + 1]):
            last += 1
            shared &= set(good[last])
        if shared:
            held = good[first:last + 1]
            yield first, last, max(sorted(shared), key=lambda choice: sum(
                math.log(of[choice]) for of in held))
        first = last + 1


def _notes(
    runs: Sequence[Run], swept: Sequence[SweptCase], gains: Gains, ranges: Sequence[TunedRange],
) -> Iterator[str]:
    """Yield notes on the certainty of the table, and on settings that it lacks."""
    every = [one for of in gains.values() for one, _ in of.values()]
    if few := sum(one.n < FEWEST for one in every):
        yield (f"{few} of {plural(len(every), 'comparison')} have too few passes; use --passes 9, "
               "or --launches 5")
    if ranges and any(one.gain.unit != LAUNCHES for one in ranges):
        yield "measured in fewer than 3 launches: another job may differ by more; use --launches 5"
    partly = {(calls, size) for calls, size, _ in gains
              if any(gain for of in _at(gains, calls, size) for _, gain in of.values())
              and not _good(_at(gains, calls, size))}
    if partly:
        yield (f"{plural(len(partly), 'size')} without a line: a choice gains for some dtype, "
               "operator, place, mode or variables, not for all that were measured")
    others = dict.fromkeys(f"{name}={value}" for one in swept if one.choice
                           for name, value in one.item.case.env
                           if name not in (ALGORITHM, PROTOCOL))
    if others:
        yield f"variables of the cases that no table has: {', '.join(others)}"
    for run in runs:
        if inherited := _inherited(run, TUNERS):
            yield (f"run {run.results.run.run_id}: {inherited}, and the table replaces that tuner "
                   "at all sizes")
