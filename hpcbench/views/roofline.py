"""The table and the charts of rooflines (`reduce.roofline`), the same for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcbench.reduce.ceilings import COMMUNICATION, COMPUTE, DECLARED, LIMITS, MEMORY, Ceiling
from hpcbench.reduce.roofline import Roofline, rate_text
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Axis, Roof, RooflineChart, RooflinePanel, Scale, Spot
from hpcbench.views.table import Cell, Column, Group, Line, Row, Show, Table
from hpcbench.views.words import without_shared

MOST_SENTENCES = 8
"""Sentences of evidence below the table; summary.json has that of all."""
MOST_SPOTS = 20
"""More do not fit into the legend of a chart."""
DEFINITION = (
    "least times = what a rank needs over each ceiling; bound by = the longest of them, or latency "
    "where all",
    "  explain less than 10 %; score = that time / time (docs/hardware.md, Rooflines and scores)",
)
NO_CEILING = (
    "  none: this sweep measures and declares no peak; add blocks {kind: hardware, test: gemm}, "
    "with test: stream and pairs too, or declare peaks (docs/config.md)")
_COLUMNS = (
    Column("case", "case"), Column("part", "part", optional=True),
    Column("time", "time", Show.DURATION, better="less"),
    Column("rate", "rank", Show.TFLOP_PER_S, "TFLOP/s", better="more", optional=True),
    Column("memory_intensity", "memory", Show.NUMBER, "FLOP/B", "FLOPs over bytes of memory",
           optional=True),
    Column("network_intensity", "network", Show.NUMBER, "FLOP/B", "FLOPs over bytes sent",
           optional=True),
    *(Column(f"least_{limit}", limit, Show.DURATION, "least", optional=True) for limit in LIMITS),
    Column("bound_by", "bound by"),
    Column("score", "score", Show.WHOLE_PERCENT, "%", "of the binding ceiling", "more"),
    Column("of_declared", "of declared", Show.WHOLE_PERCENT, "%", better="more", optional=True),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A roofline, what its case is called, and the case's id."""

    name: str
    case_id: str
    found: Roofline

    @property
    def title(self) -> str:
        """Return the name, and the part if it is not the whole."""
        return f"{self.name} {self.found.part}".rstrip()


def roofline_tables(what: str, shown: Sequence[Shown], *, of: bool = False) -> Iterator[Table]:
    """Yield one table of all rooflines.

    Where nothing binds, what to add: if cases lack ceilings, or if there are cases (``of``) without
    any.
    """
    if not any(one.found.bound_by for one in shown):
        reasons = [f"  none: {text}" for text in dict.fromkeys(
            one.found.evidence for one in shown)] or [NO_CEILING] * of
        if reasons:
            yield Table(f"roofline of {what}", (), (), lead=tuple(
                Line(text, "quiet") for text in reasons))
        return
    ceilings = dict.fromkeys(
        least.ceiling for one in shown for least in one.found.least)
    yield Table(f"roofline of {what}", _COLUMNS, (Group("", tuple(map(_row, shown))),),
                lead=tuple(Line(f"  {_ceiling_text(ceiling)}", "quiet")
                           for ceiling in ceilings),
                notes=tuple(_sentences(shown)))


def roofline_definitions(shown: Sequence[Shown]) -> Sequence[str]:
    """Return what the columns mean; nothing where no roofline is shown."""
    return DEFINITION if any(one.found.bound_by for one in shown) else ()


def _sentences(shown: Sequence[Shown]) -> Iterator[Line]:
    """Yield the evidence, one line for all that have the same."""
    groups = grouped(((one.found.bound_by, one.found.evidence), one.title) for one in shown)
    for (bound_by, evidence), titles in list(groups.items())[:MOST_SENTENCES]:
        who = titles[0] if len(titles) == 1 else plural(len(titles), "row")
        yield Line(f"{who}: {f'bound by {bound_by}: ' if bound_by else ''}{evidence}", "quiet")
    more = len(groups) - MOST_SENTENCES
    if more > 0:
        yield Line(f"  {more} more: bound_evidence and phase_bounds in summary.json", "quiet")


