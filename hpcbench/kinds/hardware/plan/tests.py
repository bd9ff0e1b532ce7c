"""The tests of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.kinds.hardware.plan.gemm import GEMM
from hpcbench.kinds.hardware.plan.pairs import PAIRS
from hpcbench.kinds.hardware.plan.storage import STORAGE
from hpcbench.kinds.hardware.plan.stream import STREAM
from hpcbench.kinds.hardware.plan.test import HardwareTest

TESTS: Mapping[str, HardwareTest] = MappingProxyType({test.name: test for test in (
    GEMM,
    STREAM,
    PAIRS,
    STORAGE,
)})
