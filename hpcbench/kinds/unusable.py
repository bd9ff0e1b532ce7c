"""What stands for sides of a plug-in's kind that cannot be loaded, and for one that may raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hpcbench.errors import PluginError
from hpcbench.kinds.kind import Deriver, Presenter, Runner

if TYPE_CHECKING:
    from hpcbench.operations.operation import AnyOperation
    from hpcbench.operations.place import Place
    from hpcbench.plan.workload import Workload
    from hpcbench.reduce.results import CaseResult


class UnusableRunner(Runner):
    """Stands for the runner of a plug-in that cannot be loaded: each case fails with the reason."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Raise PluginError."""
        raise PluginError(self.problem)


class UnusableDeriver(Deriver):
    """Stands for the deriver of a plug-in that cannot be loaded; readers say what is missing."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Raise PluginError."""
        raise PluginError(self._problem)


def _same(answer: Any) -> Any:
    return answer


def _list_or_none(answer: Iterable[Any] | None) -> list[Any] | None:
    return None if answer is None else list(answer)


_READ: Mapping[str, Callable[[Any], Any]] = MappingProxyType({
    "listing": list, "plan_table": _same, "dry_run_lines": list, "type_word": _same,
    "span_words": list, "size_words": list, "definitions": list, "tables": _list_or_none,
    "overviews": list, "charts": list, "heat_map_case": _same, "row": dict, "sections": dict,
})
"""Method of a presenter -> how its answer is read out, so that a generator cannot raise later."""


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
