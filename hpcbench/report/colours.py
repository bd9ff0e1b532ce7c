"""The colours of a page: one for each backend in all runs, and for each name of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from hpcbench.answers.compare_inputs import OPTION
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import (
    BACKEND_COLOURS,
    COLOURS,
    Bar,
    BarChart,
    Chart,
    DotChart,
    LineChart,
    Look,
    Panel,
    RooflineChart,
)

_NO_NAMES = ("order", OPTION)
"""Beginnings of keys of a setting whose values are no names of what is compared."""


def colours_of(items: Iterable[CaseResult]) -> Mapping[str, str]:
    """Return the one colour of each backend, and of each name that a setting of cases has, such as
    that of an implementation or a strategy."""
    settings = [{"backend": item.case.backend, **item.case.workload.choice().setting}
                for item in items if item.status == "ok"]
    names = dict.fromkeys(str(value) for setting in settings for key, value in setting.items()
                          if not key.startswith(_NO_NAMES) and value not in BACKEND_COLOURS)
    return {**dict(zip(names, cycle(COLOURS))), **BACKEND_COLOURS}


def line_colours(charts: Iterable[Chart]) -> Mapping[str, str]:
    """Return the colours of lines across bars by their labels, such as the product alone."""
    return {look.label: look.colour for chart in charts if isinstance(chart, BarChart)
            for section in chart.sections for _, look in section.lines}


def with_colours(
    chart: Chart, colours: Mapping[str, str], items: Iterable[CaseResult],
) -> Chart:
    """Return the chart with its marks in the colours of the names that it compares.

    Lines and spots that no name distinguishes are in colours of their own."""
    if isinstance(chart, DotChart):
        return replace(chart, rows=tuple(
            replace(row, colour=_colour_of(row.label, colours)) for row in chart.rows))
    if isinstance(chart, BarChart):
        return _with_bar_colours(chart, colours)
    if isinstance(chart, RooflineChart):
        own = _own_colours((spot.label for panel in chart.panels for spot in panel.spots), colours)
        return replace(chart, panels=tuple(replace(panel, spots=tuple(
            replace(spot, colour=_colour_of(spot.label, colours) or own[spot.label])
            for spot in panel.spots)) for panel in chart.panels))
    if not isinstance(chart, LineChart):
        return chart
    backends = {item.case.backend for item in items if item.case.case_id in chart.case_ids}
    alone = colours.get(next(iter(backends)), "") if len(backends) == 1 else ""
    own = _own_colours((line.label for panel in chart.panels for line in panel.lines), colours)

    def of_panel(panel: Panel) -> Panel:
        chosen = [alone] if len(panel.lines) == 1 else _colours(
            [line.label for line in panel.lines], colours)
        return replace(panel, lines=tuple(
            replace(line, colour=line.colour or colour or own[line.label])
            for line, colour in zip(panel.lines, chosen, strict=True)))

    return replace(chart, panels=tuple(map(of_panel, chart.panels)))


def _own_colours(labels: Iterable[str], colours: Mapping[str, str]) -> Mapping[str, str]:
    """Return a colour for each label that no name has, as far as there are any."""
    taken = {*colours.values()}
    return dict(zip(dict.fromkeys(labels), cycle(
        [colour for colour in COLOURS if colour not in taken] or COLOURS)))


def _with_bar_colours(chart: BarChart, colours: Mapping[str, str]) -> BarChart:
    """Return the chart with bars of one part, lines and labels in the colours of their names."""
    def of_look(look: Look, label: str) -> Look:
        return replace(look, colour=_colour_of(label, colours) or look.colour)

    def of_bar(bar: Bar) -> Bar:
        return replace(bar, colour=_colour_of(bar.label, colours), segments=tuple(
            (length, look if look.label else of_look(look, bar.label))
            for length, look in bar.segments))

    lines = {look for section in chart.sections for _, look in section.lines}
    return replace(
        chart, legend=tuple(of_look(look, look.label) if look in lines else look
                            for look in chart.legend),
        sections=tuple(replace(
            section, bars=tuple(map(of_bar, section.bars)),
            lines=tuple((at, of_look(look, look.label)) for at, look in section.lines))
            for section in chart.sections))


def _colour_of(label: str, colours: Mapping[str, str]) -> str:
    """Return the colour of the first name in a label, or nothing."""
    return next((colours[word] for word in re.split(r":?[\s,]+|:$", label) if word in colours), "")


def _colours(labels: Sequence[str], colours: Mapping[str, str]) -> list[str]:
    """Return the colour of each label by the names in it; none where they do not distinguish."""
    found = [_colour_of(label, colours) for label in labels]
    return found if len({*found}) == len(labels) or (
        "" not in found and len({*found}) > 1) else [""] * len(labels)
