"""Charts of predictions: times over ranks beside those measured, and the parts of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hpcbench.answers.answer import Run
from hpcbench.prediction.measured import key_of
from hpcbench.prediction.predict import Predicted, Predictions
from hpcbench.prediction.steps import COMPUTE, SHAPE, StepTime
from hpcbench.units import grouped, plural
from hpcbench.views.chart import (
    COLOURS,
    PART_COLOURS,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Chart,
    ChartPoint,
    Curve,
    LineChart,
    Look,
    Panel,
    Scale,
)
from hpcbench.views.labels import short_labels
from hpcbench.views.table import Column, Range, Show

MOST_CASES = 4
"""Bands of more cover one another."""
_TIME = Axis("time", Show.MS, "ms")


class _Drawn(NamedTuple):
    """A predicted case, and its time."""

    one: Predicted
    step: StepTime

    @property
    def name(self) -> str:
        """Return the label without what grows with the ranks."""
        grown = {f"{name}={self.one.ranks}" for name in ("n", "ranks", "dp")}
        return " ".join(word for word in self.one.label.split() if word not in grown)

    @property
    def ends(self) -> Range:
        return Range(*self.step.time.ends)


def ranks_along(runs: Sequence[Run], ranks: Sequence[int]) -> list[int]:
    """Return other numbers of ranks to draw: those measured, and doublings between all."""
    known = {run.results.run.world_size for run in runs}
    between = (min(known) << doubling for doubling in range(max(ranks).bit_length()))
    return sorted({*known, *(n for n in between if n < max(ranks))} - {*ranks})


def draw(
    found: Predictions, ranks: Collection[int], runs: Sequence[Run], path: Path,
) -> Predictions:
    """Draw the charts, numbered; without any, add a note. Raises FileError."""
    from hpcbench.report.plots import plot_numbered

    origin = f"predicted from {', '.join(run.path for run in runs)}"
    if plot_numbered([*charts(found, ranks)], origin, path):
        return found
    return found.noting(f"--plot {path}: no prediction, nothing to draw")


def charts(found: Predictions, ranks: Collection[int]) -> Iterator[Chart]:
    """Yield all predicted times over ranks, and the parts of those for some numbers of ranks: of
    the first cases, steps before single collectives."""
    of_cases = grouped((key_of(one.case, one.case.device) if one.case else (),
                        _Drawn(one, one.step)) for one in found.cases if one.step)
    every = [tuple(sorted(own, key=lambda drawn: drawn.one.ranks)) for own in of_cases.values()]
    drawn = sorted(every, key=lambda own: len(own[-1].step.terms) == 1)[:MOST_CASES]
    if not any(one.step for one in found.cases if one.ranks in ranks):
        return
    short = short_labels(own[-1].name for own in drawn)
    several = len(drawn) > 1
    heads = [short[own[-1].name] if several else "" for own in drawn]
    subtitle = "" if several else drawn[0][-1].name
    more = [f"The first {len(drawn)} of {plural(len(every), 'case')} are drawn; --case chooses."]
    notes = tuple(more[:len(every) - len(drawn)])
    yield LineChart(
        "Times over ranks: measured and predicted", subtitle, "predicted_times",
        ("Mark: measured, with its 95 % CI. Dashed: predicted, until refused, with a band of its "
         "95 % interval, hatched where extrapolated.", *notes), (),
        Axis("ranks", scale=Scale.LOG2), (Panel(replace(_TIME, scale=Scale.LOG), tuple(
                curve for at, own in enumerate(drawn)
                for curve in _curves(own, heads[at], COLOURS[at]))),))
    sections = [(head, [one for one in own if one.one.ranks in ranks])
                for head, own in zip(heads, drawn, strict=True)]
    yield _parts(sections, subtitle, notes)


def _curves(own: Sequence[_Drawn], name: str, colour: str) -> Iterator[Curve]:
    """Yield what was measured, and the predictions, those beyond it by themselves."""
    known = sorted(own[-1].one.known, key=lambda case: case.ranks)
    if known:
        yield Curve(name or "measured", tuple(
            (float(case.ranks), ChartPoint(case.time_s, Range(*ends) if ends else None))
            for case in known for ends in [case.reliable_interval]), is_joined=False, colour=colour)
    label = "" if known and name else name or "predicted"
    points = [(float(one.one.ranks), ChartPoint(one.step.time.value, band=one.ends)) for one in own]
    for beyond, group in groupby(range(len(own)), key=lambda at: bool(own[at].step.beyond)):
        places = [*group]
        part = points[max(places[0] - beyond, 0):places[-1] + 1 + beyond]  # with those beside it
        if len(part) > 1 or len(points) == 1:
            yield Curve(label, tuple(part), colour=colour, is_predicted=True, hatched=beyond)
            label = ""


def _parts(
    sections: Sequence[tuple[str, Sequence[_Drawn]]], subtitle: str, notes: tuple[str, ...],
) -> BarChart:
    names = dict.fromkeys(part.name for _, own in sections for one in own
                          for part in one.step.terms)
    ordered = sorted(names, key=lambda name: name != COMPUTE)
    colours = dict(zip(ordered, PART_COLOURS, strict=False))
    return BarChart(
        "Parts of predicted times", subtitle, "predicted_parts",
        ("Predicted, not measured; hatched parts are extrapolated.", *notes), (), _TIME,
        (Column("time", "predicted", Show.DURATION),
         Column("interval", "95 % interval", Show.DURATION)),
        tuple(BarSection(name, tuple(_bar(one, colours) for one in own))
              for name, own in sections if own),
        tuple(_look(name, colour, hatched) for name, colour in colours.items()
              for hatched in (False, True)),
        whisker="95 % interval", limit="measured").without_empty()


def _bar(drawn: _Drawn, colours: Mapping[str, str]) -> Bar:
    one, step = drawn
    parts = {part.name: part for part in step.terms}
    return Bar(plural(one.ranks, "rank"), (step.time.value, drawn.ends), tuple(
        (parts[name].seconds, _look(name, colour, bool(parts[name].beyond or SHAPE in step.beyond)))
        for name, colour in colours.items() if name in parts), whisker=drawn.ends,
        limit=next((case.time_s for case in one.known if case.ranks == one.ranks), None))


def _look(name: str, colour: str, hatched: bool) -> Look:
    return Look(f"{name}, extrapolated" if hatched else name, colour, hatched=hatched)
