"""What every implementation of a primitive is to the measuring loop's workload."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

from hpcbench.kinds.primitive.run.inputs import Inputs

AnyInputs = TypeVar("AnyInputs", bound=Inputs)


class Implementation(Generic[AnyInputs]):
    """One way to do a primitive; subclasses allocate in ``__init__`` and define ``run``.

    Attributes:
        output: what the last ``run`` ended with.
        part: ``both``, ``compute`` or ``communicate``: the argument of ``Inputs.expected``.
        scratch: buffers that are wiped before each call, so that nothing of an earlier call can
            pass for a result of this one. `empty` adds to it.
    """

    output: torch.Tensor
    part = "both"

    def __init__(self, inputs: AnyInputs) -> None:
        self.inputs = inputs
        self.spec = inputs.spec
        self.group: Any = inputs.place.group
        self.ranks = inputs.place.world_size
        self.rank = inputs.place.rank
        self.scratch: list[torch.Tensor] = []

    def run(self) -> None:
        """Do it; on return ``output`` is complete, or ordered on the current stream."""
        raise NotImplementedError

    def restore(self) -> None:
        """Put back into buffers what a call starts from and overwrites; before each call."""

    def empty(self, *shape: int) -> torch.Tensor:
        """Return a buffer on the device that is wiped before each call."""
        buffer = torch.empty(shape, dtype=self.inputs.dtype, device=self.inputs.place.device)
        self.scratch.append(buffer)
        return buffer


class Returning(Implementation[AnyInputs]):
    """``run`` replaces ``output``, empty before the first one, by what torch has allocated."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.output = torch.empty(0, dtype=inputs.dtype, device=inputs.place.device)

    def restore(self) -> None:
        """Wipe what the last call returned: a later call can get the same memory."""
        self.output.fill_(float("nan"))
