"""What is said of clocks and of other processes: their cost where passes show it, else that not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer, Run
from hpcbench.analysis.disturbed import (
    CLOCKS,
    EXPLAINS,
    LEAST_EFFECT,
    LEAST_SHARE,
    STEAL,
    WAITS,
    Following,
    Share,
    lower,
)
from hpcbench.analysis.pass_readings import Read
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.accounted import FEWEST_PASSES
from hpcbench.units import plural

MOST_NAMED = 5
NOISE = frozenset(("HB143", "HB144"))
"""Findings of the look at noise before the sweep."""
_TO_DO = "to do: see what else runs there (top, the batch system), or pin ranks to other cores"
_COOLING = "to do: see cooling, power limits and set clocks of that host"
_FEW = f"it takes {FEWEST_PASSES} passes or more, of which some are clearly less disturbed"


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, what was read in its passes, which cases follow it, and the command to show that."""

    run: Run
    read: Read
    following: tuple[Following, ...]
    command: str

    def of(self, condition: str) -> list[Following]:
        """Return the cases that were compared with a condition, the largest effect first."""
        return sorted((one for one in self.following if one.condition == condition),
                      key=lambda one: -one.effect)

    def host(self, rank: int) -> str:
        """Return where a rank ran, in words; nothing where that is not known."""
        name = next((one.hostname for one in self.run.results.topology.ranks
                     if one.rank == rank), "")
        return f" on {name}" if name else ""


def clock_answers(seen: Seen, lowest: Share | None) -> Iterator[Answer]:
    """Yield whether slower passes had lower clocks; or why that is not known."""
    compared, read = seen.of(CLOCKS), seen.read
    lowered = [item for item in seen.run.results.cases if item.usage and item.usage.throttled]
    why = "; ".join(dict.fromkeys(reason for item in lowered if item.usage
                                  for reason in item.usage.throttled_by))
    reasons = (
        *((f"clocks were lowered ({why}) in {plural(len(lowered), 'case')}",) if lowered else ()),
        *((f"GPUs had at most {read.celsius} degrees C",) if read.celsius is not None else ()))
    if lowest is not None:
        yield _of_clock(seen, lowest, reasons)
    causes = [one for one in compared if one.is_cause]
    if causes:
        worst = causes[0]
        who = _whose(seen, worst, read.clock_ranks)
        yield Answer(
            CLEAR, f"lower clocks slow {worst.label} down by {_effect(worst)}: that of the "
            f"{read.clock_of} of {who} falls to {worst.least:.0%} of its highest "
            f"{_where(worst)}{_more(causes)}",
            (*map(_evidence, causes[:MOST_NAMED]), *reasons, _family(seen),
             _COOLING), seen.command, who)
    yield from _other_cause(seen, compared, "lower clocks", reasons)
    if lowest is not None or any(one.is_clear for one in compared):
        return
    if "clocks" in read.missing:
        told = read.missing["clocks"]
        yield Answer(CANNOT_TELL, "cannot tell whether lower clocks slowed passes down, because no "
                     f"clocks were read{f': {told}' if told else ''}", reasons, seen.command)
    elif lowered or _may_cost(compared, lost := _lost(seen, "clocks"), LEAST_EFFECT):
        yield Answer(CANNOT_TELL, "cannot tell what lower clocks cost: no case's passes follow "
                     f"them; {_FEW}", reasons, seen.command)
    else:
        yield Answer(NONE, "no pass is slowed down by lower clocks: within a case they are at most "
                     f"{100 * lost:.2g} % below the highest, and no case's times "
                     f"follow them ({plural(len(compared), 'comparison')})", (), seen.command)


def noise_answers(
    seen: Seen, waiting: Share | None, others: Sequence[Share], steal: Sequence[Share],
) -> Iterator[Answer]:
    """Yield who lost cores to others, and what that cost."""
    causes = [one for name in (WAITS, STEAL) for one in seen.of(name) if one.is_cause]
    before = tuple(f"{one.code}: {one.message}" for one in seen.run.results.findings
                   if one.code in NOISE)
    shares = [*_shares(seen, others, "other processes used"),
              *_shares(seen, steal, "a hypervisor took")]
    evidence = (*shares, *before)
    for one in causes[:1]:
        yield Answer(CLEAR, f"{_taken(seen, one)} {_where(one)}, which slows {one.label} down by "
                     f"{_effect(one)}{_more(causes)}",
                     (*map(_evidence, causes[:MOST_NAMED]), *evidence, _family(seen), _TO_DO),
                     seen.command, one.label)
    if waiting is not None:
        yield _of_rank(seen, waiting, evidence)
    both = [one for name in (WAITS, STEAL) for one in seen.of(name)]
    yield from _other_cause(seen, both, "a lack of cores", evidence)
    if causes or waiting is not None or any(one.is_clear for one in both):
        return
    if "waits" in seen.read.missing and "cores" in seen.read.missing:
        told = seen.read.missing["waits"]
        yield Answer(CANNOT_TELL, "cannot tell whether other processes disturbed the run, because "
                     f"no waits for cores were read{f': {told}' if told else ''}", before,
                     seen.command)
    elif shares:
        yield Answer(CANNOT_TELL, f"cannot tell what it cost that {'; '.join(shares)}: no case's "
                     f"passes follow it; {_FEW}", (*before, _TO_DO), seen.command)
    elif _may_cost(both, lost := _lost(seen, "waits"), MOST_UNSEEN):
        yield Answer(CANNOT_TELL, "cannot tell what waits for cores cost: a rank waits up to "
                     f"{100 * lost:.2g} % of a pass, and no case's passes follow it; {_FEW}",
                     (*before, _TO_DO), seen.command)
    else:
        yield Answer(NONE, "no rank is disturbed surely more than the others, and no case's times "
                     f"follow waits for cores ({plural(len(both), 'comparison')}): a rank waits "
                     f"for a core at most {100 * lost:.2g} % of a pass", before, seen.command)


