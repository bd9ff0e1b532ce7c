"""A primitive as the measuring loop sees it: prepare, run, check."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.registry import installed
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected, compare
from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.operations.check import Mismatch
from hpcbench.operations.place import Place


class PrimitiveOperation:
    """One implementation of a primitive on its own operands."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        self.name = spec.name
        self.place = place
        classes = installed().classes(spec.primitive, spec.implementation)
        if classes is None:
            raise CaseError(f"{spec.implementation} of {spec.primitive} is not installed on this "
                            "rank; install the plug-in that offers it on every node")
        inputs_path, runner_path = classes
        inputs = _named(inputs_path)(spec, place)
        self._implementation: Implementation[Any] = _named(runner_path)(inputs)
        self._inputs = inputs
        self._expected: Expected | None = None

    @property
    def output(self) -> torch.Tensor:
        """Return what the last call ended with."""
        return self._implementation.output

    def prepare(self) -> None:
        """Wipe every buffer that the next call fills; put back what it changes in place."""
        for buffer in self._implementation.scratch:
            buffer.fill_(float("nan"))
        self._implementation.restore()

    def run(self) -> None:
        """Do it once."""
        self._implementation.run()

    def spoil(self) -> None:
        """Make one element of the output wrong, for tests of the check."""
        output = self.output
        if output.numel():
            output[(-1,) * output.dim()] = float("nan")

    def check(self) -> Mismatch | None:
        """Compare the output of the last call with the reference, which is made the first time."""
        if self._expected is None:
            self._expected = self._inputs.expected(self._implementation.part)
        return compare(self.output, self._expected)


def _named(path: str) -> Any:
    """Return the class at ``module:class``."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{path} cannot be loaded: {error}") from error
