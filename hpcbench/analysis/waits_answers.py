"""What is said of stalls, of an exchange that varies, and of what makes a rank slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer
from hpcbench.analysis.causes import COMPUTE, EXPLAINS, LINK, MOST_STAMPS, Cause
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.standing_out import MIN_PASSES
from hpcbench.units import format_seconds, plural

if TYPE_CHECKING:
    from hpcbench.analysis.waits import Stalled

LEAST_STALL = 0.05
"""Less of a call is not worth a finding."""
NO_INTERVAL = "too few steps for an interval"
LEAST_VARIED = 0.03
"""Nor is an exchange that deviates by less of a call."""
MOST_NAMED = 5
_TO_DO = {
    COMPUTE: "to do: run products alone on that host (kind hardware); swap it with another host",
    LINK: "to do: measure its links (kind hardware, pairs); swap cable, port or host"}
_SHARE_TO_DO = "to do: give those ranks less of the work, such as fewer layers of a stage"


def cause_answers(found: Sequence[Cause], command: str) -> Iterator[Answer]:
    """Yield who is slow by itself and why, most first; or that nobody is, or why nothing tells."""
    named = sorted((one for one in found if one.is_clear), key=lambda one: -one.share)
    for one in named[:MOST_NAMED]:
        if one.cause == COMPUTE:
            peers = f", beside ranks of the same {one.group}" if one.group else ""
            said, who = (f"rank {one.who} computes slowly{peers}: without communication it takes"
                         ), f"rank {one.who}"
        elif one.cause == LINK:
            said, who = (f"a link of rank {one.who} is slow, not its work: once all are ready, the "
                         "exchange takes it"), f"rank {one.who}"
        else:
            who = f"{one.group} {one.who}"
            said = (f"{who} has more to do than the others, which is uneven partitioning and no "
                    f"slow rank: on each of its {plural(one.ranks, 'rank')} it takes")
        yield Answer(
            CLEAR, f"{said} {format_seconds(one.excess_s)} (99 % interval "
            f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}) longer than the next, "
            f"{100 * one.share:.3g} % ({one.label})",
            (f"it explains {one.explains:.0%} of what is behind; it holds among "
             f"{plural(len(found), 'comparison')}; of equal ranks at most {FALSE_ALARMS:.0%} of "
             "reports name any", _TO_DO.get(one.cause, _SHARE_TO_DO)), command, who)
    if not found:
        yield Answer(CANNOT_TELL, "cannot tell slow compute from a slow link or uneven work, "
                     f"because no case has {MIN_PASSES} passes of steps without communication, or "
                     "of an exchange after the work, on several ranks (and at most "
                     f"{MOST_STAMPS} stamps of ranks)", (), command)
    elif not named:
        yield from _no_cause(found, command)


def _no_cause(found: Sequence[Cause], command: str) -> Iterator[Answer]:
    """Yield that nobody is slow by itself, as far as intervals exclude it; and how far they reach.
    """
    widest = sorted(found, key=lambda one: -one.high_share)
    seen = [one for one in widest if one.high_share <= MOST_UNSEEN]
    if seen:
        yield Answer(NONE, f"no rank, link or share of the work is slow by itself in "
                     f"{plural(len(seen), 'comparison')}: 99 % intervals exclude over "
                     f"{100 * seen[0].high_share:.2g} %", (_widest(seen[0]),), command)
    if blind := widest[:len(widest) - len(seen)]:
        yield Answer(CANNOT_TELL, "cannot tell whether a rank, a link or a share of the work is "
                     f"slow by itself in {plural(len(blind), 'comparison')}: 99 % intervals reach "
                     f"to {100 * blind[0].high_share:.3g} %; use more passes",
                     (_widest(blind[0]),), command)


def _widest(one: Cause) -> str:
    return (f"the widest: {one.cause}, {format_seconds(one.excess_s)} (99 % interval "
            f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}) in {one.label}")


def stalled_answers(found: Sequence[Stalled], command: str) -> Iterator[Answer]:
    """Yield how much ranks wait, how the exchange varies, and what of it nothing tells."""
    known = [one for one in found if one.share is not None]
    clear = sorted((one for one in known if one.is_clear), key=lambda one: -(one.share or 0))
    if clear:
        worst = clear[0]
        more = f"; {LEAST_STALL:.0%} or more in {plural(len(clear), 'case')}" if (
            len(clear) > 1) else ""
        yield Answer(
            CLEAR, f"ranks wait {_share(worst)} of a call of {worst.label} for whichever is last: "
            f"{_cause(worst)}{more}",
            (*(f"{one.label}: {_share(one)}; {_cause(one)}" for one in clear[:MOST_NAMED]),
             "to do: give ranks equal work, cores of their own and equal hosts"), command,
            worst.label)
    elif telling := [one for one in known if one.high is not None]:
        most = max(telling, key=lambda one: one.high or 0.0)
        reach = most.high or 0.0
        bound = (f"at most {100 * reach:.2g} % of a call for whichever is last in "
                 f"{plural(len(telling), 'case')}: most in {most.label}, {_share(most)}")
        yield (Answer(NONE, f"ranks wait {bound}", (), command) if reach <= MOST_UNSEEN else
               Answer(CANNOT_TELL, "cannot tell how much ranks wait, because the interval reaches "
                      f"over {MOST_UNSEEN:.0%}: {bound}; use more steps", (), command))
    yield from _varying(found, command)
    if not found:
        yield Answer(CANNOT_TELL, "cannot tell how much ranks wait for one another, because no "
                     "case on several ranks has stamps that separate waiting from work", (),
                     command)
    reasons = Counter(one.missing or NO_INTERVAL for one in found
                      if one.missing or one.share is not None and one.high is None)
    if reasons:
        texts = [f"{why} ({plural(count, 'case')})" for why, count in reasons.most_common()]
        yield Answer(CANNOT_TELL, "cannot tell all of how ranks wait and exchange in "
                     f"{plural(reasons.total(), 'case')}, because {'; '.join(texts[:MOST_NAMED])}",
                     (), command)


def _cause(one: Stalled) -> str:
    if one.late_rank is None:
        return "no one rank is named, so the last one changes, or several are late"
    if one.late_share >= EXPLAINS:
        return f"rank {one.late_rank} is the cause of {one.late_share:.0%} of it"
    return (f"rank {one.late_rank} explains {one.late_share:.0%} of it, less than "
            f"{EXPLAINS:.0%}, so others are late, too")


def _share(one: Stalled) -> str:
    assert one.share is not None
    ends = "" if one.low is None or one.high is None else (
        f" (95 % interval {100 * one.low:.2g} to {100 * one.high:.2g} %)")
    return f"{100 * one.share:.2g} %{ends}"


def _varying(found: Sequence[Stalled], command: str) -> Iterator[Answer]:
    """Yield the cases whose exchange varies much more than what is computed before it."""
    pairs = sorted(((one.variation, one) for one in found
                    if one.variation is not None and one.variation.is_high
                    and one.variation.share >= LEAST_VARIED),
                   key=lambda pair: -pair[0].share)
    if pairs:
        how, worst = pairs[0]
        more = f"; so it does in {plural(len(pairs), 'case')}" if len(pairs) > 1 else ""
        yield Answer(
            CLEAR, f"the exchange of {worst.label} varies by {how.cv:.0%} (coefficient of "
            f"variation) from call to call, computing by {how.own_cv:.0%}: it deviates by "
            f"{100 * how.share:.2g} % of a call (p = {how.chance:.2g}){more}",
            ("it counts from the moment at which the last rank is ready, so no slow rank is in it",
             "to do: look at what else uses the network and the cores that exchange"), command,
            worst.label)
    elif shares := sorted(one.variation.share for one in found if one.variation is not None):
        most, n = 100 * shares[-1], plural(len(shares), "case")
        yield (Answer(NONE, f"gradient exchange: no more jitter than computing in {n}; it deviates "
                      f"by at most {most:.2g} % of a call", (), command)
               if shares[-1] <= MOST_UNSEEN else
               Answer(CANNOT_TELL, "cannot tell whether the exchange or computing varies in "
                      f"{n}: both do, the exchange by up to {most:.3g} % of a call", (), command))
