"""A primitive as the measuring loop sees it: prepare, run, check; and what opens it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.kind import Runner
from hpcbench.kinds.primitive.plan.registry import installed
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.kinds.primitive.run.inputs import Inputs
from hpcbench.kinds.primitive.run.operands import Expected, compare
from hpcbench.operations.data import Mismatch
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


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
        self._inputs: Inputs = _named(inputs_path)(spec, place)
        self._implementation: Implementation[Any] = _named(runner_path)(self._inputs)
        self._expected: Expected | None = None

    @property
    def output(self) -> torch.Tensor:
        return self._implementation.output

    def prepare(self) -> None:
        """Wipe every buffer that the next call fills; put back what it changes in place."""
        for buffer in self._implementation.scratch:
            buffer.fill_(float("nan"))
        self._implementation.restore()

    def run(self) -> None:
        self._implementation.run()

    def spoil(self) -> None:
        output = self.output
        if output.numel():
            output[(-1,) * output.dim()] = float("nan")

    def check(self) -> Mismatch | None:
        """Compare the output of the last call with the reference, which is made the first time."""
        if self._expected is None:
            self._expected = self._inputs.expected(self._implementation.part)
        return compare(self.output, self._expected)


class PrimitiveRunner(Runner):
    """Opens primitives. Plug-ins are found when it is made: in the template, before workers are."""

    def __init__(self) -> None:
        installed()

    def open(self, work: Workload, place: Place, *, validate: bool) -> PrimitiveOperation:
        assert isinstance(work, Primitive)
        return PrimitiveOperation(work, place)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{path} cannot be loaded: {error}") from error
