"""Several dimensions at once: replicas (copies or shards) x pipeline stages x tensor parts."""

from __future__ import annotations

from hpcbench.plan.workload import Training
from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.training.strategies.base import Strategy
from hpcbench.workloads.training.strategies.pipeline import Pipeline
from hpcbench.workloads.training.strategies.tensor import Tensor


def hybrid(spec: Training, place: Place) -> Strategy:
    """Return the strategy for the degrees of a training; each passes over those that are 1."""
    return (Pipeline if spec.pp > 1 else Tensor)(spec, place)
