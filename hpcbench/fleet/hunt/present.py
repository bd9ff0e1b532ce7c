"""A hunt as lines and as a page: who is bad and why, the matrix of pairs, the ladder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from hpcbench.fleet.hunt.blame import Meeting, meetings_of, rate_of
from hpcbench.fleet.hunt.facts import (
    ALONE,
    BAD,
    GOOD,
    LADDER,
    LESS,
    MEASURED,
    MEASURES,
    NOT_TESTED,
    PAIRS,
    SUSPECT,
    Fact,
    Job,
    NodeVerdict,
    Round,
    value_text,
)
from hpcbench.fleet.hunt.judge import HuntJudgement
from hpcbench.report.document import Card, Cards, Item, ReportDocument, ReportSection
from hpcbench.texts import as_field
from hpcbench.units import format_bytes, grouped, plural
from hpcbench.views.chart import Axis, ChartPoint, Curve, HeatMap, LineChart, Panel, Scale
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table

PREFIX = "HPCBENCH_HUNT"
"""Begins each reason line: health systems match it."""
MOST_IN_MATRIX = 128
"""A matrix of more nodes is a table of the worst pairs only."""
MOST_PAIRS = 20
_TONES = {BAD: "bad", SUSPECT: "caution", NOT_TESTED: "warning", GOOD: "good"}
_SHOWS = {"B/s": Show.GB_PER_S, "s": Show.US, "FLOP/s": Show.TFLOP_PER_S}
_UNITS = {Show.GB_PER_S: "GB/s", Show.TFLOP_PER_S: "TFLOP/s", Show.US: "us"}


def reason_lines(judgement: HuntJudgement) -> Iterator[str]:
    """Yield one line for each node that is not good: ``HPCBENCH_HUNT BAD node012 alone: ...``."""
    for verdict in (BAD, SUSPECT, NOT_TESTED):
        for one in judgement.verdicts:
            if one.verdict == verdict:
                yield as_field(f"{PREFIX} {verdict.upper()} {one.node} {one.reason}")


def page_of(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact], judgement: HuntJudgement,
) -> ReportDocument:
    """Return the page of a hunt."""
    n_judged, took_s = len(judgement.verdicts), max((fact.at_s for fact in facts), default=0.0)
    sections = (
        ReportSection("verdict", "Verdict", tuple(_verdict(judgement))),
        ReportSection("alone", "Each rank alone", tuple(_alone(facts))),
        ReportSection("pairs", "Pairs", tuple(_pairs(job, rounds, facts))),
        ReportSection("ladder", "Growing groups", tuple(_ladder(facts))))
    return ReportDocument(
        f"hunt of {plural(n_judged, 'node')}",
        f"{plural(len(rounds), 'round')} in {took_s:.0f} s, {plural(len(facts), 'fact')}",
        tuple(one for one in sections if one.items))


def _verdict(judgement: HuntJudgement) -> Iterator[Item]:
    yield Cards(tuple(
        Card(str(len(judgement.names(verdict))), verdict,
             tone=_TONES[verdict] if judgement.names(verdict) else "plain")
        for verdict in (GOOD, BAD, SUSPECT, NOT_TESTED)))
    named = [one for one in judgement.verdicts if one.verdict != GOOD]
    if named:
        yield Table("nodes that are not good", (
            Column("node", "node"), Column("verdict", "verdict"), Column("stage", "stage"),
            Column("measure", "measure"), Column("value", "value", optional=True),
            Column("expected", "expected", optional=True), Column("reason", "reason")),
            (Group("", tuple(map(_row, sorted(named, key=lambda one: one.verdict)))),))
    yield from (Line(f"note: {note}", "quiet") for note in judgement.notes)


def _row(one: NodeVerdict) -> Row:
    unit = MEASURES[one.measure].unit if one.measure else ""
    value, expected = (None if number is None else value_text(number, unit)
                       for number in (one.value, one.expected))
    return Row((one.node, one.verdict, one.stage, one.measure, value, expected, one.reason))


def _alone(facts: Sequence[Fact]) -> Iterator[Table]:
    """Yield the spread of what was measured alone, by the median of each rank."""
    rows = []
    for measure, some in grouped((fact.measure, fact) for fact in facts if fact.stage == ALONE
                                 and rate_of(fact) is not None).items():
        of_rank = grouped(((fact.node, fact.rank), fact.value or 0.0) for fact in some)
        medians = {key: median(values) for key, values in of_rank.items()}
        worst = min(medians, key=lambda key: medians[key])
        unit = MEASURES[measure].unit
        rows.append(Row((
            measure, len(medians), *(value_text(value, unit) for value in (
                min(medians.values()), median(medians.values()), max(medians.values()))),
            worst[0])))
    if rows:
        yield Table("medians of ranks", (
            Column("measure", "measure"), Column("ranks", "ranks", Show.COUNT),
            Column("least", "least"), Column("median", "median"), Column("greatest", "greatest"),
            Column("worst", "least on")), (Group("", tuple(rows)),))


def _pairs(job: Job, rounds: Sequence[Round], facts: Sequence[Fact]) -> Iterator[Item]:
    meetings = meetings_of(rounds, facts, PAIRS)
    names = [node.name for node in job.nodes
             if any(node.name in one.nodes for one in meetings)]
    for key, some in grouped((key, one) for one in meetings for key in one.rates).items():
        rates = {nodes: median(one.rates[key] for one in met)
                 for nodes, met in grouped((one.nodes, one) for one in some).items()}
        yield _slowest(key, rates)
        if len(names) <= MOST_IN_MATRIX:
            yield _matrix(key, rates, names)
    shown = [one for one in meetings if one.shows]
    if shown:
        yield _faults(shown)


def _value(key: tuple[str, int], rate: float) -> float:
    return 1 / rate if MEASURES[key[0]].good == LESS else rate


def _slowest(key: tuple[str, int], rates: dict[tuple[str, ...], float]) -> Table:
    unit, usual = MEASURES[key[0]].unit, median(rates.values())
    worst = sorted(rates, key=lambda nodes: rates[nodes])[:MOST_PAIRS]
    return Table(
        f"worst of {plural(len(rates), 'pair')}, {_title(key)}", (
            Column("pair", "pair"), Column("value", "value"),
            Column("share", "of the median pair", Show.WHOLE_PERCENT, "%")),
        (Group("", tuple(Row((" ".join(nodes), value_text(_value(key, rates[nodes]), unit),
                              rates[nodes] / usual)) for nodes in worst)),))


def _title(key: tuple[str, int]) -> str:
    return f"{key[0]} of {format_bytes(key[1])}" if key[1] else key[0]


def _matrix(
    key: tuple[str, int], rates: dict[tuple[str, ...], float], names: Sequence[str],
) -> HeatMap:
    at = {name: number for number, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    for nodes, rate in rates.items():
        first, second = (at[name] for name in nodes)
        values[first, second] = values[second, first] = _value(key, rate)
    show = _SHOWS[MEASURES[key[0]].unit]
    return HeatMap(
        f"pairs: {key[0]} between every two nodes",
        f"{_title(key)}, medians; {names[0]} is 0, {names[-1]} is {len(names) - 1}",
        f"hunt-pairs-{key[0]}", ("Empty cells were not measured.",), (), Axis("other node"),
        Axis("node"), tuple(range(len(names))), values, len(names), 1,
        Axis(key[0], show, _UNITS[show]),
        Range(float(np.nanmin(values)), float(np.nanmax(values))), (False, False), (), "", ())


def _faults(meetings: Sequence[Meeting]) -> Table:
    return Table("groups with a fault", (
        Column("round", "round", Show.COUNT), Column("nodes", "nodes"),
        Column("shows", "outcome"), Column("evidence", "evidence")),
        (Group("", tuple(Row((one.round, " ".join(one.nodes), one.shows, one.fact.evidence))
                         for one in meetings)),))


def _ladder(facts: Sequence[Fact]) -> Iterator[LineChart]:
    """Yield for each quantity the median group, and the range of all groups, by ranks."""
    for measure, some in grouped((fact.measure, fact) for fact in facts if fact.stage == LADDER
                                 and fact.outcome == MEASURED and not fact.node
                                 and fact.value).items():
        unit = MEASURES[measure].unit
        show = _SHOWS[unit]
        curves = tuple(Curve(_title((measure, size)), tuple(
            (float(ranks), ChartPoint(median(values), Range(min(values), max(values))))
            for ranks, values in sorted(grouped(
                (fact.ranks, fact.value or 0.0) for fact in alike).items())))
            for size, alike in sorted(grouped((fact.size_bytes, fact) for fact in some).items()))
        yield LineChart(
            f"ladder: {measure}", "the median group; the whisker is the range of all groups",
            f"hunt-ladder-{measure}", (), (), Axis("ranks of a group", Show.COUNT, "", Scale.LOG2),
            (Panel(Axis(measure, show, _UNITS[show]), curves),))
