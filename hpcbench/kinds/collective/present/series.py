"""Which lines a figure has: the cases of one collective, grouped so that a person can tell them.

Cases that differ in size only are one line. A collective with more lines than a figure can show
readably is split into several figures along the axes that matter least for a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcbench.kinds.collective.plan.workload import collective_of, groups_text
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views.chart import file_name
from hpcbench.views.words import device_type, env_text, iterations_text, mode_text

MAX_LINES = 6
MAX_ROWS = 16
"""More lines (with one size: rows) than this are split over several figures, to stay readable."""

AXES = ("wake-up", "validate", "warmup", "iterations", "in-place", "root", "redop", "type",
        "env", "groups", "split", "buffers", "mode", "ranks", "device", "backend")
"""What tells lines apart. Split over figures first: the left; compared in one figure: the right."""

_ENV = AXES.index("env")
_SHOWN = tuple(map(AXES.index, ("backend", "device", "ranks", "mode", "split", "buffers", "groups",
                                "type", "redop", "root", "in-place", "env")))
"""What a subtitle names, in this order."""
_USUAL = ("", "1 group", "split even", "buffers warm")
"""What goes without saying where all lines have it."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """The cases of one line, by size; ``label`` says what tells it from its neighbours."""

    label: str
    items: tuple[CaseResult, ...]


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """The lines of one figure; ``subtitle`` says what they have in common."""

    collective: str
    subtitle: str
    file_stem: str
    series: tuple[Series, ...]

    @property
    def items(self) -> tuple[CaseResult, ...]:
        """Return the cases of all lines."""
        return tuple(item for one in self.series for item in one.items)

    @property
    def sizes(self) -> list[int]:
        """Return the different sizes, ascending."""
        return sorted({collective_of(item.case).size_bytes for item in self.items})


def groups(items: Iterable[CaseResult]) -> list[SeriesGroup]:
    """Return the figures to draw for the collectives that have statistics.

    Blocks do not matter here: a case that two blocks ask for belongs to both.
    """
    by_collective: dict[str, dict[Key, list[CaseResult]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.statistics is not None:
            by_collective[collective_of(item.case).collective][_key(item)].append(item)
    return [_group(collective, facet, {key: lines[key] for key in keys})
            for collective, lines in by_collective.items()
            for facet, keys in _facets(list(lines), lines, ())]


def _key(item: CaseResult) -> Key:
    case, work = item.case, collective_of(item.case)
    in_place = {None: "", True: "in place", False: "out of place"}[work.in_place]
    return (
        f"wake-up {case.wakeup_s:g} s", "checked" if case.validate else "unchecked",
        plural(case.warmup, "warm-up"), f"{iterations_text([case])} iterations", in_place,
        "" if work.root is None else f"root {work.root}",
        work.op or "", work.dtype if work.traits.moves_data else "", env_text(case),
        groups_text(work), f"split {work.split}", f"buffers {work.buffers}",
        mode_text(item),
        plural(case.world_size, "rank"), device_type(item), case.backend,
    )


def _facets(
    keys: list[Key], lines: dict[Key, list[CaseResult]], facet: Key
) -> list[tuple[Key, list[Key]]]:
    """Return (what was split by, keys) of figures that are small enough to read."""
    sizes = {collective_of(item.case).size_bytes for key in keys for item in lines[key]}
    one_size = len(sizes) == 1
    if len(keys) <= (MAX_ROWS if one_size else MAX_LINES):
        return [(facet, keys)]
    axis = _varied(keys)[0]
    groups = grouped((key[axis], key) for key in keys)
    return [part for value, group in groups.items()
            for part in _facets(group, lines, (*facet, value))]


def _varied(keys: Sequence[Key]) -> list[int]:
    return [axis for axis in range(len(AXES)) if len({key[axis] for key in keys}) > 1]


def _group(collective: str, facet: Key, lines: dict[Key, list[CaseResult]]) -> SeriesGroup:
    keys = list(lines)
    varied = _varied(keys)
    common = set.intersection(*(set(key[_ENV].split()) for key in keys))
    shared = [keys[0][axis] for axis in _SHOWN
              if axis not in varied and keys[0][axis] not in _USUAL]
    extra = [part for part in facet if part and part not in shared]
    stem = "-".join(part for part in (collective, *facet) if part)
    if _ENV in varied:
        extra += sorted(common)
    return SeriesGroup(
        collective=collective, subtitle=", ".join([*shared, *extra]),
        file_stem=file_name(stem, allowed="-_."),
        series=tuple(
            Series(label=_label(key, varied, common),
                 items=tuple(sorted(items, key=lambda item: collective_of(item.case).size_bytes)))
            for key, items in sorted(lines.items(), key=lambda pair: _line_order(keys, *pair))
        ),
    )


def _line_order(keys: Sequence[Key], key: Key, items: Sequence[CaseResult]) -> tuple[int, int]:
    """Return a sort key: backends as they come, and within one fewer ranks first."""
    backends = [other[-1] for other in keys]
    return backends.index(key[-1]), items[0].case.world_size


def _label(key: Key, varied: Sequence[int], common: set[str]) -> str:
    """Return what tells a line from its neighbours; variables that all share are left out."""
    words = [word for axis in reversed(varied) for word in key[axis].split()
             if axis != _ENV or word not in common]
    return " ".join(words)

