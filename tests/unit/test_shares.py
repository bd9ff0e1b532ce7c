"""Samples divided by speed: whole, bounded, and with the shortest longest time."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.step import (
    divide,
    most_share,
    uneven_shares,
)
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.expand import make_plan
from training_cases import make_training

DYNAMIC = (("balance", "dynamic"),)


def works() -> list[Training]:
    return [make_training(dp=dp, batch_size=batch, accumulation=parts, options=DYNAMIC)
            for dp, batch, parts in product((2, 3, 5), (2, 4, 7), (1, 2))
            if batch > parts and dp * batch <= 16]


@pytest.mark.parametrize("work", works(), ids=lambda work: f"{work.dp}x{work.batch_size}")
def test_shares_are_the_global_batch_within_bounds(work: Training) -> None:
    for costs in product((0.1, 1.0, 7.0), repeat=work.dp):
        shares = divide(work, costs)
        assert sum(shares) == work.global_batch
        assert work.accumulation <= min(shares) <= max(shares) <= most_share(work)
    assert divide(work, [3.0] * work.dp) == (work.batch_size,) * work.dp
    assert len(set(uneven_shares(work))) > 1


def test_no_other_division_has_a_shorter_step() -> None:
    work = make_training(dp=3, batch_size=4, options=DYNAMIC)
    for costs in ((1.0, 2.0, 3.0), (1.0, 1.0, 9.0), (5.0, 4.0, 3.9)):
        longest = [max(count * cost for count, cost in zip(shares, costs, strict=True))
                   for shares in product(range(1, 9), repeat=3) if sum(shares) == 12]
        found = divide(work, costs)
        assert max(n * cost for n, cost in zip(found, costs, strict=True)) == min(longest)


def test_half_as_fast_is_half_as_much() -> None:
    work = make_training(dp=2, batch_size=12, options=DYNAMIC)
    assert divide(work, (1.0, 2.0)) == (16, 8)
    assert divide(work, (1.0, 1e9)) == (23, 1)
    wide = make_training(dp=4, batch_size=8, accumulation=2, options=DYNAMIC)
    assert divide(wide, (1.0, 1e9, 1e9, 1e9)) == (16, 6, 5, 5)  # not more than twice its share


def planned(options: dict[str, Any], strategy: str = "data", **block: Any) -> Any:
    block = {"kind": "training", "model": "transformer-tiny", "strategies": {strategy: options},
             **block}
    (case,) = make_plan(check_config({"benchmarks": [block]}, "c.json"), 4).cases
    return case


@pytest.mark.parametrize(("block", "words"), [
    ({"world_size": 1}, "moves samples between replicas, of which there is one"),
    ({"batch_size": 2, "accumulation": 2}, "has nothing to move: each of 2 parts")])
@pytest.mark.parametrize("strategy", ["data", "zero1"])
def test_where_nothing_can_be_moved_is_a_skip(
    strategy: str, block: dict[str, Any], words: str,
) -> None:
    assert words in planned({"balance": "dynamic"}, strategy, **block).skip
    assert planned({"balance": "static"}, strategy, **block).skip is None


def test_speeds_are_exchanged_and_memory_is_that_of_the_largest_share() -> None:
    even, moved = (predict(training_of(planned({"balance": name}))).of_ranks[0]
                   for name in ("static", "dynamic"))
    assert [one.collective for one in moved.calls] == ["all_reduce", "all_gather"]
    assert (moved.calls[1].count, moved.calls[1].size_bytes) == (1, 8 * 4)
    assert moved.memory.activations == 2 * even.memory.activations
