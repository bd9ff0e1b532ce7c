"""The runner of functions: what a function gets, and the operation that it makes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.measurement.runner import Runner
from hpcbench.operations.data import DTYPES
from hpcbench.operations.functions import (
    TimedCall,
    line_in,
    load_functions,
    timed_call,
    wrong_elements,
)
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class Context:
    """What a benchmarked function gets as its first argument.

    Attributes:
        rank: this rank in the group under test, from 0.
        world_size: the ranks of that group.
        local_rank: this rank on its node.
        device: the `torch.device` of the case.
        dtype: the `torch.dtype` of the case.
        group: the process group under test, for `torch.distributed`.
    """

    def __init__(self, place: Place, dtype: str) -> None:
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
        self, *shape: int, value: float, dtype: torch.dtype | str | None = None,
    ) -> torch.Tensor:
        """Return a tensor on the device of one value."""
        return torch.full(shape, value, device=self.device, dtype=self._dtype(dtype))

    def global_rank(self, rank: int) -> int:
        """Return the rank in the job of a rank of the group, as torch wants roots and peers."""
        return self._place.global_rank(rank)

    def _dtype(self, dtype: torch.dtype | str | None) -> torch.dtype:
        if dtype is None:
            return self.dtype
        return DTYPES[dtype] if isinstance(dtype, str) else dtype


@dataclass(frozen=True)
class WrongResult:
    """What a function's own check found."""

    n_wrong: int
    words: str


class FunctionOperation:
    """A function of a file, ready to be called."""

    def __init__(self, name: str, place: Place, call: TimedCall) -> None:
        self.name, self.place = name, place
        self.run: Callable[[], object] = call.step
        self.prepare: Callable[[], object] = call.prepare or _nothing
        self.has_check = call.check is not None
        self._call = call

    def corrupt_output(self) -> None:
        """Fill the output with values that no call gives. Raises CaseError without one."""
        if self._call.output is None:
            raise CaseError(f"{self.name}: hpcbench.Case has no output that could be made wrong")
        self._call.output.fill_(-1)

    def check(self) -> WrongResult | None:
        assert self._call.check is not None
        try:
            count, words = wrong_elements(self._call.check())
        except AssertionError as error:
            count, words = 1, str(error).partition("\n")[0] or "an assertion of the check failed"
        return WrongResult(count, words) if count else None

    def answer(self) -> dict[str, Any]:
        """Return what the function says of one call on this rank."""
        given = {"flops": self._call.flops, "bytes": self._call.bytes,
                 "collective": self._call.collective or None}
        return {name: value for name, value in given.items() if value is not None}

    def close(self) -> None:
        """Drop what the function holds."""
        del self._call, self.run, self.prepare


def _nothing() -> None:
    """Restore nothing."""


class FunctionRunner(Runner):
    """Opens functions; a worker imports each file once."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], Mapping[str, Callable[..., Any]]] = {}

    @contextmanager
    def open(  # type: ignore[override]
        self, work: Workload, place: Place, *, validate: bool,
    ) -> Iterator[FunctionOperation]:
        """Give the operation of a function; errors of its file say in which line."""
        assert isinstance(work, FunctionCall)
        try:
            function = self._functions(work)[work.function]
            context = Context(place, work.dtype)
            returned = function(context, **arguments_of(function, work, place))
            yield FunctionOperation(work.function, place, timed_call(returned, work.function))
        except Exception as error:
            add_line(error, work.file)
            raise

    def _functions(self, work: FunctionCall) -> Mapping[str, Callable[..., Any]]:
        key = work.file, work.sha256
        if key not in self._files:
            self._files[key] = load_functions(*key)
        return self._files[key]


def arguments_of(
    function: Callable[..., Any], work: FunctionCall, place: Place,
) -> dict[str, object]:
    """Return the arguments beside the context: its own, and those of all cases that it takes."""
    passed = {"dtype": work.dtype, "device": place.device, "world_size": place.world_size}
    taken = inspect.signature(function).parameters
    return {**{name: value for name, value in passed.items() if name in taken},
            **dict(work.arguments)}


def add_line(error: Exception, path: str) -> None:
    """Put the innermost line of a file that an error passed behind the first line of its text."""
    line = line_in(error, path)
    if line and not isinstance(error, OSError):
        first, newline, rest = str(error).partition("\n")
        error.args = (f"{first} ({Path(path).name}:{line}){newline}{rest}",)


