"""The runner of tests of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from hpcbench.kinds.hardware.plan.test import HardwareWork
from hpcbench.kinds.kind import Runner
from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload

_OPERATIONS: Mapping[str, str] = MappingProxyType({
    "gemm": ".gemm:GemmOperation",
    "pairs": ".pairs:PairsOperation",
})
"""Test -> the class that runs it, which takes the workload, the place and whether to check."""


class HardwareRunner(Runner):
    """Opens tests of the machine."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Allocate what a test needs on this rank."""
        assert isinstance(work, HardwareWork)
        module, _, name = _OPERATIONS[work.test].partition(":")
        operation: type = getattr(import_module(module, __package__), name)
        return operation(work, place, validate=validate)  # type: ignore[no-any-return]
