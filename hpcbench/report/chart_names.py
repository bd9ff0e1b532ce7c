"""Names of charts that a person types: as short as tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hpcbench.views.chart import Chart

LONGEST = 40
"""A name that would be longer is the first part with a number instead."""


def with_short_names(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts with the fewest parts of their names, which - separates, that differ."""
    names = [chart.file_stem for chart in charts]
    short = [_shortest(name, names) for name in names]
    seen = Counter[str]()
    for at, name in enumerate(names):
        if len(short[at]) > LONGEST:
            first = name.partition("-")[0]
            seen[first] += 1
            short[at] = f"{first}-{seen[first]}"
    if len(set(short)) < len(short):  # a number that is another one's name
        return list(charts)
    return [replace(chart, file_stem=name) for chart, name in zip(charts, short, strict=True)]


def _shortest(name: str, names: Sequence[str]) -> str:
    """Return the shortest beginning of a name that no other one has."""
    parts = name.split("-")
    others = [other.split("-") for other in names if other != name]
    return next(("-".join(parts[:count]) for count in range(1, len(parts))
                 if all(other[:count] != parts[:count] for other in others)), name)