def roofline_charts(what: str, shown: Sequence[Shown]) -> Iterator[RooflineChart]:
    """Yield a chart for all that have the same ceilings of compute and memory.

    What has no FLOPs, or no known bound, is in no chart.
    """
    drawn = [one for one in shown if one.found.bound_by and one.found.demand.flops]
    groups = grouped((_own_ceilings(one.found), one) for one in drawn)
    for number, same in enumerate(groups.values(), 1):
        suffix = f"-{number}" if len(groups) > 1 else ""
        yield _chart(what, f"roofline-{what.replace(' ', '_')}{suffix}", same)


def _chart(what: str, stem: str, same: Sequence[Shown]) -> RooflineChart:
    kept = same[:MOST_SPOTS]
    shared, names = without_shared([one.title for one in kept])
    texts = [_spot_text(name, one) for name, one in zip(names, kept, strict=True)]
    panels = [
        _panel(kept, texts, Axis("intensity", Show.NUMBER, "FLOP per byte of memory", Scale.LOG),
               MEMORY, [one.found.flop_per_memory_byte for one in kept]),
        _panel(kept, texts, Axis("intensity", Show.NUMBER, "FLOP per byte sent", Scale.LOG),
               COMMUNICATION, [one.found.flop_per_network_byte for one in kept])]
    note = f"The first {len(kept)} of {len(same)} are drawn."
    return RooflineChart(
        f"roofline of {what}", ", ".join(filter(None, (
            shared, "of one rank; legend: what binds it, performance score"))), stem,
        ("Mark: FLOPs over the median time. Solid lines were measured in this run, dotted ones "
         "are declared.", *[note][:len(same) - len(kept)]),
        tuple(dict.fromkeys(one.case_id for one in kept)),
        Axis("rate", Show.TFLOP_PER_S, "TFLOP/s", Scale.LOG),
        tuple(panel for panel in panels if panel.spots))


def _panel(
    same: Sequence[Shown], texts: Sequence[str], x: Axis, limit: str,
    intensities: Sequence[float | None],
) -> RooflinePanel:
    spots = tuple(
        Spot(texts[number], number, intensity, (one.found.demand.flops or 0) / one.found.time_s)
        for number, (one, intensity) in enumerate(zip(same, intensities, strict=True))
        if intensity is not None)
    ceilings = dict.fromkeys(least.ceiling for one in same for least in one.found.least
                             if least.ceiling.limit in (COMPUTE, limit))
    return RooflinePanel(x, tuple(
        Roof(_roof_text(ceiling), ceiling.rate, ceiling.limit == limit,
             ceiling.source == DECLARED) for ceiling in ceilings), spots)


def _spot_text(name: str, one: Shown) -> str:
    score = "" if one.found.score is None else f", {100 * one.found.score:.3g}\N{NO-BREAK SPACE}%"
    return f"{name}: {one.found.bound_by}{score}"


def _own_ceilings(found: Roofline) -> tuple[Ceiling, ...]:
    return tuple(least.ceiling for least in found.least
                 if least.ceiling.limit in (COMPUTE, MEMORY))


def _roof_text(ceiling: Ceiling) -> str:
    """Return what fits beside a line: ``memory 18.4 GB/s``."""
    return f"{ceiling.of if ceiling.limit == COMPUTE else ceiling.limit} {rate_text(ceiling)}"


def _ceiling_text(ceiling: Ceiling) -> str:
    """Return ``compute: fp32 products, measured, 0.0834 TFLOP/s``."""
    of = f"{ceiling.of}, " * (ceiling.of != ceiling.limit)
    return f"{ceiling.limit}: {of}{ceiling.source}, {rate_text(ceiling)}"


def _row(one: Shown) -> Row:
    found = one.found
    least: dict[str, float] = {}
    for each in found.least:  # measured ones come first
        least.setdefault(each.ceiling.limit, each.time_s)
    times: tuple[Cell, ...] = tuple(least.get(limit) for limit in LIMITS)
    flops = found.demand.flops
    return Row((one.name, found.part or None, found.time_s,
                flops / found.time_s if flops else None, found.flop_per_memory_byte,
                found.flop_per_network_byte, *times, found.bound_by or "unknown", found.score,
                found.of_declared), case_id=one.case_id)
