"""Cases of one or several runs with what they do, and how long one takes beside another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcbench.analysis.answer import Run
from hpcbench.analysis.compare import CaseComparison, Comparison, compare
from hpcbench.analysis.confounders import differences
from hpcbench.analysis.placement import nodes_of, ranks_a_core, shares_cores
from hpcbench.analysis.sides import CaseOfSide, Side, cases_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.work import Work, work_of
from hpcbench.units import grouped

_DIFFER_BY_DESIGN = ("ranks", "nodes", "scheduler.", "process.ranks_a_core")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Worked:
    """A timed case with its work. ``times`` are those of all files, ``run`` is the first of them.
    """

    run: Run
    item: CaseResult
    times: CaseOfSide
    work: Work

    @property
    def case(self) -> Case:
        """Return the case."""
        return self.item.case

    @property
    def ranks(self) -> int:
        """Return on how many ranks it ran."""
        return self.case.world_size

    @property
    def nodes(self) -> int:
        """Return on how many nodes it ran."""
        return nodes_of(self.run.results.run, self.case)

    @property
    def device(self) -> str:
        """Return where it ran: ``cpu``, ``cuda``."""
        return (self.item.device or self.case.device).partition(":")[0]

    @property
    def shares_cores(self) -> bool:
        """Return whether its ranks are known to share cores."""
        return shares_cores(self.run.results.run, self.case, self.device)

    @property
    def ranks_a_core(self) -> float | None:
        """Return how many ranks share a core."""
        return ranks_a_core(self.run.results.run, self.case, self.device)

    @property
    def time_s(self) -> float:
        """Return the median over launches."""
        ordered = sorted(self.times.launch_s)
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    @property
    def key(self) -> tuple[object, ...]:
        """Return what cases of the same task have alike beside it: where they ran, how timed."""
        case = self.case
        return (case.kind, case.backend, self.device, case.env, case.mode, case.batch,
                case.cuda_graph, self.work.task)

    @property
    def title(self) -> str:
        """Return task, backend and environment in words."""
        case = self.case
        variables = (f"{name}={value}" for name, value in case.env)
        return " ".join((self.work.title, case.backend, self.device, *variables))


def worked(runs: Sequence[Run]) -> list[Worked]:
    """Return each timed case with its work, once; the launches of several files are put together.
    """
    times = cases_of(Side("", tuple(run.results for run in runs)))
    found: dict[str, Worked] = {}
    for run in runs:
        for item in run.results.cases:
            of = None if item.case.case_id in found else work_of(run.results, item)
            if of is not None and times[item.case.case_id].launch_s:
                found[item.case.case_id] = Worked(run, item, times[item.case.case_id], of)
    return [*found.values()]


def untimed(runs: Sequence[Run]) -> list[str]:
    """Return why cases have no times: status and number of each, skips left out."""
    kinds = grouped((item.status, item) for run in runs for item in run.results.cases
                    if item.status not in ("ok", "skipped"))
    return [f"{len(items)} {status}" for status, items in kinds.items()]


def short_ways(cases: Sequence[Worked]) -> dict[str, str]:
    """Return each way without the options that all cases of the same first word have."""
    first = grouped((case.work.way.partition(" ")[0], case.work.way.split(" ")[1:])
                    for case in cases)
    shared = {name: set.intersection(*map(set, options)) for name, options in first.items()}
    return {case.work.way: " ".join(
        (name, *(word for word in words if word not in shared[name])))
        for case in cases for name, *words in [case.work.way.split(" ")]}


def compared(pairs: Sequence[tuple[Worked, Worked]]) -> list[CaseComparison]:
    """Return the time of the second case of each pair over the first's, with its interval.

    Of the same launch their passes are compared in pairs, else their launches.
    """
    in_launch = [bool(a.run is b.run and a.times.pass_s and b.times.pass_s) for a, b in pairs]
    found: dict[str, CaseComparison] = {}
    for paired in (False, True):
        chosen = {str(at): pair for at, pair in enumerate(pairs) if in_launch[at] is paired}
        found |= {one.key: one for one in _of(chosen, in_launch=paired).cases}
    return [found[str(at)] for at in range(len(pairs))]


def scaled(case: Worked, factor: float) -> Worked:
    """Return the case with its times, in seconds, as many times as long."""
    times = case.times
    return replace(case, times=replace(
        times, launch_s=tuple(time * factor for time in times.launch_s),
        pass_s=tuple(time and time * factor for time in times.pass_s)))


def _of(pairs: dict[str, tuple[Worked, Worked]], *, in_launch: bool) -> Comparison:
    first, second = ({key: pair[at].times for key, pair in pairs.items()} for at in (0, 1))
    return compare(first, second, ("", ""), in_launch=in_launch)


def confounders(runs: Sequence[Run]) -> list[str]:
    """Return what else differs between several files, in words."""
    if len(runs) < 2:
        return []
    found = [one.key for one in differences([Side(run.path, (run.results,)) for run in runs])
             if not one.key.startswith(_DIFFER_BY_DESIGN)]
    if not found:
        return []
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [f"the files differ in {', '.join(found[:_SHOWN])}{more}: each may be the cause"]
