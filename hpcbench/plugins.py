"""The names for packages beside hpcbench (docs/plugins.md); they stay here when modules move.

Nothing is imported before it is used: a specification that takes its classes from here can be
read where torch is not installed. The imports below are for type checkers; at run time they show
where each name is.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcbench.config.axes import Axis as Axis
    from hpcbench.config.schema import Config as Config
    from hpcbench.config.section import Block as Block
    from hpcbench.errors import CaseError as CaseError
    from hpcbench.kinds.collective.plan import Collective as Collective
    from hpcbench.kinds.collective.run import Operation as Operation
    from hpcbench.kinds.collective.run import reduce_op as reduce_op
    from hpcbench.kinds.primitive.plan.spec import ImplementationSpec as ImplementationSpec
    from hpcbench.kinds.primitive.plan.spec import PrimitiveSpec as PrimitiveSpec
    from hpcbench.kinds.primitive.plan.spec import Problem as Problem
    from hpcbench.kinds.primitive.plan.spec import Traffic as Traffic
    from hpcbench.kinds.primitive.plan.spec import Work as Work
    from hpcbench.kinds.primitive.plan.spec import not_divided as not_divided
    from hpcbench.kinds.primitive.plan.spec import on_every_rank as on_every_rank
    from hpcbench.kinds.primitive.plan.workload import Primitive as Primitive
    from hpcbench.kinds.primitive.run.implementations.base import Implementation as Implementation
    from hpcbench.kinds.primitive.run.inputs import ColumnwiseInputs as ColumnwiseInputs
    from hpcbench.kinds.primitive.run.inputs import ExpertInputs as ExpertInputs
    from hpcbench.kinds.primitive.run.inputs import GradientInputs as GradientInputs
    from hpcbench.kinds.primitive.run.inputs import Inputs as Inputs
    from hpcbench.kinds.primitive.run.inputs import MlpInputs as MlpInputs
    from hpcbench.kinds.primitive.run.inputs import RowwiseInputs as RowwiseInputs
    from hpcbench.kinds.primitive.run.operands import Expected as Expected
    from hpcbench.kinds.primitive.run.operands import joined as joined
    from hpcbench.kinds.primitive.run.operands import left_operand as left_operand
    from hpcbench.kinds.primitive.run.operands import magnitude as magnitude
    from hpcbench.kinds.primitive.run.operands import product as product
    from hpcbench.kinds.primitive.run.operands import right_operand as right_operand
    from hpcbench.kinds.registry import KindSpec as KindSpec
    from hpcbench.kinds.training.plan.models import Tensor as Tensor
    from hpcbench.kinds.training.plan.spec import Buckets as Buckets
    from hpcbench.kinds.training.plan.spec import Calls as Calls
    from hpcbench.kinds.training.plan.spec import Degrees as Degrees
    from hpcbench.kinds.training.plan.spec import Groups as Groups
    from hpcbench.kinds.training.plan.spec import Layout as Layout
    from hpcbench.kinds.training.plan.spec import StrategySpec as StrategySpec
    from hpcbench.kinds.training.plan.spec import calls as calls
    from hpcbench.kinds.training.plan.workload import Training as Training
    from hpcbench.kinds.training.run.models.model import Model as Model
    from hpcbench.kinds.training.run.strategies.base import Batch as Batch
    from hpcbench.kinds.training.run.strategies.base import PhaseClock as PhaseClock
    from hpcbench.kinds.training.run.strategies.base import Strategy as Strategy
    from hpcbench.kinds.training.run.strategies.replica import Replica as Replica
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
    from hpcbench.reduce.results import CaseResult as CaseResult
    from hpcbench.reduce.results import CaseSamples as CaseSamples
    from hpcbench.views import chart as chart
    from hpcbench.views import table as table
    from hpcbench.views.presenter import CountedCall as CountedCall
    from hpcbench.views.presenter import Presenter as Presenter
    from hpcbench.views.presenter import Words as Words


@cache
def _modules() -> dict[str, str]:
    """Return name -> the module that has it, or the package of which it is a module."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body
            if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}


def __getattr__(name: str) -> Any:
    """Import what is requested, and nothing else. Raises AttributeError."""
    if name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _modules()[name]
    return getattr(import_module(module), name, None) or import_module(f"{module}.{name}")


def __dir__() -> list[str]:
    return sorted(_modules())
