"""The runner of tests of the machine."""

from __future__ import annotations

from hpcbench.kinds.hardware.plan.planner import TESTS
from hpcbench.kinds.hardware.plan.test import HardwareWork
from hpcbench.measurement.runner import Runner
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.plan.workload import Workload
from hpcbench.registry import load


class HardwareRunner(Runner):
    """Opens tests of the machine."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        assert isinstance(work, HardwareWork)
        operation: type = load(f".{TESTS[work.test].operation}", __package__)
        return operation(work, place, validate=validate)  # type: ignore[no-any-return]
