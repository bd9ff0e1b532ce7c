"""A presenter of a plug-in that may raise: whatever it cannot present is shown as of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcbench.kinds.kind import CountedCall, Presenter

if TYPE_CHECKING:
    from hpcbench.plan.case import Case
    from hpcbench.reduce.results import CaseResult
    from hpcbench.views.chart import Chart, HeatMapCase
    from hpcbench.views.table import Line, Table

Works = Sequence[Any]
Items = Sequence["CaseResult"]
Records = Mapping[str, Any]


class GuardedPresenter(Presenter[Any, Any]):
    """Asks the presenter of a plug-in; ``problem`` says what it raised first.

    Answers are read out here, so that a generator cannot raise later.
    """

    def __init__(self, make: Callable[[], Presenter[Any, Any]]) -> None:
        super().__init__()
        self._own: Presenter[Any, Any] = Presenter()
        try:
            own = make()
            self.fields, self.ranks_word = tuple(own.fields), str(own.ranks_word)
            self._own, self.problem = own, getattr(own, "problem", "")
        except Exception as error:
            self._blame("its presenter", error)

    def listing(self) -> Iterable[Line | Table]:
        """Return what the plug-in says can be measured."""
        return self._read_out("listing")

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table | None:
        """Return the plug-in's table of planned cases."""
        return self._ask(_same, "plan_table", title, cases, listed=listed)  # type: ignore[no-any-return]

    def dry_run_lines(self, work: Any, calls: Sequence[CountedCall] | None) -> Iterable[str]:
        """Return what the plug-in knows of a case that was tried."""
        return self._read_out("dry_run_lines", work, calls)

    def type_word(self, work: Any) -> str | None:
        """Return the element type."""
        return self._ask(_same, "type_word", work)  # type: ignore[no-any-return]

    def span_words(self, works: Works) -> Iterable[str]:
        """Return short words for what several cases span."""
        return self._read_out("span_words", works)

    def size_words(self, works: Works) -> Iterable[str]:
        """Return short words for the sizes of several cases."""
        return self._read_out("size_words", works)

    def definitions(self, items: Items, derived: Records) -> Iterable[str]:
        """Return what the columns of the plug-in's tables mean."""
        return self._read_out("definitions", items, derived)

    def tables(self, title: str, items: Items, derived: Records) -> Iterable[Table] | None:
        """Return the plug-in's tables of a block."""
        return self._ask(_list_or_none, "tables", title, items,  # type: ignore[no-any-return]
                         derived)

    def overviews(self, items: Items, derived: Records) -> Iterable[Table]:
        """Return the plug-in's tables of all blocks."""
        return self._read_out("overviews", items, derived)

    def charts(self, items: Items, derived: Records) -> Iterable[Chart]:
        """Return the plug-in's charts."""
        return self._read_out("charts", items, derived)

    def heat_map_case(self, case: Case) -> HeatMapCase | None:
        """Return what the heat map of a case says."""
        return self._ask(_same, "heat_map_case", case)  # type: ignore[no-any-return]

    def row(self, item: CaseResult, record: Any) -> Mapping[str, Any]:
        """Return the plug-in's values of a case's row."""
        return self._ask(dict, "row", item, record)  # type: ignore[no-any-return]

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> Mapping[str, Any]:
        """Return what the plug-in adds to summary.json."""
        return self._ask(dict, "sections", rows, items, derived)  # type: ignore[no-any-return]

    def _read_out(self, method: str, *values: Any) -> list[Any]:
        return self._ask(list, method, *values)  # type: ignore[no-any-return]

    def _ask(
        self, read: Callable[[Any], Any], method: str, *values: Any, **options: Any,
    ) -> Any:
        """Return what the plug-in's method returns, or else what that of any kind does."""
        try:
            return read(getattr(self._own, method)(*values, **options))
        except Exception as error:
            self._blame(f"its presenter's {method}", error)
            return read(getattr(Presenter(), method)(*values, **options))

    def _blame(self, what: str, error: Exception) -> None:
        self.problem = self.problem or f"{what} raised {type(error).__name__}: {error}"


def _same(answer: Any) -> Any:
    return answer


def _list_or_none(answer: Iterable[Any] | None) -> list[Any] | None:
    return None if answer is None else list(answer)