def _may_cost(compared: Sequence[Following], lost: float, least: float) -> bool:
    """Return whether what was lost may have cost too much for a negative answer.

    Without comparisons that is from ``least`` on; else where intervals leave it open.
    """
    if not compared:
        return lost >= least
    return lost > MOST_UNSEEN and max(one.high for one in compared) > MOST_UNSEEN


def _of_clock(seen: Seen, lowest: Share, evidence: tuple[str, ...]) -> Answer:
    rank = seen.read.clock_ranks[lowest.row]
    return _always(seen, rank, lowest, (
        f"the {seen.read.clock_of} of rank {rank}{seen.host(rank)} has a clock that is "
        f"{_percent(lowest)} below the next lowest"), (*evidence, _COOLING))


def _of_rank(seen: Seen, waiting: Share, evidence: tuple[str, ...]) -> Answer:
    rank = seen.read.wait_ranks[waiting.row]
    return _always(seen, rank, waiting, (
        f"rank {rank}{seen.host(rank)} waits for a core {_percent(waiting)} of the time, "
        f"surely more than any other by {LEAST_SHARE:.0%} or more"), (*evidence, _TO_DO))


def _always(
    seen: Seen, rank: int, lost: Share, what: str, evidence: tuple[str, ...],
) -> Answer:
    """Return what is said of a rank that loses a share of its speed all the time.

    The last piece of evidence is what to do.
    """
    *before, to_do = evidence
    return Answer(
        CLEAR, f"{what}: its work takes up to {100 * lost.value / (1 - lost.value):.2g} % longer, "
        "and the others wait for it",
        (*before, f"of equal ranks at most {FALSE_ALARMS:.0%} of runs name any", to_do),
        seen.command, f"rank {rank}")


def _other_cause(
    seen: Seen, compared: Sequence[Following], what: str, evidence: tuple[str, ...],
) -> Iterator[Answer]:
    """Yield that times follow a condition that is too small to be the cause."""
    beside = [one for one in compared if one.is_clear and not one.is_cause]
    if beside and not any(one.is_cause for one in compared):
        one = beside[0]
        yield Answer(
            CANNOT_TELL, f"cannot tell what slows some passes of {one.label} down by "
            f"{_effect(one)}: {what} came with it, but accounted for "
            f"{one.share:.0%} of it, less than {EXPLAINS:.0%}",
            (*map(_evidence, beside[:MOST_NAMED]), *evidence), seen.command, one.label)


def _whose(seen: Seen, one: Following, ranks: Sequence[int]) -> str:
    """Return the rank that is disturbed; or that several are."""
    if one.row is None:
        return "several ranks in turn"
    return f"rank {ranks[one.row]}{seen.host(ranks[one.row])}"


def _taken(seen: Seen, one: Following) -> str:
    if one.condition == WAITS:
        who = _whose(seen, one, seen.read.wait_ranks)
        return (f"the rank that waits most for a core does so for {one.least:.0%} to "
                f"{one.greatest:.0%} of a pass ({who}), most")
    where = "" if one.row is None else seen.host(seen.read.nodes[one.row])
    return (f"a hypervisor takes {one.least:.0%} to {one.greatest:.0%} of the cores{where}, most")


def _where(one: Following) -> str:
    return f"in {one.disturbed} of {plural(one.passes, 'pass')} ({plural(one.samples, 'sample')})"


def _more(causes: Sequence[Following]) -> str:
    return f"; so it is in {plural(len(causes), 'case')}" if len(causes) > 1 else ""


def _effect(one: Following) -> str:
    return (f"{100 * one.effect:.3g} % (99 % interval {100 * one.low:.3g} to "
            f"{100 * one.high:.3g} %)")


def _evidence(one: Following) -> str:
    return (f"{one.label}: {_effect(one)}; {one.condition} {one.least:.0%} to "
            f"{one.greatest:.0%}, {one.disturbed} of {plural(one.passes, 'pass')} disturbed; they "
            f"can account for {one.share:.0%} of the rise, and {one.fit:.0%} of the variance of "
            "times follows them")


def _family(seen: Seen) -> str:
    return (f"it holds among {plural(len(seen.following), 'comparison')}; of runs whose times do "
            f"not follow anything at most {FALSE_ALARMS:.0%} name any")


def _shares(seen: Seen, shares: Sequence[Share], what: str) -> Iterator[str]:
    for one in shares:
        yield f"{what} {_percent(one)} of the cores{seen.host(seen.read.nodes[one.row])}"


def _percent(one: Share) -> str:
    return (f"{100 * one.value:.3g} % (99 % interval {100 * one.low:.3g} to "
            f"{100 * one.high:.3g} %)")


def _lost(seen: Seen, name: str) -> float:
    """Return the most that any pass lost of its clock, or waited."""
    values = [getattr(one, name) for one in seen.read.cases]
    lost = [float(np.nanmax(lower(one) if name == "clocks" else one)) for one in values
            if np.isfinite(one).any()]
    return max(lost, default=0.0)
