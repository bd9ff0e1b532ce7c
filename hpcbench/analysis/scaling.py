"""How work scales over ranks, and collectives do: series, laws, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, Answer, Asked, Run
from hpcbench.analysis.scaling_series import (
    EXCELLENT,
    GOOD,
    IS_EXCELLENT,
    MOVED,
    NEITHER,
    STRONG,
    WEAK,
    Band,
    Member,
    Series,
    series_of,
)
from hpcbench.analysis.worked import confounders, untimed, worked
from hpcbench.errors import command_line
from hpcbench.statistics.scaling_laws import Law
from hpcbench.units import format_seconds, grouped, plural

POOR_FIT = 0.1
"""A law whose worst residual is more than this does not describe what was measured."""
_MEANINGS = {WEAK: "weak scaling, each rank has {amount:g} {unit}",
             STRONG: "strong scaling, all ranks together have {amount:g} {unit}"}


@dataclass(frozen=True, slots=True)
class Scaling:
    """How cases scale over ranks, and what that says."""

    answers: tuple[Answer, ...]
    series: tuple[Series, ...]


def scaling(runs: Sequence[Run], asked: Asked) -> Scaling:
    """Return how the cases of one or several runs scale over their ranks."""
    found = series_of(worked(runs))
    command = command_line("advise", *(run.path for run in runs), "--only", "scaling")
    beside = (*(f"without times: {text}" for text in untimed(runs)), *confounders(runs))
    answers = [*(answer for one in found if one.kind != MOVED for answer in _told(one)),
               *_without_laws([one for one in found if one.kind != MOVED]),
               *_of_collectives([one for one in found if one.kind == MOVED])]
    if not found:
        answers = [Answer(
            CANNOT_TELL, "cannot tell how anything scales, because no two timed cases do the same "
            "on different numbers of ranks (of collectives on 2 or more): give world_size a list "
            "such as [1, 2, \"all\"], or several files")]
    return Scaling(tuple(Answer(one.certainty, one.sentence, (*one.evidence, *beside), command,
                                one.subject) for one in answers), tuple(found))


def _without_laws(found: Sequence[Series]) -> Iterator[Answer]:
    """Yield one sentence on all series that have too few numbers of ranks for a law."""
    without = [one for one in found if one.no_laws]
    if without:
        reasons = dict.fromkeys(reason for one in without for reason in one.no_laws)
        yield Answer(
            CANNOT_TELL, f"cannot tell by a law how {len(without)} of {len(found)} series scale, "
            f"because {'; '.join(reasons)}", tuple(
                f"{subject_of(one)}: {kind_text(one)}" for one in without))


def subject_of(series: Series) -> str:
    """Return what a series is about, in words."""
    return ", ".join(filter(None, (series.title, series.size, series.way)))


def kind_text(series: Series) -> str:
    """Return which scaling it is, and what is constant."""
    first = series.members[0]
    if series.kind in _MEANINGS:
        amount = first.amount / (first.ranks if series.kind == WEAK else 1)
        return _MEANINGS[series.kind].format(amount=amount, unit=series.unit)
    return "neither weak nor strong scaling"


def _told(series: Series) -> Iterator[Answer]:
    """Yield what the efficiency is, then what the laws say."""
    subject = subject_of(series)
    head = f"{subject}: {kind_text(series)}"
    if series.kind == NEITHER:
        amounts = ", ".join(f"{one.amount:g} {series.unit} on {plural(one.ranks, 'rank')}"
                            for one in series.members)
        yield Answer(CANNOT_TELL, f"{head}; cannot tell an efficiency, because neither the work of "
                     f"a rank nor that of all ranks stays the same ({amounts})", (), "", subject)
        return
    yield _of_efficiency(series, head, subject)
    if crowded := [one for one in series.members if one.shares_cores]:
        yield Answer(CANNOT_TELL, f"{head}; cannot tell an efficiency on "
                     f"{_ranks(crowded)}, because {_crowding(crowded[-1])}", (), "", subject)
    for law in series.laws:
        yield _of_law(law, subject)


def _of_efficiency(series: Series, head: str, subject: str) -> Answer:
    """Return the efficiency on most ranks; evidence has all others."""
    base, known = series.members[0], [one for one in series.members if one.efficiency]
    evidence = tuple(_evidence(series, one) for one in series.members)
    if not known:
        return Answer(CANNOT_TELL, f"{head}; cannot tell an efficiency, because "
                      f"{_crowding(series.members[-1])}", evidence, "", subject)
    most = known[-1]
    assert most.efficiency is not None and most.speed_up is not None
    of = ", ".join(filter(None, (series.base, plural(base.ranks, "rank"))))
    words = (f"{head}; on {plural(most.ranks, 'rank')} the efficiency is "
             f"{band_text(most.efficiency, percent=True)}, the speed-up "
             f"{band_text(most.speed_up)}, both beside {of}")
    where = " in this launch" if most.in_launch else ""
    if most.verdict is None:
        return Answer(CANNOT_TELL, f"{words}; cannot tell whether that is good, because "
                      f"{_why_none(most.efficiency)}", evidence, "", subject)
    least = EXCELLENT if most.verdict == IS_EXCELLENT else GOOD
    return Answer(CLEAR, f"{words}: {most.verdict} (from {100 * least:.0f} %){where}", evidence,
                  "", subject)


def _why_none(efficiency: Band) -> str:
    """Return why there is no verdict on an efficiency."""
    if efficiency.low is None or efficiency.high is None:
        return "there are too few launches or passes for an interval"
    if efficiency.low < GOOD <= efficiency.high:
        return f"its interval holds {100 * GOOD:.0f} %"
    return "it does not hold among all verdicts of this topic; more launches would tell"


def band_text(band: Band, *, percent: bool = False) -> str:
    """Return ``87.1 % (95 % interval 84 to 90 %)``."""
    scale, unit = (100.0, " %") if percent else (1.0, "")
    text = f"{scale * band.value:.3g}{unit}"
    if band.low is None or band.high is None:
        return text
    return f"{text} (95 % interval {scale * band.low:.3g} to {scale * band.high:.3g}{unit})"


def _evidence(series: Series, one: Member) -> str:
    share = one.communication
    parts = [f"{plural(one.ranks, 'rank')} on {plural(one.nodes, 'node')}: "
             f"{format_seconds(one.time_s)} a call, {one.rate:.4g} {series.unit}/s"]
    if one.efficiency:
        parts.append(f"efficiency {band_text(one.efficiency, percent=True)}")
    if share is not None:
        parts.append(f"communication adds {100 * share.median:.3g} % of a call "
                     f"({100 * share.least:.3g} to {100 * share.greatest:.3g} % over "
                     f"{plural(share.passes, 'pass')}"
                     f"{'' if share.tells else ', which may be chance'})")
    elif one.ranks > 1:
        parts.append('what communication adds was not measured: give communication ["on", "off"]')
    if one.shares_cores:
        parts.append("its ranks share cores")
    elif one.ranks_a_core is None:
        parts.append("whether its ranks share cores is not recorded")
    return ", ".join(parts)


def _crowding(one: Member) -> str:
    return (f"{one.ranks_a_core:.3g} ranks share a core there: they wait for it within what is "
            "timed")


def _ranks(members: Sequence[Member]) -> str:
    return f"{', '.join(str(one.ranks) for one in members)} ranks"


def _of_law(law: Law, subject: str) -> Answer:
    """Return what a law says, and that it must not be drawn out."""
    words = ", ".join(f"{name} {band_text(Band(one.value, one.low, one.high), percent=True)}"
                      for name, one in law.parameters.items())
    span = f"{law.least_ranks} to {law.most_ranks} ranks"
    worst = f"{100 * law.worst:.2g} %"
    evidence = (
        "residuals (measured over fitted, less 1) "
        + ", ".join(f"{100 * one:+.2g} %" for one in law.residuals),
        f"do not draw it out: it says nothing of more than {law.most_ranks} ranks, where other "
        "links and switches come in")
    head = f"{subject}: {law.name}, fitted to {span}: {words}"
    if law.worst > POOR_FIT:
        return Answer(CANNOT_TELL, f"{head}; cannot tell what it means, because the worst residual "
                      f"is {worst}: the law does not describe these times", evidence, "", subject)
    return Answer(CLEAR, f"{head}; worst residual {worst}, and valid for {span} only", evidence, "",
                  subject)


def _of_collectives(found: Sequence[Series]) -> Iterator[Answer]:
    """Yield a sentence for each collective: at which size its bus bandwidth falls most."""
    for title, sizes in grouped((one.title, one) for one in found).items():
        known = [(one, last.efficiency, last) for one in sizes for last in [one.members[-1]]
                 if last.efficiency]
        if not known:
            last = sizes[0].members[-1]
            yield Answer(CANNOT_TELL, f"{title}: cannot tell how its bus bandwidth changes with "
                         f"the ranks, because {_crowding(last)}", (), "", title)
            continue
        series, band, last = min(known, key=lambda one: one[1].value)
        base = series.members[0]
        sure = band.low is not None and band.high is not None
        words = (f"{title}: from {base.ranks} to {last.ranks} ranks bus bandwidth goes to "
                 f"{band_text(band, percent=True)} at {series.size}, the least of "
                 f"{plural(len(known), 'size')}")
        yield Answer(
            CLEAR if sure else CANNOT_TELL,
            words if sure else f"{words}; cannot tell how sure that is, because there are too few "
            "launches or passes for an interval", tuple(
                f"{one.size}: {band_text(share, percent=True)}" for one, share, _ in known),
            "", title)
