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
    from hpcbench.config.schema import Config
    from hpcbench.config.section import Block
    from hpcbench.errors import CaseError
    from hpcbench.kinds.collective.plan.workload import Collective
    from hpcbench.kinds.collective.run import Operation, reduce_op
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
    from hpcbench.kinds.primitive.run.implementations.base import Implementation
    from hpcbench.kinds.primitive.run.inputs import (
        Columnwise,
        Experts,
        Gradients,
        Inputs,
        Mlp,
        Rowwise,
    )
    from hpcbench.kinds.primitive.run.operands import (
        Expected,
        joined,
        left_operand,
        magnitude,
        product,
        right_operand,
    )
    from hpcbench.kinds.spec import KindSpec
    from hpcbench.kinds.training.plan.models import Tensor
    from hpcbench.kinds.training.plan.spec import (
        Buckets,
        Calls,
        Degrees,
        Groups,
        Layout,
        StrategySpec,
        calls,
    )
    from hpcbench.kinds.training.plan.workload import Training
    from hpcbench.kinds.training.run.models.model import Model
    from hpcbench.kinds.training.run.strategies.base import Batch, PhaseClock, Strategy
    from hpcbench.kinds.training.run.strategies.replica import Replica
    from hpcbench.operations.collectives import Call, CollectiveSpec
    from hpcbench.operations.data import (
        DTYPES,
        Mismatch,
        compare,
        contributed,
        moved,
        poison,
        reduced,
    )
    from hpcbench.operations.operation import AnyOperation
    from hpcbench.operations.place import Place, meeting_point
    from hpcbench.plan.case import Case
    from hpcbench.plan.points import (
        COMMON_AXES,
        Draft,
        Option,
        PlanRequest,
        Values,
        assemble,
        common_points,
        listed_lengths,
    )
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
    "config.schema": "Config",
    "config.section": "Block",
    "errors": "CaseError",
    "kinds.collective.plan.workload": "Collective",
    "kinds.collective.run": "Operation reduce_op",
    "kinds.kind": "Deriver Planner Presenter Runner",
    "kinds.spec": "KindSpec",
    "kinds.primitive.plan.spec":
        "ImplementationSpec PrimitiveSpec Problem Traffic Work not_divided on_every_rank",
    "kinds.primitive.plan.workload": "Primitive",
    "kinds.primitive.run.implementations.base": "Implementation",
    "kinds.primitive.run.inputs": "Columnwise Experts Gradients Inputs Mlp Rowwise",
    "kinds.primitive.run.operands": "Expected joined left_operand magnitude product right_operand",
    "kinds.training.plan.models": "Tensor",
    "kinds.training.plan.spec": "Buckets Calls Degrees Groups Layout StrategySpec calls",
    "kinds.training.plan.workload": "Training",
    "kinds.training.run.models.model": "Model",
    "kinds.training.run.strategies.base": "Batch PhaseClock Strategy",
    "kinds.training.run.strategies.replica": "Replica",
    "operations.collectives": "Call CollectiveSpec",
    "operations.data": "DTYPES Mismatch compare contributed moved poison reduced",
    "operations.operation": "AnyOperation",
    "operations.place": "Place meeting_point",
    "plan.case": "Case",
    "plan.points":
        "COMMON_AXES Draft Option PlanRequest Values assemble common_points listed_lengths",
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
