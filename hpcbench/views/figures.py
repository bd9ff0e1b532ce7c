"""Figures of cases from declared aspects: which lines stand in one figure, and their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped
from hpcbench.views.chart import file_name
from hpcbench.views.labels import vary


@dataclass(frozen=True, slots=True)
class Aspect:
    """One way in which cases differ, in words; titles leave out the ``usual`` text. ``place`` is
    that in titles, 0: not there. ``is_list``: words; those that all cases have are shared."""

    text: Callable[[CaseResult], str]
    place: int = 0
    usual: str = ""
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Cases that one figure compares: ``subtitle`` has what they share, the label of a line what
    distinguishes it from its neighbours."""

    name: str
    subtitle: str
    file_stem: str
    lines: tuple[tuple[str, tuple[CaseResult, ...]], ...]

    @property
    def items(self) -> tuple[CaseResult, ...]:
        return tuple(item for _, items in self.lines for item in items)

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(item.case.case_id for item in self.items)


Key = tuple[str, ...]
Lines = Mapping[Key, Sequence[CaseResult]]


def figures(
    items: Iterable[CaseResult], aspects: Sequence[Aspect], name: Callable[[CaseResult], str],
    x: Callable[[CaseResult], Any], most: Callable[[int], int],
) -> Iterator[Figure]:
    """Yield the figures of timed cases. ``aspects``: the first split figures first, the last stay
    in one figure. Cases that differ in ``x`` only are one line; ``most``: lines by number of xs."""
    by_name: dict[str, dict[Key, list[CaseResult]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.statistics is not None:
            by_name[name(item)][tuple(one.text(item) for one in aspects)].append(item)
    for title, lines in by_name.items():
        for facet, keys in _facets(list(lines), lines, (), x, most):
            yield _figure(title, facet, {key: lines[key] for key in keys}, aspects, x)


def _facets(
    keys: list[Key], lines: Lines, facet: Key, x: Callable[[CaseResult], Any],
    most: Callable[[int], int],
) -> list[tuple[Key, list[Key]]]:
    """Return (what was split by, keys) of figures that are small enough to read."""
    if len(keys) <= most(len({x(item) for key in keys for item in lines[key]})):
        return [(facet, keys)]
    at, _ = vary(map(enumerate, keys))[1][0][0]
    return [part for text, alike in grouped((key[at], key) for key in keys).items()
            for part in _facets(alike, lines, (*facet, text), x, most)]


def _figure(
    name: str, facet: Key, lines: Lines, aspects: Sequence[Aspect], x: Callable[[CaseResult], Any],
) -> Figure:
    same, own = vary(map(enumerate, lines))
    shared, differing = dict(same), [at for at, _ in own[0]]
    common = {at: vary(key[at].split() for key in lines)[0]
              for at in differing if aspects[at].is_list}
    titled = sorted((one.place, at) for at, one in enumerate(aspects) if one.place and at in shared)
    words = [shared[at] for _, at in titled if shared[at] not in ("", aspects[at].usual)]
    more = [part for part in facet if part and part not in words]
    more += [word for at in common for word in sorted(common[at])]
    ends = [key[-1] for key in lines]
    return Figure(name, ", ".join([*words, *more]), file_name(
        "-".join(filter(None, (name, *facet))), allowed="-_."), tuple(
        (" ".join(word for at in reversed(differing) for word in key[at].split()
                  if word not in common.get(at, ())), tuple(sorted(cases, key=x)))
        for key, cases in sorted(lines.items(), key=lambda line: (
            ends.index(line[0][-1]), line[1][0].case.world_size))))
