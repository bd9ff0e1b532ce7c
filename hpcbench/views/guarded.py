"""The presenter of a plug-in, which may raise or return what no renderer can show."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from hpcbench.kinds.kind import Presenter
from hpcbench.views.chart import Chart, HeatMapCase, Look
from hpcbench.views.table import Column, Line, Table, cell_text


def _all_of(*types: type) -> Callable[[Iterable[Any]], list[Any]]:
    """Return what reads an iterable out and raises TypeError for an item of another type."""
    def read(answer: Iterable[Any]) -> list[Any]:
        return [_shown(item, types) for item in answer]
    return read


def _shown(item: Any, types: tuple[type, ...]) -> Any:
    """Return the item; TypeError or ValueError where it cannot be shown."""
    if not isinstance(item, types):
        names = " or ".join(one.__name__ for one in types)
        raise TypeError(f"{reprlib.repr(item)} is not a {names}")
    if isinstance(item, Table):
        for number, row in enumerate(item.rows, 1):
            for cell, column in zip(row.cells, item.columns, strict=True):
                _check_cell(cell, column, f"table {item.title!r}, row {number}")
    return item


def _check_cell(cell: Any, column: Column, where: str) -> None:
    """Raise TypeError where the cell of a plug-in is no value of its column."""
    try:
        cell_text(cell, column.show)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise TypeError(f"{where}, column {column.name!r}: {reprlib.repr(cell)} cannot be shown as "
                        f"{column.show.value}") from error


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what reads an answer that may be None."""
    return lambda answer: None if answer is None else read(answer)


def _one(*types: type) -> Callable[[Any], Any]:
    """Return what reads one object or None."""
    return _or_none(lambda answer: _shown(answer, types))


def _pair(answer: Iterable[Any]) -> tuple[str, str]:
    """Return two texts; TypeError or ValueError for anything else."""
    first, second = _all_of(str)(answer)
    return first, second


def _document(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping; TypeError where summary.json cannot hold it."""
    found = dict(answer)
    json.dumps(found)
    return found


_READ: Mapping[str, Callable[[Any], Any]] = MappingProxyType({
    "listing": _all_of(Line, Table), "plan_table": _one(Table), "dry_run_lines": _all_of(str),
    "type_word": _one(str), "span_words": _all_of(str), "size_words": _all_of(str),
    "definitions": _all_of(str), "tables": _or_none(_all_of(Table)), "overviews": _all_of(Table),
    "profile": _or_none(_all_of(Line, Table)),
    "charts": _all_of(Chart), "heat_map_case": _one(HeatMapCase), "way": _or_none(_pair),
    "row": _document, "sections": _document,
})
"""Method of a presenter -> how its answer is read out, so that nothing of it can raise later."""


class GuardedPresenter(Presenter[Any, Any]):
    """Asks the presenter of a plug-in; ``problem`` says what it raised first.

    Whatever the plug-in cannot present is shown as of any kind.
    """

    def __init__(self, make: Callable[[], Presenter[Any, Any]]) -> None:
        super().__init__()
        self._own: Presenter[Any, Any] = Presenter()
        for method in _READ:
            setattr(self, method, partial(self._ask, method))
        try:
            own = make()
            self.fields, self.ranks_word = tuple(own.fields), str(own.ranks_word)
            self.in_every_summary = bool(own.in_every_summary)
            self.part_looks = {str(name): _one(Look)(look)
                               for name, look in own.part_looks.items()}
            self._own, self.problem = own, getattr(own, "problem", "")
        except Exception as error:
            self._blame("its presenter", error)

    def _ask(self, method: str, *values: Any, **options: Any) -> Any:
        """Return what the plug-in's method returns, or else what that of any kind does."""
        read = _READ[method]
        try:
            return read(getattr(self._own, method)(*values, **options))
        except Exception as error:
            self._blame(f"its presenter's {method}", error)
            return read(getattr(Presenter(), method)(*values, **options))

    def _blame(self, what: str, error: Exception) -> None:
        self.problem = self.problem or f"{what} raised {type(error).__name__}: {error}"
