"""Whether the functions of a plug-in's strategy return what a plan can use.

They are other people's code, and Python checks no types: what is wrong costs only its own case.
"""

from __future__ import annotations

from hpcbench.config.names import unknown_name
from hpcbench.kinds.training.plan.any_model import model_of
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.collectives import collectives


def check_degrees(degrees: object, ranks: int) -> None:
    """Raise TypeError or ValueError if this divides so many ranks in no way."""
    if not isinstance(degrees, Degrees):
        raise TypeError(f"degrees returned {degrees!r}, no Degrees")
    if degrees.dp * degrees.tp * degrees.pp != ranks:
        raise ValueError(f"degrees returned dp={degrees.dp} x tp={degrees.tp} x pp={degrees.pp} "
                         f"for {ranks} ranks")


def check_answers(spec: StrategySpec, work: Training) -> None:
    """Raise what a function raises, or TypeError or ValueError for an answer of another kind."""
    if not isinstance(reason := spec.unfit(work), str | None):
        raise TypeError(f"unfit returned {reason!r}, neither text nor None")
    if reason:
        return  # the other functions are called only for trainings that suit the strategy
    if not isinstance(layout := spec.layout(work), Layout):
        raise TypeError(f"layout returned a {type(layout).__name__}, no Layout")
    for name in spec.calls(work):
        if name not in collectives():
            raise ValueError(f"calls: {unknown_name(name, collectives())}")
    for stage in stages_of(work):
        for item in spec.traffic(work, stage.tensors(model_of(work))):
            if not isinstance(item, Calls):
                raise TypeError(f"traffic yielded a {type(item).__name__}, no Calls")
    predict(work)  # fails if a layout divides by more ranks than there are, and the like
