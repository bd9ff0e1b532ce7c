"""What the strategy of a training tells of it; the defaults where it is not installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.schedules import Pipelining
from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.workload import Training


def layout_of(work: Training) -> Layout:
    """Return how a training lies on its ranks."""
    spec = strategy(work.strategy)
    return spec.layout(work) if spec else Layout()


def own_traffic(work: Training, held: Sequence[Tensor]) -> Iterable[Calls]:
    """Return what a rank with these parameters calls beyond what follows from the layout."""
    spec = strategy(work.strategy)
    return spec.traffic(work, held) if spec else ()


def adapters_of(work: Training) -> Adapters | None:
    """Return the adapters of a training, None where the model itself is trained."""
    return layout_of(work).adapters


def pipelining(work: Training) -> Pipelining | None:
    """Return how a training is pipelined, None where it is not."""
    return layout_of(work).pipeline


def trained_part(work: Training) -> tuple[object, ...]:
    """Return what is trained if that is not the whole model; the same for all layouts of it."""
    spec = strategy(work.strategy)
    return spec.trained_part(work) if spec else ()


def alone_by(work: Training) -> str:
    """Return what makes a training one of one rank, such as ``single``, or nothing."""
    spec = strategy(work.strategy)
    return spec.alone_by(work) if spec else ""
