"""One rank trains alone."""

from __future__ import annotations

from torch import nn

from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.strategies.replica import Replica


class Single(Replica):
    """The model as it is: what all others are compared with."""

    def wrap(self, model: Model) -> nn.Module:
        """Return the model."""
        return model
