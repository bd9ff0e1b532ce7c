"""Which charts of a run were asked for, by the kind of their cases and by their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hpcbench.config.names import unknown_name
from hpcbench.errors import UsageError
from hpcbench.kinds.registry import kind_aliases
from hpcbench.reduce.results import Results
from hpcbench.views.chart import Chart


@dataclass(frozen=True, slots=True)
class Chosen:
    """Only charts of this ``kind``, and only those whose name fits one of the patterns ``only``.

    None and no pattern stand for all. ``case`` names the case whose samples are shown one by one;
    None is the most telling one.
    """

    kind: str | None = None
    only: tuple[str, ...] = ()
    case: str | None = None


ALL = Chosen()


def chosen_charts(charts: Iterable[Chart], results: Results, chosen: Chosen) -> Iterator[Chart]:
    """Yield the charts that were asked for. Raises UsageError where there is none of them."""
    if chosen.kind is None and not chosen.only:
        yield from charts
        return
    of_kind = _of_kind(list(charts), results, chosen.kind)
    for pattern in chosen.only:
        if not any(fnmatchcase(chart.file_stem, pattern) for chart in of_kind):
            names = ", ".join(chart.file_stem for chart in of_kind) or "none"
            raise UsageError(f"--only {pattern}: no chart has such a name; there are: {names}")
    yield from (chart for chart in of_kind if not chosen.only or any(
        fnmatchcase(chart.file_stem, pattern) for pattern in chosen.only))


def _of_kind(charts: list[Chart], results: Results, kind: str | None) -> list[Chart]:
    if kind is None:
        return charts
    wanted = kind_aliases().get(kind, kind)
    known = dict.fromkeys(item.case.kind for item in results.cases)
    if wanted not in known:
        raise UsageError(f"--kind {unknown_name(kind, known)}")
    ids = {item.case.case_id for item in results.cases if item.case.kind == wanted}
    return [chart for chart in charts if chart.case_ids and set(chart.case_ids) <= ids]
