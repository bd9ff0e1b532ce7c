"""Bandwidths against nccl-tests' definitions and a table of worked numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.kinds.collective.derive import bandwidth
from hpcbench.operations.collectives import busbw_factor
from results_factory import make_workload

GIB = 2**30
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
ONE_WAY = ("broadcast", "reduce", "send_recv")
# S = 1 GiB, t = 1 ms: n, all_reduce, the shared factor (n-1)/n; GB/s.
TABLE = [
    (1, 0.0, 0.0), (2, 1073.7418, 536.8709), (4, 1610.6127, 805.3064), (8, 1879.0482, 939.5241),
    (64, 2113.9292, 1056.9646), (72, 2117.6575, 1058.8287),
]


def gb_per_s(collective: str, n: int, time_s: float = 1e-3) -> tuple[float, float]:
    rates = bandwidth(make_workload(collective, GIB, world_size=n), n, time_s)
    return rates.algbw_bytes_per_s / 1e9, rates.busbw_bytes_per_s / 1e9


@pytest.mark.parametrize(("n", "all_reduce", "shared"), TABLE)
def test_worked_numbers(n: int, all_reduce: float, shared: float) -> None:
    assert gb_per_s("all_reduce", n) == pytest.approx((1073.7418, all_reduce), abs=5e-5)
    for collective in SHARED:
        assert gb_per_s(collective, n) == pytest.approx((1073.7418, shared), abs=5e-5)


@pytest.mark.parametrize("collective", ONE_WAY)
def test_one_way_collectives_count_once(collective: str) -> None:
    assert gb_per_s(collective, 8) == pytest.approx((1073.7418, 1073.7418), abs=5e-5)
    assert gb_per_s(collective, 1)[1] == 0.0


@pytest.mark.parametrize(("ranks", "groups", "busbw"), [(8, 1, 1.75), (8, 2, 1.5), (8, 4, 1.0)])
def test_of_several_groups_the_rate_is_that_of_one(ranks: int, groups: int, busbw: float) -> None:
    rates = bandwidth(replace(make_workload("all_reduce", GIB), groups=groups), ranks, 1.0)
    assert (rates.algbw_bytes_per_s, rates.busbw_bytes_per_s) == (GIB, busbw * GIB)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_uneven_parts_have_the_factor_of_even_ones(collective: str) -> None:
    work = replace(make_workload(collective, GIB), split="linear")
    rates = bandwidth(work, 4, 1.0)
    assert rates is not None and rates.busbw_bytes_per_s == 0.75 * GIB


def test_barrier_has_a_time_only() -> None:
    assert busbw_factor("barrier", 4) is None
    assert bandwidth(make_workload("barrier"), 4, 1e-5) is None


@pytest.mark.parametrize("time_s", [0.0, -1e-6, math.nan])
def test_a_time_that_is_not_positive_never_divides(time_s: float) -> None:
    assert bandwidth(make_workload(), 4, time_s) is None


def test_a_collective_that_is_not_installed_has_no_factor() -> None:
    assert busbw_factor("vanished", 4) is None


@given(
    collective=st.sampled_from(("all_reduce", *SHARED, *ONE_WAY)),
    n=st.integers(1, 10_000), size=st.integers(0, 2**45), time_s=st.floats(1e-9, 1e6),
)
def test_rates_are_finite_and_bounded(collective: str, n: int, size: int, time_s: float) -> None:
    rates = bandwidth(make_workload(collective, size, world_size=n), n, time_s)
    assert 0 <= rates.busbw_bytes_per_s <= 2 * rates.algbw_bytes_per_s < math.inf
