"""Ranks of one node line up in memory that they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.measurement.control import (
    CAPACITY,
    SharedControl,
    SharedProgress,
    WorkerPhase,
    bytes_of,
)
from hpcbench.measurement.process import shared_memory


@contextmanager
def controls(ranks: int, timeout_s: float = 20) -> Iterator[list[SharedControl]]:
    """Give the control of each rank, as threads of this process may use them."""
    fd = shared_memory("test-control", bytes_of(ranks))
    try:
        yield [SharedControl(fd, rank, ranks, timeout_s) for rank in range(ranks)]
    finally:
        os.close(fd)


@pytest.mark.parametrize(("at", "word", "named"), [
    (0, 8, "case 8"), (1, -1, "iteration"), (2, 77, "phase 77"), (3, 9, "number of samples 9"),
    (3, -2, "number of samples"), (5, -1, "step"), (8, -1, "operation"),
    (16, 5, "sample 0"), (17, 0, "sample 0"), (17, 2**62, "sample 0"), (20, 1 << 20, "sample 0")])
def test_words_that_no_worker_writes_are_named_and_read_without_harm(
    at: int, word: int, named: str,
) -> None:
    progress = SharedProgress.create(4)
    try:
        progress.begin(7)
        progress.mark(WorkerPhase.RUN, 1)
        progress.stamp(0, 100, 120, -1, -1, 0)
        assert progress.problem(7, 90, 130) == ""
        os.pwrite(progress.fd, word.to_bytes(8, "little", signed=True), 8 * at)
        assert progress.problem(7, 90, 130).startswith(named) or named in progress.problem(
            7, 90, 130)
        assert (len(progress.rows()) <= 4 and progress.phase in WorkerPhase
                and isinstance(progress.wrong_operation, str))
        with pytest.raises(OSError):  # whoever reads it would end by SIGBUS
            os.ftruncate(progress.fd, 0)
    finally:
        progress.close()


def together(call: Callable[[SharedControl, int], Any], ranks: int) -> list[Any]:
    """Return what each rank's call gives."""
    with controls(ranks) as group, ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(call, group, range(ranks)))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 2 * CAPACITY + 1), max_size=8), st.integers())
def test_every_rank_gets_the_greatest_of_all(ranks: int, lengths: list[int], seed: int) -> None:
    draw = np.random.default_rng(abs(seed))
    given_values = [draw.integers(-2**62, 2**62, (ranks, length)) for length in lengths]

    def call(control: SharedControl, rank: int) -> list[Any]:
        return [control.maximum(values[rank]) for values in given_values]

    for got in together(call, ranks):
        for found, values in zip(got, given_values, strict=True):
            assert found.tolist() == values.max(axis=0).tolist()


def test_no_rank_leaves_a_barrier_before_all_have_come() -> None:
    rounds, came = 300, [0, 0, 0]

    def call(control: SharedControl, rank: int) -> bool:
        right = True
        for turn in range(rounds):
            came[rank] = turn + 1
            control.barrier()
            right &= min(came) >= turn + 1 and max(came) <= turn + 2
        return right

    assert together(call, 3) == [True] * 3


def test_values_of_one_exchange_do_not_reach_the_next() -> None:
    def call(control: SharedControl, rank: int) -> list[int]:
        return [int(control.maximum(np.array([-turn * 10 - rank]))[0]) for turn in range(200)]

    assert together(call, 2) == [[-turn * 10 for turn in range(200)]] * 2


def test_a_rank_that_does_not_come_ends_the_wait() -> None:
    with controls(2, timeout_s=0.05) as (first, _), \
            pytest.raises(RuntimeError, match=r"timed out: rank 1 did not line up in 0\.05 s"):
        first.barrier()
