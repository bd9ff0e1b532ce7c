"""How the bound of the overlap is judged; tests/mpi/test_benchmarks.py runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FREE_BY_GLOO = "together by gloo"
LONGER_S = 0.04 * np.array([1.0, 1.02, 0.98, 1.01])


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module, with its folder on the path, as Python has it for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "path", [*sys.path])
    import overlap_bound
    return overlap_bound


def turns(
    bound: Any, free: float, overlapped: float, again: float = 1.0, order: str = "RS_after",
) -> Any:
    """Return turns in which these take by gloo so many times the product, the longer part."""
    variants = bound.ORDERS[order]
    times = dict.fromkeys(variants.names, 0.9) | {
        bound.PRODUCT: 1.0, bound.AGAIN: again,
        **dict.fromkeys(variants.by_gloo, overlapped), FREE_BY_GLOO: free,
        **dict.fromkeys(variants.by_sockets, 1.09)}
    times_s = {name: LONGER_S * factor for name, factor in times.items()}
    return bound.Turns(variants, times_s, times_s)


@pytest.mark.parametrize(("best", "free", "overlapped", "again", "says"), [
    (1.14, 1.00, 1.10, 1.0, "met"),
    (1.19, 1.00, 1.10, 1.0, "missed"),
    (1.30, 1.20, 1.25, 1.0, "by gloo 1.200 (1.200..1.200), by sockets 1.090 (1.090..1.090)  limit"),
    (1.30, 1.28, 1.25, 1.0, "by gloo 1.250 (1.250..1.250), by sockets 1.090 (1.090..1.090)  limit"),
    (1.30, 1.10, 1.25, 1.0, "missed"),
    (1.30, 1.25, 1.10, 1.0, "missed"),
    (1.30, 1.20, 1.25, 1.2, "missed"),
    (1.30, 0.80, 0.80, 1.0, "missed")])
def test_a_miss_is_excused_by_a_floor_above_the_goal_alone(
    bound: Any, best: float, free: float, overlapped: float, again: float, says: str,
) -> None:
    measured = turns(bound, free, overlapped, again)
    text, reached = bound.judge(bound.Best("p2p_ring", best, measured.chance), measured)
    assert says in text and reached is (says != "missed"), text


def test_sums_are_judged_by_their_own_variants(bound: Any) -> None:
    variants = bound.ORDERS["AR_after"]
    assert len(set(variants.names)) == len(variants.names)
    assert {*variants.by_gloo, *variants.by_sockets, variants.communication} < {*variants.names}
    measured = turns(bound, 1.2, 1.25, order="AR_after")
    text, reached = bound.judge(bound.Best("chunked", 1.5, measured.chance), measured)
    assert reached and "by gloo 1.200" in text


def test_the_longer_part_is_the_longer_one_of_each_pass(bound: Any) -> None:
    found = turns(bound, 1.0, 1.0)
    found.times_s[found.variants.communication][:] = LONGER_S * [2, 1, 1, 1]
    assert found.over_longer(FREE_BY_GLOO).mean == pytest.approx(2 ** -0.25)
    assert found.over_longer(FREE_BY_GLOO, bound.SOCKETS).mean == pytest.approx(1)


@pytest.mark.parametrize(("order", "coarsest_fine"), [
    ("AG_before", 16), ("AG_after", 16), ("RS_after", 8), ("AR_after", 16)])
def test_chunks_are_fine_by_the_bytes_of_their_messages(
    bound: Any, order: str, coarsest_fine: int,
) -> None:
    (problem,) = (item for item in bound.PROBLEMS if item.order == order)
    assert [problem.is_fine(chunks) for chunks in (None, coarsest_fine // 2, coarsest_fine)] == [
        False, False, True]


def test_every_order_has_implementations_that_are_run(bound: Any) -> None:
    from hpcbench.config.load import check_config
    from hpcbench.plan.expand import make_plan

    for problem in bound.PROBLEMS:
        block = problem.block(problem.overlapping)
        plan = make_plan(check_config({"benchmarks": [block]}, "here"), 2)
        assert [case.skip for case in plan.cases if case.skip] == [], problem
