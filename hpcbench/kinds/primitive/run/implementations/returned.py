"""Implementations whose output is a new tensor of each call."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Implementation


class Returning(Implementation[AnyInputs]):
    """``run`` replaces ``output``, empty before the first one, by what torch has allocated."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.output = torch.empty(0, dtype=inputs.dtype, device=inputs.place.device)

    def restore(self) -> None:
        """Wipe what the last call returned: a later call can get the same memory."""
        self.output.fill_(float("nan"))
