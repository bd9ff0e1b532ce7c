"""What the diagnosis says: a sentence for each rank that is named, and one on all else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, NONE, Answer
from hpcbench.errors import command_line
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.lateness import BEFORE_THE_CALL
from hpcbench.units import format_seconds, grouped, plural

if TYPE_CHECKING:
    from hpcbench.analysis.diagnose import Estimate, Look, Untold

TELLS = 0.1
"""A comparison whose interval reaches over this share of a call cannot say that nobody is late."""
MOST_NAMED = 5
"""Cases, and reasons, that are listed."""


def answers(
    looks: Sequence[Look], untold: Sequence[Untold], paths: Sequence[str],
) -> Iterator[Answer]:
    """Yield who straggles, most of a call first; or that nobody does; then what nothing tells."""
    command = command_line("advise", *paths, "--only", "diagnose")
    named = grouped(((one.path, one.rank, one.phase), one) for one in looks if one.is_clear)
    for same in sorted(named.values(), key=lambda some: -max(one.share.value for one in some)):
        yield _of_rank(same, looks, command)
    rest = [one for one in looks if not one.is_clear]
    telling = [one for one in rest if one.share.high <= TELLS]
    if telling and not named:
        yield _of_nobody(telling, command)
    yield from _unknown([one for one in rest if one.share.high > TELLS], untold, command)
    if not looks and not untold:
        yield Answer(CANNOT_TELL, "cannot tell whether a rank straggles, because no case ran on "
                     "two ranks", (), command)


def _of_rank(same: Sequence[Look], looks: Sequence[Look], command: str) -> Answer:
    worst = max(same, key=lambda one: one.share.value)
    where = f" on {worst.host}" if worst.host else ""
    cause = (f"in phase {worst.phase}" if worst.phase not in ("", BEFORE_THE_CALL) else
             worst.phase or f"in no single phase (the longest explains {worst.explained:.0%})")
    compared = [one for one in looks if one.path == worst.path]
    sentence = (
        f"rank {worst.rank}{where} is late {cause} by {_times(worst.behind_s)}, {_share(worst)} of "
        f"a call of {worst.label}: all wait for it; if it were as rank {worst.next_rank}, a call "
        f"would take {_times(worst.what_if_s)} instead of {format_seconds(worst.call_s)}")
    more = f"; it is named in {plural(len(same), 'case')}" if len(same) > 1 else ""
    evidence = (
        *(f"{one.label}: {_times(one.behind_s)} after rank {one.next_rank}, {_share(one)} of a call"
          + (f"; its own call is the shortest in {one.shortest_wait:.0%} of the samples"
             if one.shortest_wait is not None else "") for one in same[:MOST_NAMED]),
        f"it holds among {plural(len(compared), 'comparison')} of this report; of equal ranks at "
        f"most {FALSE_ALARMS:.0%} of reports name any",
        *((f"faults were injected on purpose: {', '.join(worst.faults)}",) if worst.faults else ()),
        f"to do: {_advice(worst)}")
    return Answer(CLEAR, sentence + more, evidence, command, f"rank {worst.rank}")


def _advice(one: Look) -> str:
    place = one.host or "its host"
    swap = (f"start the run with the hosts in another order: if the lateness stays with {place}, "
            "it is the host, else what this rank has to do")
    if one.phase == BEFORE_THE_CALL:
        return f"look at what else runs on {place} between calls; {swap}"
    return f"look at its share of the work and at what else runs on {place}; {swap}"


def _of_nobody(telling: Sequence[Look], command: str) -> Answer:
    most = max(telling, key=lambda one: one.share.high)
    return Answer(
        NONE, f"no rank is named in {plural(len(telling), 'comparison')}: the 99 % intervals "
        f"exclude that one is later than the next by over {100 * most.share.high:.2g} % of a call",
        (f"the widest: {most.label}, rank {most.rank} is {_times(most.behind_s)} after rank "
         f"{most.next_rank}",
         "ranks that are late together are not told apart"), command)


def _unknown(wide: Sequence[Look], untold: Sequence[Untold], command: str) -> Iterator[Answer]:
    """Yield in one sentence what could not be compared, or only loosely."""
    reasons = Counter(one.reason for one in untold)
    texts = [f"{reason} ({plural(count, 'time')})" for reason, count in reasons.most_common()]
    if wide:
        most = max(one.share.high for one in wide)
        texts.append(f"intervals reach over {100 * TELLS:.0f} % of a call, to "
                     f"{100 * most:.3g} %: more passes would tell "
                     f"({plural(len(wide), 'comparison')})")
    if texts:
        yield Answer(
            CANNOT_TELL, f"cannot tell in {plural(len(wide) + len(untold), 'look')} at ranks "
            f"whether one straggles, because {'; '.join(texts[:MOST_NAMED])}",
            tuple(f"{one.label}: {one.reason}" for one in untold[:MOST_NAMED]), command)


def _times(one: Estimate) -> str:
    return (f"{format_seconds(one.value)} (99 % interval {format_seconds(one.low)} to "
            f"{format_seconds(one.high)})")


def _share(one: Look) -> str:
    return f"{100 * one.share.value:.3g} %"
