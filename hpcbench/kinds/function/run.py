"""The runner of functions, and the operation of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.measurement.runner import Runner
from hpcbench.operations import functions
from hpcbench.operations.context import Context, called, output_of
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class FunctionOperation:
    """A function of a file, ready to be called."""

    def __init__(self, name: str, place: Place, call: functions.TimedCall) -> None:
        self.name, self.place = name, place
        self.run: Callable[[], object] = call.step
        self.prepare: Callable[[], object] = call.prepare or _nothing
        self.has_check = call.check is not None
        self._call = call

    def corrupt_output(self) -> None:
        """Fill the output with values that no call gives. Raises CaseError without one."""
        output_of(self._call, self.name).fill_(-1)

    def check(self) -> functions.WrongResult | None:
        assert self._call.check is not None
        return functions.checked(self._call.check)

    def answer(self) -> dict[str, Any]:
        """Return the values that the function reports of one call on this rank."""
        flops, size = (value if value is None else float(value)
                       for value in (self._call.flops, self._call.bytes))
        given = {"flops": flops, "bytes": size,
                 "collective": self._call.collective or None}
        return {name: value for name, value in given.items() if value is not None}

    def close(self) -> None:
        """Release the objects of the function."""
        del self._call, self.run, self.prepare


def _nothing() -> None:
    """Restore nothing."""


class FunctionRunner(Runner):
    """Opens functions."""

    @contextmanager
    def open(  # type: ignore[override]
        self, work: Workload, place: Place, *, validate: bool,
    ) -> Iterator[FunctionOperation]:
        """Give the operation of a function; errors of its file name the line."""
        assert isinstance(work, FunctionCall)
        with functions.lines_of(work.file):
            function = functions.load_functions(work.file, work.sha256)[work.function]
            returned = called(function, Context(place, work.dtype), work.dtype, work.arguments)
            yield FunctionOperation(work.function, place,
                                    functions.timed_call(returned, work.function))
