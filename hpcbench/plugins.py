"""The names for packages beside hpcbench (docs/plugins.md); they stay here when modules move.

Nothing is imported before it is used: a specification that takes its classes from here can be
read where torch is not installed. The imports below are for type checkers; at run time they show
where each name is."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcbench.answers.answer import Answer as Answer
    from hpcbench.answers.answer import Topic as Topic
    from hpcbench.config.axes import Axis as Axis
    from hpcbench.config.schema import Config as Config
    from hpcbench.config.section import Block as Block
    from hpcbench.config.section import Dialect as Dialect
    from hpcbench.errors import CaseError as CaseError
    from hpcbench.kinds.collective.plan import Collective as Collective
    from hpcbench.kinds.collective.run import Operation as Operation
    from hpcbench.kinds.collective.run import reduce_op as reduce_op
    from hpcbench.kinds.primitive.public import *  # noqa: F403
    from hpcbench.kinds.registry import KindSpec as KindSpec
    from hpcbench.kinds.training.public import *  # noqa: F403
    from hpcbench.measurement.runner import Runner as Runner
    from hpcbench.operations.collectives import Call as Call
    from hpcbench.operations.collectives import CollectiveSpec as CollectiveSpec
    from hpcbench.operations.data import DTYPES as DTYPES
    from hpcbench.operations.data import Mismatch as Mismatch
    from hpcbench.operations.data import compare as compare
    from hpcbench.operations.data import contributed as contributed
    from hpcbench.operations.data import moved as moved
    from hpcbench.operations.data import poison as poison
    from hpcbench.operations.data import reduced as reduced
    from hpcbench.operations.place import AnyOperation as AnyOperation
    from hpcbench.operations.place import Place as Place
    from hpcbench.operations.place import meeting_point as meeting_point
    from hpcbench.plan.case import Case as Case
    from hpcbench.plan.case import Planner as Planner
    from hpcbench.plan.case import PlanRequest as PlanRequest
    from hpcbench.plan.points import COMMON_AXES as COMMON_AXES
    from hpcbench.plan.points import Draft as Draft
    from hpcbench.plan.points import Option as Option
    from hpcbench.plan.points import Values as Values
    from hpcbench.plan.points import assemble as assemble
    from hpcbench.plan.points import common_points as common_points
    from hpcbench.plan.points import least_calls as least_calls
    from hpcbench.plan.points import listed_lengths as listed_lengths
    from hpcbench.plan.support import resolve_device as resolve_device
    from hpcbench.plan.support import unfit_world as unfit_world
    from hpcbench.plan.support import unsupported as unsupported
    from hpcbench.plan.workload import Choice as Choice
    from hpcbench.plan.workload import Ended as Ended
    from hpcbench.plan.workload import Features as Features
    from hpcbench.plan.workload import Label as Label
    from hpcbench.plan.workload import Tried as Tried
    from hpcbench.plan.workload import Workload as Workload
    from hpcbench.reduce import checks as checks
    from hpcbench.reduce import kind_facts as kind_facts
    from hpcbench.reduce.comparison import Comparison as Comparison
    from hpcbench.reduce.kind_facts import CaseColumn as CaseColumn
    from hpcbench.reduce.kind_facts import Deriver as Deriver
    from hpcbench.reduce.metric import Metric as Metric
    from hpcbench.reduce.results import CaseResult as CaseResult
    from hpcbench.reduce.results import CaseSamples as CaseSamples
    from hpcbench.registry import CommandSpec as CommandSpec
    from hpcbench.registry import DialectSpec as DialectSpec
    from hpcbench.registry import TopicSpec as TopicSpec
    from hpcbench.views import chart as chart
    from hpcbench.views import table as table
    from hpcbench.views.presenter import CountedCall as CountedCall
    from hpcbench.views.presenter import Presenter as Presenter
    from hpcbench.views.presenter import Words as Words


@cache
def _modules() -> dict[str, str]:
    """Return name -> the module that has it, or the package of which it is a module.

    Names of a kind stand in its own ``public.py``, which goes where the kind goes."""
    files = (Path(__file__), *sorted(Path(__file__).parent.glob("kinds/*/public.py")))
    blocks = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body
              if isinstance(node, ast.If)]
    return {alias.name: node.module for block in blocks for node in block.body
            if isinstance(node, ast.ImportFrom) and node.module for alias in node.names
            if alias.name != "*"}


def __getattr__(name: str) -> Any:
    """Import what is requested, and nothing else. Raises AttributeError."""
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _modules()[name]
    return getattr(import_module(module), name, None) or import_module(f"{module}.{name}")


def __dir__() -> list[str]:
    return sorted(_modules())
