"""What the inputs of every primitive offer to its implementations."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected
from hpcbench.kinds.primitive.run.operands import DTYPES
from hpcbench.operations.place import Place


class Inputs:
    """The operands of a primitive on one rank; subclasses name them.

    Every operand is on the place's device and contiguous, and nothing changes it. ``unsharded``:
    a rank multiplies everything (compute_only, size unsharded).
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.dtype = DTYPES[spec.dtype]
        self.unsharded = dict(spec.options).get("size") == "unsharded"

    def expected(self, part: str) -> Expected:
        """Return what this rank must end with after ``both``, ``compute`` or ``communicate``.

        ``compute`` is the product alone, ``communicate`` the communication alone.
        """
        raise NotImplementedError

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy on the place's device."""
        return tensor.contiguous().to(self.place.device)

    def own(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's even part of a global tensor along a dimension."""
        return self.parts(tensor, dim)[self.place.rank]

    def parts(self, tensor: torch.Tensor, dim: int) -> list[torch.Tensor]:
        """Return every rank's even part of a global tensor along a dimension."""
        return list(tensor.chunk(self.place.world_size, dim))
