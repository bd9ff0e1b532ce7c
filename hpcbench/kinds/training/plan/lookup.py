"""What the strategy of a training defines; the defaults where it is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.registry import is_ours, strategy
from hpcbench.kinds.training.plan.schedules import Pipelining
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option

Result = TypeVar("Result")


def layout_of(work: Training) -> Layout:
    """Return how a training lies on its ranks."""
    return _result(work, lambda spec: spec.layout(spec.with_defaults(work)), Layout())


def own_traffic(work: Training, held: Sequence[Tensor]) -> Iterable[Calls]:
    """Return what a rank with these parameters calls beyond what follows from the layout."""
    return _result(work, lambda spec: tuple(spec.traffic(work, held)), ())


def adapters_of(work: Training) -> Adapters | None:
    """Return the adapters of a training, None where the model itself is trained."""
    return layout_of(work).adapters


def pipelining(work: Training) -> Pipelining | None:
    """Return how a training is pipelined, None where it is not."""
    return layout_of(work).pipeline


def trained_part(work: Training) -> tuple[object, ...]:
    """Return what is trained if that is not the whole model; the same for all layouts of it."""
    return _result(work, lambda spec: spec.trained_part(work), ())


def alone_by(work: Training) -> str:
    """Return what makes a training one of one rank, such as ``single``, or nothing."""
    return _result(work, lambda spec: spec.alone_by(work), "")


def ranks_of(spec: StrategySpec, options: Mapping[str, Option]) -> int | None:
    """Return on how many ranks a strategy runs with these options, None: on all of the job."""
    return _result(spec, lambda spec: spec.ranks(options), None)


def _result(
    of: Training | StrategySpec, function: Callable[[StrategySpec], Result], default: Result,
) -> Result:
    """Return what a function of a strategy returns.

    A function of a plug-in that raises costs only the cases of its strategy. The plan skips these
    and gives the reason (`build_workload`).
    """
    spec = strategy(of.strategy) if isinstance(of, Training) else of
    if spec is None:
        return default
    try:
        return function(spec)
    except Exception:
        if is_ours(spec):
            raise
        return default
