"""What stands for sides of a plug-in's kind that cannot be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcbench.errors import PluginError
from hpcbench.kinds.kind import Deriver, Runner

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
