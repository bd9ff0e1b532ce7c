"""The context of a benchmarked function, and how it is called."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpcbench.errors import CaseError, Skip
from hpcbench.operations.data import DTYPES
from hpcbench.operations.functions import TimedCall, Value
from hpcbench.operations.place import Place
from hpcbench.texts import first_line


class Context:
    """The first argument of a benchmarked function.

    Attributes:
        rank: this rank in the group under test, from 0.
        world_size: the ranks of that group.
        local_rank: this rank on its node.
        device: the `torch.device` of the case.
        dtype: the `torch.dtype` of the case.
        group: the process group under test, for `torch.distributed`.
        problem: where ``compare`` names a primitive, this rank's operands
            (`hpcbench.plugins.Inputs`); else None."""

    def __init__(self, place: Place, dtype: str, problem: Any = None) -> None:
        self.problem = problem
        self.rank, self.world_size, self._place = place.rank, place.world_size, place
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device, self.group = place.device, place.group
        self.dtype = DTYPES[dtype]
        self._generator = torch.Generator().manual_seed(place.number)

    def rand(self, *shape: int, dtype: torch.dtype | str | None = None) -> torch.Tensor:
        """Return numbers between 0 and 1 on the device: the same in each run, not on each rank."""
        drawn = torch.rand(*shape, generator=self._generator)
        return drawn.to(self.device, self._dtype(dtype))

    def empty(self, *shape: int, dtype: torch.dtype | str | None = None) -> torch.Tensor:
        """Return a tensor on the device without values."""
        return torch.empty(*shape, device=self.device, dtype=self._dtype(dtype))

    def full(
        self, shape: int | Sequence[int], value: float, dtype: torch.dtype | str | None = None,
    ) -> torch.Tensor:
        """Return a tensor on the device of one value; ``shape`` is a number or a tuple."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.full(sizes, value, device=self.device, dtype=self._dtype(dtype))

    def global_rank(self, rank: int) -> int:
        """Return the rank in the job of a rank of the group, as torch wants roots and peers."""
        return self._place.global_rank(rank)

    def _dtype(self, dtype: torch.dtype | str | None) -> torch.dtype:
        if dtype is None:
            return self.dtype
        return DTYPES[dtype] if isinstance(dtype, str) else dtype


def called(
    function: Callable[..., Any], context: Context, dtype: str,
    arguments: Sequence[tuple[str, Value]],
) -> Any:
    """Call a benchmarked function with its arguments, and with those of every case that are
    parameters of it; return its result. Raises Skip where it raises NotImplementedError."""
    passed = {"dtype": dtype, "device": context.device, "world_size": context.world_size}
    accepted = inspect.signature(function).parameters
    try:
        return function(context, **{name: value for name, value in {
            **passed, **dict(arguments)}.items() if name in accepted})
    except NotImplementedError as error:
        raise Skip(first_line(str(error)) or "it is not implemented") from error


def output_of(call: TimedCall, name: str) -> torch.Tensor:
    """Return the output that a function names. Raises CaseError if it is no tensor."""
    output = call.output() if callable(call.output) else call.output
    if not isinstance(output, torch.Tensor):
        raise CaseError(f"{name}: output of hpcbench.Case is {type(output).__name__}, not the "
                        "tensor that a call writes")
    return output
