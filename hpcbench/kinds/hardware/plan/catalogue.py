"""What sweep files can name of tests of the machine."""

from __future__ import annotations

from typing import Any

from hpcbench.kinds.hardware.plan.block import KEYS
from hpcbench.kinds.hardware.plan.tests import TESTS


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the tests, with what they measure and the keys that they read."""
    return {"hardware_tests": {
        test.name: {"meaning": test.meaning, "keys": list(KEYS[test.name])}
        for test in TESTS.values()}}
