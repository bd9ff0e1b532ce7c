"""Slow links and slow nodes: which set is named, which is not, and when nothing can tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hpcbench.analysis.machine import (
    HOST,
    LINK,
    ONE_WAY,
    RANK,
    SlowSet,
    Suspects,
    cells_of,
    slow_links,
    slow_ranks,
    whole_hosts,
)

HOSTS = np.arange(8) // 2
APART = HOSTS[:, None] != HOSTS[None, :]


def suspects(slow: np.ndarray, *, each_way: bool = True, ranks: int = 8, passes_n: int = 5,
             disturbed: Sequence[int] = ()) -> Suspects[SlowSet]:
    random = np.random.default_rng(1)
    passes = np.where(APART, 1e9, 1e10) * np.exp(random.normal(0, 0.01, (passes_n, 8, 8)))
    passes = np.where(slow, 0.7 * passes, passes)[:, :ranks, :ranks]
    for number in disturbed:  # all links but one, which is the slow one
        passes[number][~slow[:ranks, :ranks]] *= 0.4
    passes[:, np.eye(ranks, dtype=np.bool_)] = np.nan
    some = slice(0, ranks)
    cells = cells_of(np.median(passes, axis=0), APART.astype(np.int64)[some, some], HOSTS[some],
                     [*passes], each_way=each_way)
    return slow_links(cells, 0.01, each_way=each_way)


def links(*some: tuple[int, int]) -> np.ndarray:
    slow = np.zeros((8, 8), np.bool_)
    for start, end in some:
        slow[start, end] = True
    return slow


def of_ranks(*ranks: int) -> np.ndarray:
    return np.isin(np.arange(8), ranks)[:, None] | np.isin(np.arange(8), ranks)[None, :]


@pytest.mark.parametrize(("slow", "each_way", "kind", "who"), [
    (links((1, 6)), True, ONE_WAY, (1, 6)),
    (links((1, 6), (6, 1)), True, LINK, (1, 6)),
    (links((1, 6), (6, 1)), False, LINK, (1, 6)),
    (of_ranks(3), True, RANK, (3,)),
    (of_ranks(2, 3) & APART, True, HOST, (1,)),
])
def test_the_smallest_set_that_explains_is_named(
    slow: np.ndarray, each_way: bool, kind: str, who: tuple[int, ...],
) -> None:
    (one,) = suspects(slow, each_way=each_way).found
    assert (one.kind, one.who) == (kind, who) and one.explained >= 0.8
    low, high = one.drop.ends
    assert low < one.drop.value < high and one.drop.value == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(("disturbed", "is_named"), [((), True), ((2,), True), ((2, 5), True),
                                                     ((2, 5, 6), False)])
def test_one_of_four_passes_may_be_disturbed(disturbed: tuple[int, ...], is_named: bool) -> None:
    found = suspects(links((0, 2)), ranks=4, passes_n=8, disturbed=disturbed).found
    assert [(one.kind, one.who) for one in found] == [(ONE_WAY, (0, 2))] * is_named


def test_a_rank_is_not_blamed_for_a_part_of_its_links() -> None:
    """Three of its seven links are slow, both ways: they are named one by one."""
    some = [(0, 2), (0, 4), (0, 6)]
    found = suspects(links(*some, *((end, start) for start, end in some))).found
    assert {(one.kind, one.who) for one in found} == {(LINK, one) for one in some}


def test_equal_links_name_nothing_and_too_few_ranks_are_inconclusive() -> None:
    clean = suspects(links())
    assert not clean.found and clean.detectable == pytest.approx(0.05, abs=0.02)
    assert suspects(links(), ranks=3) == Suspects((), None)


@pytest.mark.parametrize(("passes_n", "lasting", "rare"), [(3, 0.0, 1.5), (40, 0.05, 0.0)])
def test_noise_names_a_link_in_one_of_hundred_sweeps_at_most(
    passes_n: int, lasting: float, rare: float,
) -> None:
    """Drops beyond the least that matters are everywhere, and none is a cause.

    Noise of 5 % has two modes in each pass; or links differ by as much for good, so that passes
    agree."""
    random, named = np.random.default_rng(7), 0
    for _ in range(200):
        upper = rare * (random.random((passes_n, 8, 8)) < 0.1) + random.normal(0, lasting, (8, 8))
        passes = np.where(APART, 1e9, 1e10) * np.exp(
            random.normal(0, 0.05, (passes_n, 8, 8)) - upper)
        passes[:, np.eye(8, dtype=np.bool_)] = np.nan
        cells = cells_of(np.exp(np.log(passes).mean(axis=0)), APART.astype(np.int64), HOSTS,
                         [*passes], each_way=True)
        named += bool(slow_links(cells, 0.01, each_way=True).found)
    assert named <= 6  # with an error rate of 1 % more has a probability of 0.5 %


def test_slow_ranks_are_named_and_a_host_where_all_of_its_ranks_are() -> None:
    passes = np.exp(np.random.default_rng(1).normal(0, 0.01, (6, 16)))
    assert not slow_ranks(np.median(passes, axis=0)[None], passes, 0.01).found
    passes[:, [4, 5]] *= 0.8
    rates = np.median(passes, axis=0)[None]
    assert not slow_ranks(rates, passes[:0], 0.01).found
    found = slow_ranks(rates, passes, 0.01).found
    assert {one.rank for one in found} == {4, 5}
    hosts = [f"n{rank // 2}" for rank in range(16)]
    assert [*whole_hosts(found, hosts)] == ["n2"] and not whole_hosts(found[:1], hosts)
    assert slow_ranks(rates[:, :3], passes[:, :3], 0.01).detectable is None
