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
    from hpcbench.config.axes import Axis
    from hpcbench.config.block import Block
    from hpcbench.config.schema import Config
    from hpcbench.errors import CaseError
    from hpcbench.kinds.collective.plan.workload import Collective
    from hpcbench.kinds.collective.run.operation import Operation, reduce_op
    from hpcbench.kinds.kind import Deriver, Planner, Presenter, Runner
    from hpcbench.kinds.primitive.plan.spec import (
        ImplementationSpec,
        PrimitiveSpec,
        Problem,
        Traffic,
        Work,
        not_divided,
        on_every_rank,
    )
    from hpcbench.kinds.primitive.plan.workload import Primitive
    from hpcbench.kinds.primitive.run.expected import (
        Expected,
        joined,
        left_operand,
        magnitude,
        product,
        right_operand,
    )
    from hpcbench.kinds.primitive.run.implementations.base import Implementation
    from hpcbench.kinds.primitive.run.inputs import (
        Columnwise,
        Experts,
        Gradients,
        Inputs,
        Mlp,
        Rowwise,
    )
    from hpcbench.kinds.spec import KindSpec
    from hpcbench.kinds.training.plan.layout import Buckets, Groups, Layout
    from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
    from hpcbench.kinds.training.plan.tensors import Tensor
    from hpcbench.kinds.training.plan.traffic import Calls, calls
    from hpcbench.kinds.training.plan.workload import Training
    from hpcbench.kinds.training.run.models.model import Model
    from hpcbench.kinds.training.run.phases import PhaseClock
    from hpcbench.kinds.training.run.strategies.base import Batch, Strategy
    from hpcbench.kinds.training.run.strategies.replica import Replica
    from hpcbench.operations.call import Call
    from hpcbench.operations.check import Mismatch, compare
    from hpcbench.operations.collectives import CollectiveSpec
    from hpcbench.operations.data import contributed, moved, poison, reduced
    from hpcbench.operations.dtypes import DTYPES
    from hpcbench.operations.meeting_point import meeting_point
    from hpcbench.operations.operation import AnyOperation
    from hpcbench.operations.place import Place
    from hpcbench.plan.assemble import Draft, assemble
    from hpcbench.plan.case import Case
    from hpcbench.plan.options import Option, Values
    from hpcbench.plan.points import COMMON_AXES, PlanRequest, common_points, listed_lengths
    from hpcbench.plan.support import resolve_device, unsupported
    from hpcbench.plan.workload import Workload
    from hpcbench.reduce.case_columns import CaseColumn
    from hpcbench.reduce.results import CaseResult
    from hpcbench.views import chart, table

__all__ = (
    "AnyOperation", "Axis", "Batch", "Block", "Buckets", "COMMON_AXES", "Call", "Calls", "Case",
    "CaseColumn", "CaseError", "CaseResult", "Collective", "CollectiveSpec", "Columnwise", "Config",
    "DTYPES", "Degrees", "Deriver", "Draft", "Expected", "Experts", "Gradients", "Groups",
    "Implementation", "ImplementationSpec", "Inputs", "KindSpec", "Layout", "Mismatch", "Mlp",
    "Model", "Operation", "Option", "PhaseClock", "Place", "PlanRequest", "Planner", "Presenter",
    "Primitive", "PrimitiveSpec", "Problem", "Replica", "Rowwise", "Runner", "Strategy",
    "StrategySpec", "Tensor", "Traffic", "Training", "Values", "Work", "Workload", "assemble",
    "calls", "chart", "common_points", "compare", "contributed", "joined", "left_operand",
    "listed_lengths", "magnitude", "meeting_point", "moved", "not_divided", "on_every_rank",
    "poison", "product", "reduce_op", "reduced", "resolve_device", "right_operand", "table",
    "unsupported",
)
_WHERE: Mapping[str, str] = MappingProxyType({
    "config.axes": "Axis",
    "config.block": "Block",
    "config.schema": "Config",
    "errors": "CaseError",
    "kinds.collective.plan.workload": "Collective",
    "kinds.collective.run.operation": "Operation reduce_op",
    "kinds.kind": "Deriver Planner Presenter Runner",
    "kinds.spec": "KindSpec",
    "kinds.primitive.plan.spec":
        "ImplementationSpec PrimitiveSpec Problem Traffic Work not_divided on_every_rank",
    "kinds.primitive.plan.workload": "Primitive",
    "kinds.primitive.run.expected": "Expected joined left_operand magnitude product right_operand",
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
    "operations.meeting_point": "meeting_point",
    "operations.operation": "AnyOperation",
    "operations.place": "Place",
    "plan.assemble": "Draft assemble",
    "plan.case": "Case",
    "plan.options": "Option Values",
    "plan.points": "COMMON_AXES PlanRequest common_points listed_lengths",
    "plan.support": "resolve_device unsupported",
    "plan.workload": "Workload",
    "reduce.case_columns": "CaseColumn",
    "reduce.results": "CaseResult",
    "views": "chart table",
})
"""Module or package below hpcbench: the public names that it gives; of a package, its modules."""

_MODULES = MappingProxyType({name: f"hpcbench.{module}" for module, names in _WHERE.items()
                             for name in names.split()})


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing else. Raises AttributeError."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    return getattr(import_module(module), name, None) or import_module(f"{module}.{name}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_MODULES)
