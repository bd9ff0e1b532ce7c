"""The tests of the machine, their planner, and what sweep files can name of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hpcbench.config.section import Block
from hpcbench.kinds.hardware.block import KEYS, HardwareBlock
from hpcbench.kinds.hardware.plan.gemm import GEMM
from hpcbench.kinds.hardware.plan.pairs import PAIRS
from hpcbench.kinds.hardware.plan.test import STORAGE, STREAM, HardwareTest, HardwareWork
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.points import COMMON_AXES, assemble, common_points, listed_lengths

if TYPE_CHECKING:
    from hpcbench.config.schema import Config


TESTS: Mapping[str, HardwareTest] = MappingProxyType({test.name: test for test in (
    GEMM,
    STREAM,
    PAIRS,
    STORAGE,
)})


class HardwarePlanner(Planner):
    """Plans tests of the machine."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis; ``test`` counts the points of all tests."""
        assert isinstance(block, HardwareBlock)
        own = sum(math.prod(map(len, TESTS[name].axes(block).values())) for name in block.test)
        return {**listed_lengths(block, COMMON_AXES), "test": own}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, HardwareBlock)
        for name in block.test:
            for point in common_points(block, job):
                for draft in TESTS[name].drafts(block, point, job):
                    yield assemble(title, block, job, point, draft)

    def problems(self, block: Block) -> Iterator[str]:
        assert isinstance(block, HardwareBlock)
        return filter(None, (TESTS[name].problem(block) for name in block.test))

    def workload_from_json(self, data: Mapping[str, Any]) -> HardwareWork:
        """Rebuild a workload. Raises KeyError for a test that this version does not have."""
        return TESTS[data["test"]].work(**data)


def catalogue() -> dict[str, dict[str, Any]]:
    return {"hardware_tests": {
        test.name: {"meaning": test.meaning, "keys": list(KEYS[test.name])}
        for test in TESTS.values()}}
