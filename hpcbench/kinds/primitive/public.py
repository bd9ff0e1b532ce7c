"""Names of kind primitive for packages of others: `hpcbench.plugins` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
