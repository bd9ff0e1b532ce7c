"""The order of cases: shuffled by a seed, alike on every machine, backwards every other pass."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hpcbench.plan.case import planned_canary
from hpcbench.plan.order import assumed_rates, shuffled, turns
from synthetic import make_plan

CASES = make_plan(12).cases
FROZEN = (8, 2, 0, 1, 6, 4, 3, 9, 11, 7, 5, 10)


def ids(order: str, seed: int, number: int) -> list[int]:
    return [case.index for case in shuffled(CASES, order, seed, number)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_every_pass_runs_every_case_once(seed: int, number: int) -> None:
    assert sorted(ids("shuffled", seed, number)) == list(range(12))


@given(st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_the_second_pass_of_a_pair_is_the_first_one_backwards(seed: int, pair: int) -> None:
    assert ids("shuffled", seed, 2 * pair + 1) == ids("shuffled", seed, 2 * pair)[::-1]


def test_pairs_and_seeds_differ_and_the_planned_order_stays() -> None:
    assert ids("planned", 0, 5) == list(range(12))
    orders = {tuple(ids("shuffled", seed, number)) for seed in range(3) for number in (0, 2, 4)}
    assert len(orders) == 9


def test_the_order_of_a_seed_never_changes() -> None:
    """Old results are checked against it (HB135)."""
    assert ids("shuffled", 7, 4) == list(FROZEN)


def test_turns_count_the_passes_of_all_launches() -> None:
    assert [(turn.launch, turn.pass_index, turn.number) for turn in turns(2, 3)] == [
        (0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4), (1, 2, 5)]


def test_the_rates_of_estimates_and_the_nodes_that_they_are_for() -> None:
    gpu = replace(planned_canary(16), device="cuda")
    declared = {"network_bandwidth_gbps": 400, "num_devices": 8, "device_type": "cuda"}
    for hardware, text in (({}, "10 GB/s between ranks on one node or more"),
                           (declared, "50 GB/s between ranks on 2 nodes"),
                           ({**declared, "num_devices": 16}, "10 GB/s between ranks on 1 node")):
        (rates,) = assumed_rates([gpu], hardware)
        assert text in rates and rates.startswith("cuda 100,000 GFLOP/s a rank, ")
