"""Several dimensions at once: replicas (copies or shards) x pipeline stages x tensor parts."""

from __future__ import annotations

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.strategies.base import Strategy
from hpcbench.kinds.training.run.strategies.pipeline import Pipeline
from hpcbench.kinds.training.run.strategies.tensor import Tensor
from hpcbench.operations.place import Place


def hybrid(spec: Training, place: Place) -> Strategy:
    """Return the strategy for the degrees of a training; each passes over those that are 1."""
    return (Pipeline if spec.pp > 1 else Tensor)(spec, place)
