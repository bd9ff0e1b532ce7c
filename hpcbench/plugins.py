"""What packages beside hpcbench may import (docs/plugins.md); names stay here when modules move.

Nothing is imported before it is asked for: a specification that takes its classes from here can be
read where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcbench.config.axes import Axis as Axis
    from hpcbench.config.block import Block as Block
    from hpcbench.config.schema import Config as Config
    from hpcbench.kinds.collective.plan.workload import Collective as Collective
    from hpcbench.kinds.collective.run.operation import Operation as Operation
    from hpcbench.kinds.collective.run.operation import reduce_op as reduce_op
    from hpcbench.kinds.kind import Deriver as Deriver
    from hpcbench.kinds.kind import KindSpec as KindSpec
    from hpcbench.kinds.kind import Planner as Planner
    from hpcbench.kinds.kind import Presenter as Presenter
    from hpcbench.kinds.kind import Runner as Runner
    from hpcbench.kinds.primitive.plan.spec import ImplementationSpec as ImplementationSpec
    from hpcbench.kinds.primitive.plan.spec import PrimitiveSpec as PrimitiveSpec
    from hpcbench.kinds.primitive.plan.spec import Problem as Problem
    from hpcbench.kinds.primitive.plan.spec import Traffic as Traffic
    from hpcbench.kinds.primitive.plan.spec import Work as Work
    from hpcbench.kinds.primitive.plan.spec import not_divided as not_divided
    from hpcbench.kinds.primitive.plan.spec import on_every_rank as on_every_rank
    from hpcbench.kinds.primitive.plan.workload import Primitive as Primitive
    from hpcbench.kinds.primitive.run.expected import Expected as Expected
    from hpcbench.kinds.primitive.run.expected import joined as joined
    from hpcbench.kinds.primitive.run.expected import left_operand as left_operand
    from hpcbench.kinds.primitive.run.expected import magnitude as magnitude
    from hpcbench.kinds.primitive.run.expected import product as product
    from hpcbench.kinds.primitive.run.expected import right_operand as right_operand
    from hpcbench.kinds.primitive.run.implementations.base import Implementation as Implementation
    from hpcbench.kinds.primitive.run.inputs import Columnwise as Columnwise
    from hpcbench.kinds.primitive.run.inputs import Experts as Experts
    from hpcbench.kinds.primitive.run.inputs import Gradients as Gradients
    from hpcbench.kinds.primitive.run.inputs import Inputs as Inputs
    from hpcbench.kinds.primitive.run.inputs import Mlp as Mlp
    from hpcbench.kinds.primitive.run.inputs import Rowwise as Rowwise
    from hpcbench.kinds.training.plan.layout import Buckets as Buckets
    from hpcbench.kinds.training.plan.layout import Groups as Groups
    from hpcbench.kinds.training.plan.layout import Layout as Layout
    from hpcbench.kinds.training.plan.spec import Degrees as Degrees
    from hpcbench.kinds.training.plan.spec import StrategySpec as StrategySpec
    from hpcbench.kinds.training.plan.tensors import Tensor as Tensor
    from hpcbench.kinds.training.plan.traffic import Calls as Calls
    from hpcbench.kinds.training.plan.traffic import calls as calls
    from hpcbench.kinds.training.plan.workload import Training as Training
    from hpcbench.kinds.training.run.models.model import Model as Model
    from hpcbench.kinds.training.run.phases import PhaseClock as PhaseClock
    from hpcbench.kinds.training.run.strategies.base import Batch as Batch
    from hpcbench.kinds.training.run.strategies.base import Strategy as Strategy
    from hpcbench.kinds.training.run.strategies.replica import Replica as Replica
    from hpcbench.operations.call import Call as Call
    from hpcbench.operations.check import Mismatch as Mismatch
    from hpcbench.operations.check import compare as compare
    from hpcbench.operations.collectives import CollectiveSpec as CollectiveSpec
    from hpcbench.operations.data import contributed as contributed
    from hpcbench.operations.data import moved as moved
    from hpcbench.operations.data import poison as poison
    from hpcbench.operations.data import reduced as reduced
    from hpcbench.operations.dtypes import DTYPES as DTYPES
    from hpcbench.operations.operation import AnyOperation as AnyOperation
    from hpcbench.operations.place import Place as Place
    from hpcbench.plan.assemble import Draft as Draft
    from hpcbench.plan.assemble import assemble as assemble
    from hpcbench.plan.case import Case as Case
    from hpcbench.plan.options import Option as Option
    from hpcbench.plan.options import Values as Values
    from hpcbench.plan.points import COMMON_AXES as COMMON_AXES
    from hpcbench.plan.points import PlanRequest as PlanRequest
    from hpcbench.plan.points import common_points as common_points
    from hpcbench.plan.points import listed_lengths as listed_lengths
    from hpcbench.plan.support import resolve_device as resolve_device
    from hpcbench.plan.support import unsupported as unsupported
    from hpcbench.plan.workload import Workload as Workload
    from hpcbench.reduce.results import CaseResult as CaseResult
    from hpcbench.views import chart as chart
    from hpcbench.views import table as table

_WHERE: Mapping[str, str] = MappingProxyType({
    "config.axes": "Axis",
    "config.block": "Block",
    "config.schema": "Config",
    "kinds.collective.plan.workload": "Collective",
    "kinds.collective.run.operation": "Operation reduce_op",
    "kinds.kind": "Deriver KindSpec Planner Presenter Runner",
    "kinds.primitive.plan.spec":
        "ImplementationSpec PrimitiveSpec Problem Traffic Work not_divided on_every_rank",
    "kinds.primitive.plan.workload": "Primitive",
    "kinds.primitive.run.expected":
        "Expected joined left_operand magnitude product right_operand",
    "kinds.primitive.run.implementations.base": "Implementation",
    "kinds.primitive.run.inputs": "Columnwise Experts Gradients Inputs Mlp Rowwise",
    "kinds.training.plan.layout": "Buckets Groups Layout",
    "kinds.training.plan.spec": "Degrees StrategySpec",
    "kinds.training.plan.tensors": "Tensor",
    "kinds.training.plan.traffic": "Calls calls",
    "kinds.training.plan.workload": "Training",
    "kinds.training.run.models.model": "Model",
    "kinds.training.run.phases": "PhaseClock",
    "kinds.training.run.strategies.base": "Batch Strategy",
    "kinds.training.run.strategies.replica": "Replica",
    "operations.call": "Call",
    "operations.check": "Mismatch compare",
    "operations.collectives": "CollectiveSpec",
    "operations.data": "contributed moved poison reduced",
    "operations.dtypes": "DTYPES",
    "operations.operation": "AnyOperation",
    "operations.place": "Place",
    "plan.assemble": "Draft assemble",
    "plan.case": "Case",
    "plan.options": "Option Values",
    "plan.points": "COMMON_AXES PlanRequest common_points listed_lengths",
    "plan.support": "resolve_device unsupported",
    "plan.workload": "Workload",
    "reduce.results": "CaseResult",
    "views": "chart table",
})
"""Module or package, below this one -> the names that it gives; of a package, its modules."""


def _modules() -> Mapping[str, str]:
    """Return the module of each public name."""
    return {name: f"hpcbench.{module}" for module, names in _WHERE.items()
            for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing else. Raises AttributeError."""
    if name not in (modules := _modules()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = import_module(modules[name])
    return getattr(package, name, None) or import_module(f"{modules[name]}.{name}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_modules())
