"""How work and collectives scale over ranks: ideal and measured side by side, and laws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcbench.analysis.scaling_laws import Law
from hpcbench.analysis.scaling_series import (
    BY_PAIRS,
    EXCELLENT,
    GOOD,
    IS_EXCELLENT,
    MEANS_BY_PAIRS,
    MOVED,
    NEITHER,
    STRONG,
    WEAK,
    ScalingSeries,
    SeriesMember,
    caveats,
    series_of,
    worked,
)
from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    interval_text,
    range_of,
    with_command,
)
from hpcbench.records import dataclass
from hpcbench.statistics.order import Interval
from hpcbench.units import digits, format_seconds, grouped, plural, three_digits
from hpcbench.views.chart import PLAIN, Axis, ChartPoint, LineChart, Panel, Scale
from hpcbench.views.chart import Curve as TimeSeries
from hpcbench.views.columns import BUSBW
from hpcbench.views.table import Cell, Column, Group, Line, Range, Row, Show, Table

POOR_FIT = 0.1
"""A law whose worst residual is more than this does not describe the measurements."""
_MEANINGS = {WEAK: "weak scaling, each rank has {amount} {unit}",
             STRONG: "strong scaling, all ranks together have {amount} {unit}"}


@dataclass(frozen=True, slots=True)
class Scaling:
    """The record of the topic: how cases scale over ranks."""

    answers: tuple[Answer, ...]
    series: tuple[ScalingSeries, ...]


def scaling(runs: Sequence[Run], options: TopicOptions) -> Scaling:
    all_series = series_of(worked(runs))
    work = [one for one in all_series if one.kind != MOVED]
    answers = [*(answer for one in work for answer in _answers_of_series(one)),
               *_without_laws(work),
               *_of_collectives([one for one in all_series if one.kind == MOVED])]
    if not all_series:
        answers = [cannot_tell(
            "scaling", "needs a case on several world sizes, of 2 ranks or more if it only "
            'communicates: set world_size to a list such as [2, 4, "all"], or give several files')]
    return Scaling(with_command(answers, runs, "scaling", beside=caveats(runs)), tuple(all_series))


def _without_laws(all_series: Sequence[ScalingSeries]) -> Iterator[Answer]:
    """Yield one sentence on all series that have too few numbers of ranks for a law."""
    without = [one for one in all_series if one.no_laws]
    if without:
        yield cannot_tell(
            f"scaling law of {len(without)} of {len(all_series)} series",
            "; ".join(dict.fromkeys(reason for one in without for reason in one.no_laws)),
            (f"{subject_of(one)}: {kind_text(one)}" for one in without))


def subject_of(series: ScalingSeries) -> str:
    return ", ".join(filter(None, (series.title, series.size, series.way)))


def kind_text(series: ScalingSeries) -> str:
    first = series.members[0]
    if series.kind in _MEANINGS:
        amount = first.amount / (first.ranks if series.kind == WEAK else 1)
        return _MEANINGS[series.kind].format(amount=digits(amount, 6), unit=series.unit)
    return "neither weak nor strong scaling"


def _answers_of_series(series: ScalingSeries) -> Iterator[Answer]:
    head, subject = kind_text(series), subject_of(series)
    if series.kind == NEITHER:
        amounts = ", ".join(f"{digits(one.amount, 6)} {series.unit} on {plural(one.ranks, 'rank')}"
                            for one in series.members)
        answers = [Answer(
            CANNOT_TELL, "no efficiency: neither the work of a rank nor the total is constant",
            (f"{head}: {amounts}",))]
    else:
        answers = [_of_efficiency(series, head)]
        if crowded := [one for one in series.members if one.shares_cores]:
            ranks = ", ".join(str(one.ranks) for one in crowded)
            answers.append(Answer(
                CANNOT_TELL, f"no efficiency on {ranks} ranks: {_crowding(crowded[-1])}", (head,)))
    for answer in (*answers, *map(_of_law, series.laws)):
        yield replace(answer, sentence=f"{subject}: {answer.sentence}", subject=subject)


def _of_efficiency(series: ScalingSeries, head: str) -> Answer:
    """Return the efficiency on most ranks; evidence has that of all members."""
    base, members = series.members[0], [one for one in series.members if one.efficiency]
    evidence = tuple(_evidence(series, one) for one in series.members)
    if not members:
        return Answer(CANNOT_TELL, f"no efficiency: {_crowding(series.members[-1])}",
                      (head, *evidence))
    most = members[-1]
    assert most.efficiency is not None and most.speed_up is not None
    of = ", ".join(filter(None, (series.base, plural(base.ranks, "rank"))))
    by_pairs = BY_PAIRS if most.in_launch else ""
    text = (f"scaling efficiency{by_pairs} {interval_text(most.efficiency, percent=True)} on "
            f"{plural(most.ranks, 'rank')}")
    where = " in one launch" if most.in_launch else ""
    about = (f"{head}; speed-up{by_pairs} {interval_text(most.speed_up)}; base: {of}{where}",
             *evidence)
    if most.verdict is None:
        why, remedy = _why_none(most.efficiency)
        return Answer(CANNOT_TELL, f"{text}: undecided, {why}", about, remedy=remedy)
    least = EXCELLENT if most.verdict == IS_EXCELLENT else GOOD
    return Answer(CLEAR, f"{text}: {most.verdict} (from {100 * least:.0f} %)", about)


def _why_none(efficiency: Interval) -> tuple[str, str]:
    """Return why there is no verdict, and the remedy."""
    if efficiency.low is None or efficiency.high is None:
        return "too few launches or passes", ""
    if efficiency.low < GOOD <= efficiency.high:
        return f"the interval includes {100 * GOOD:.0f} %", ""
    return "not significant", "use more launches"


def _evidence(series: ScalingSeries, member: SeriesMember) -> str:
    share = member.communication
    parts = [f"{plural(member.ranks, 'rank')} on {plural(member.nodes, 'node')}: "
             f"{format_seconds(member.time_s)} a call, {digits(member.rate, 4)} {series.unit}/s"]
    if member.efficiency:
        by_pairs = BY_PAIRS if member.in_launch else ""
        efficiency = interval_text(member.efficiency, percent=True)
        parts.append(f"scaling efficiency{by_pairs} {efficiency}")
    if share is not None:
        parts.append(f"communication adds {three_digits(100 * share.median)} % of a call "
                     f"({three_digits(100 * share.least)} to "
                     f"{three_digits(100 * share.greatest)} % over "
                     f"{plural(share.passes, 'pass')}"
                     f"{'' if share.tells else ', which may be chance'})")
    elif member.ranks > 1:
        parts.append('cost of communication not measured: set communication to ["on", "off"]')
    if member.shares_cores:
        parts.append("its ranks share cores")
    elif member.ranks_a_core is None:
        parts.append("whether its ranks share cores is not recorded")
    return ", ".join(parts)


def _crowding(one: SeriesMember) -> str:
    return f"{one.ranks_a_core:.3g} ranks share a core"


def _of_law(law: Law) -> Answer:
    """Return the parameters of a law, and that it must not be extrapolated."""
    text = ", ".join(f"{name} {interval_text(one, percent=True)}"
                     for name, one in law.parameters.items())
    span = f"{law.least_ranks} to {law.most_ranks} ranks"
    worst = f"{digits(100 * law.worst, 2)} %"
    evidence = (
        "residuals (measured over fitted, less 1) "
        + ", ".join(f"{100 * one:+.2g} %" for one in law.residuals),
        f"do not extrapolate beyond {law.most_ranks} ranks: other links and switches join")
    head = f"{law.name}: {text}"
    if law.worst > POOR_FIT:
        return Answer(CANNOT_TELL, f"{head}: poor fit (worst residual {worst})", evidence)
    return Answer(CLEAR, f"{head} (worst residual {worst}, {span} only)", evidence)


def _of_collectives(all_series: Sequence[ScalingSeries]) -> Iterator[Answer]:
    """Yield a sentence for each collective: at which size its bus bandwidth falls most."""
    for title, sizes in grouped((one.title, one) for one in all_series).items():
        parts = [(one, last.efficiency, last) for one in sizes for last in [one.members[-1]]
                 if last.efficiency]
        if not parts:
            last = sizes[0].members[-1]
            yield cannot_tell(f"{title}: bus bandwidth over ranks", _crowding(last), subject=title)
            continue
        series, band, last = min(parts, key=lambda one: one[1].value)
        base = series.members[0]
        sure = band.low is not None and band.high is not None
        text = (f"{title}: bus bandwidth on {last.ranks} ranks is "
                f"{interval_text(band, percent=True)} of that on {base.ranks}"
                f"{BY_PAIRS if last.in_launch else ''}, at {series.size}")
        yield Answer(
            CLEAR if sure else CANNOT_TELL,
            text if sure else f"{text} (no interval: too few launches or passes)",
            (f"the lowest of {plural(len(parts), 'size')}", *(
                f"{one.size}: {interval_text(share, percent=True)}" for one, share, _ in parts)),
            subject=title)


MOST_COURSES = 6
"""More lines in a panel cannot be distinguished."""
_INTERVAL = "95 % CI"
_LEAD = (
    "speed-up = samples/s (rows/s) over those of the base; scaling efficiency = that over the "
    f"ratio of ranks: good from {100 * GOOD:.0f} %, excellent from {100 * EXCELLENT:.0f} %")



def scaling_tables(record: Scaling) -> Iterator[Table]:
    """Yield the series of work, the laws, and collectives against the number of ranks."""
    work = [one for one in record.series if one.kind != MOVED]
    if work:
        yield _work_table(work)
    if any(one.laws for one in work):
        yield _law_table([one for one in work if one.laws])
    if moved := [one for one in record.series if one.kind == MOVED]:
        yield _moved_table(moved)


def scaling_charts(record: Scaling) -> Iterator[LineChart]:
    """Yield speed-ups beside the ideal one, and bus bandwidths beside that of fewest ranks."""
    shown = {kind: [one for one in record.series if one.kind == kind
                    and any(member.efficiency for member in one.members)]
             for kind in (STRONG, WEAK, MOVED)}
    for kind, of_kind in shown.items():
        ids = tuple(dict.fromkeys(one.case_id for series in of_kind for one in series.members))
        axis = Axis("ranks", Show.COUNT, scale=Scale.LOG2)
        if of_kind and kind == MOVED:
            yield LineChart(
                "Collectives over ranks", "bus bandwidth over that of the fewest ranks",
                "scaling_collectives", (f"Bar: {_INTERVAL}. Ideal: it stays as it is.",), ids, axis,
                (_bandwidths(of_kind),))
        elif of_kind:
            yield LineChart(
                f"{kind.capitalize()} scaling: ideal and measured speed-up",
                "rate of work over that of the base, the fewest ranks", f"scaling_{kind}",
                (f"Bar: {_INTERVAL}. Ideal: as many times the base as there are ranks.",), ids,
                axis, (_speed_ups(of_kind),))


def _work_table(all_series: Sequence[ScalingSeries]) -> Table:
    paired = _is_paired(all_series)
    by_pairs = BY_PAIRS.strip() if paired else ""
    columns = (
        Column("ranks", "ranks", Show.COUNT),
        Column("nodes", "nodes", Show.COUNT, first_to_go=True),
        Column("amount", "work", Show.NUMBER, "a call", first_to_go=True),
        Column("time", "time", Show.MS, "ms"),
        Column("rate", "rate", Show.NUMBER, "1/s", better="more"),
        Column("speed_up", "speed-up", Show.RATIO, by_pairs, better="more", optional=True),
        Column("speed_up_interval", _INTERVAL, Show.RATIO, optional=True),
        Column("efficiency", "efficiency", Show.PERCENT, f"%{BY_PAIRS}" if paired else "%",
               "scaling efficiency", "more", optional=True),
        Column("efficiency_interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("communication", "communication", Show.PERCENT, "%",
               "what communication adds to a call, as a share of it; - if it may be chance", "less",
               optional=True, first_to_go=True),
        Column("note", "note", optional=True))
    groups = tuple(Group(f"{subject_of(series)}: {kind_text(series)}", tuple(
        Row((one.ranks, one.nodes, one.amount, one.time_s, one.rate, *_cells(one.speed_up),
             *_cells(one.efficiency), one.known_communication, _note(series, at)),
            case_id=one.case_id)
        for at, one in enumerate(series.members))) for series in all_series)
    known = any(one.efficiency for series in all_series for one in series.members)
    lead = (_LEAD,) * known + (MEANS_BY_PAIRS,) * paired
    return Table("scaling over ranks", columns, groups, lead=tuple(map(Line, lead)))


def _is_paired(all_series: Sequence[ScalingSeries]) -> bool:
    """Return whether a ratio that a table shows is by pairs."""
    return any(one.in_launch and one.efficiency
               for series in all_series for one in series.members)


def _note(series: ScalingSeries, at: int) -> str | None:
    member = series.members[at]
    if member.shares_cores:
        return f"{member.ranks_a_core:.3g} ranks share a core: no efficiency"
    if at == 0:
        return f"base: {series.base}" if series.base else "base"
    return None


def _law_table(all_series: Sequence[ScalingSeries]) -> Table:
    columns = (
        Column("law", "law"), Column("parameter", "parameter"),
        Column("value", "value", Show.SIGNIFICANT_PERCENT, "%"),
        Column("interval", _INTERVAL, Show.SIGNIFICANT_PERCENT, "%", optional=True),
        Column("points", "points", Show.COUNT),
        Column("worst", "worst residual", Show.SIGNIFICANT_PERCENT, "%", better="less"),
        Column("valid", "valid for"))
    groups = tuple(Group(subject_of(series), tuple(
        Row((law.name, name, one.value, range_of(one),
             len(law.residuals), law.worst, f"{law.least_ranks} to {law.most_ranks} ranks"))
        for law in series.laws for name, one in law.parameters.items())) for series in all_series)
    return Table("laws of scaling", columns, groups, notes=(Line(
        "do not draw a law out: it says nothing of more ranks than it was fitted to", "warning"),))


def _moved_table(all_series: Sequence[ScalingSeries]) -> Table:
    paired = _is_paired(all_series)
    columns = (
        Column("size", "size"), Column("ranks", "ranks", Show.COUNT),
        Column("nodes", "nodes", Show.COUNT), Column("time", "time", Show.US, "us"), BUSBW,
        Column("share", "of base", Show.PERCENT, f"%{BY_PAIRS}" if paired else "%",
               "bus bandwidth over that of fewest ranks", "more", optional=True),
        Column("interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("note", "note", optional=True))
    titles = dict.fromkeys(one.title for one in all_series)
    lead = (Line(MEANS_BY_PAIRS),) if paired else ()
    return Table("collectives over ranks", columns, tuple(Group(title, tuple(
        Row((series.size, one.ranks, one.nodes, one.time_s, one.rate, *_cells(one.efficiency),
             _note(series, at)), case_id=one.case_id)
        for series in all_series if series.title == title
        for at, one in enumerate(series.members))) for title in titles), lead=lead)


def _cells(one: Interval | None) -> tuple[Cell, Cell]:
    return one.value if one else None, range_of(one)


def _speed_ups(all_series: Sequence[ScalingSeries]) -> Panel:
    shown = all_series[:MOST_COURSES]
    base = min(series.members[0].ranks for series in shown)
    places = sorted({one.ranks for series in shown for one in series.members})
    ideal = TimeSeries(f"ideal from {plural(base, 'rank')}",
                   tuple((ranks, ChartPoint(ranks / base)) for ranks in places), colour=PLAIN)
    return Panel(Axis("speed-up", Show.RATIO),
                 (ideal, *(_course(series, shown) for series in shown)), _left_out(all_series))


def _bandwidths(all_series: Sequence[ScalingSeries]) -> Panel:
    shown = all_series[:MOST_COURSES]
    return Panel(Axis("bus bandwidth of base", Show.PERCENT, "%"),
                 tuple(_course(series, shown) for series in shown), _left_out(all_series),
                 reference=Range(1.0, 1.0, 1.0))


def _left_out(found: Sequence[ScalingSeries]) -> str:
    left = len(found) - MOST_COURSES
    return f"{left} more in the table" if left > 0 else ""


def _course(series: ScalingSeries, shown: Sequence[ScalingSeries]) -> TimeSeries:
    """Return a series beside its base, 1.

    Its label distinguishes it from the others of a panel, and has the work on most ranks."""
    of_one_title = len({one.title for one in shown}) == 1
    name = (series.way or series.size if of_one_title else subject_of(series)) or series.title
    base, *_, last = series.members
    values = ((one.ranks, one.efficiency if series.kind == MOVED else one.speed_up)
              for one in series.members)
    return TimeSeries(
        name if series.kind == MOVED else f"{name}, {digits(last.amount, 6)} {series.unit}",
        ((base.ranks, ChartPoint(1.0)), *((ranks, ChartPoint(value.value, range_of(value)))
                                          for ranks, value in values if value)))


TOPIC = Topic("scaling", "efficiency and bandwidth over ranks", scaling,
              scaling_tables, scaling_charts)
