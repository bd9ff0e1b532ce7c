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

from hpcbench.measurement.control import CAPACITY, SharedControl, bytes_of
from hpcbench.measurement.process import shared_memory


@contextmanager
def controls(ranks: int, timeout_s: float = 20) -> Iterator[list[SharedControl]]:
    """Give the control of each rank, as threads of this process may use them."""
    fd = shared_memory("test-control")
    try:
        os.ftruncate(fd, bytes_of(ranks))
        yield [SharedControl(fd, rank, ranks, timeout_s) for rank in range(ranks)]
    finally:
        os.close(fd)


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
