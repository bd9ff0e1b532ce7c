"""Calls that take turns over sets of buffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcbench.kinds.collective.run import Operation, Rotation


class Buffers:
    """One set: whether it is fresh, and how often a used one was called."""

    name = "all_reduce"
    place = SimpleNamespace()

    def __init__(self, number: int, log: list[str]) -> None:
        self.number, self.log = number, log
        self.fresh, self.stale_calls = False, 0

    def prepare(self) -> None:
        self.log.append(f"restore {self.number}")
        self.fresh = True

    def run(self) -> None:
        self.log.append(f"call {self.number}")
        self.stale_calls += not self.fresh
        self.fresh = False

    def check(self) -> object:
        return self.number

    def corrupt_output(self) -> None:
        self.log.append(f"corrupt_output {self.number}")


def rotation(sets: int) -> tuple[Any, list[Buffers], list[str]]:
    log: list[str] = []
    buffers = [Buffers(number, log) for number in range(sets)]
    return Rotation(cast("list[Operation]", buffers)), buffers, log


def test_every_call_takes_the_next_set_and_all_are_restored_at_once() -> None:
    operation, sets, log = rotation(3)
    for _ in range(4):
        operation.prepare()
        operation.run()
    restored = [f"restore {number}" for number in range(3)]
    assert log == [*restored, "call 0", "call 1", "call 2", *restored, "call 0"]
    assert not any(one.stale_calls for one in sets)
    assert operation.check() == 0
    operation.corrupt_output()
    assert log[-1] == "corrupt_output 0"


@pytest.mark.parametrize("batch", [2, 3, 4, 7])
def test_a_single_call_after_batches_finds_its_set_restored(batch: int) -> None:
    operation, sets, log = rotation(3)
    for _ in range(5):
        operation.prepare()
        for _ in range(batch):
            operation.run()
    before = sum(one.stale_calls for one in sets)
    operation.prepare()
    operation.run()
    assert sum(one.stale_calls for one in sets) == before
    assert log[-1] == f"call {operation.check()}"
