"""One rank trains alone."""

from __future__ import annotations

from torch import nn

from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.strategies.replica import Replica


class Single(Replica):
    """The model as it is: what all others are compared with."""

    def wrap(self, model: Model) -> nn.Module:
        """Return the model."""
        return model
