"""Where messages between two ranks lie: cold ones in no cache, and what is compared stays."""

from __future__ import annotations

import pytest
import torch

from hpcbench.kinds.hardware.plan.pairs import Pairs
from hpcbench.kinds.hardware.run.pairs import Places
from hpcbench.operations.collectives import COLD_BYTES

MESSAGES, RANKS, POISON = 10, 4, 255


def places(cache: str, size: int = 2**20, ranks: int = RANKS) -> Places:
    work = Pairs("bandwidth", "one way", True, size, MESSAGES, cache=cache)
    return Places(work, ranks, torch.full((size,), 7, dtype=torch.uint8))


def starts(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("size", [1, 100, 2**20, 2**24 + 1])
@pytest.mark.parametrize("way", ["outgoing", "incoming"])
def test_a_cold_place_is_used_again_when_no_cache_holds_it(size: int, way: str) -> None:
    made, apart = places("cold", size, 2), -(-size // 128) * 128
    most = min(3 * COLD_BYTES // apart, 1000)
    taken: list[int] = []
    while len(taken) < most:
        taken += starts(made.outgoing(MESSAGES) if way == "outgoing"
                        else made.incoming(1, MESSAGES))
    uses = {start: [at for at, one in enumerate(taken) if one == start] for start in taken}
    between = [after - before for ats in uses.values()
               for before, after in zip(ats, ats[1:], strict=False)]
    assert all(number * apart >= COLD_BYTES for number in between)
    assert len({*taken[:MESSAGES]}) == MESSAGES
    assert all(abs(one - other) >= 128 for one, other in zip(taken, taken[1:], strict=False))


def test_places_of_great_messages_take_no_more_than_it_needs_to_be_cold() -> None:
    work = Pairs("bandwidth", "one way", True, 2**30, MESSAGES, cache="cold")
    assert work.places(RANKS, COLD_BYTES) == (2, 2 + RANKS - 1)


def test_warm_messages_share_a_place_but_not_with_another_rank() -> None:
    made = places("warm")
    assert len({*starts(made.outgoing(MESSAGES))}) == 1
    first, second = (starts(made.incoming(rank, MESSAGES)) for rank in (1, 2))
    assert len({*first}) == len({*second}) == 1 and first != second


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_what_a_rank_sent_last_stays_until_it_is_wiped(cache: str) -> None:
    made = places(cache, 2**24)  # places for as few messages as there may be
    for call in range(3):
        for rank in range(1, RANKS):
            for number, tensor in enumerate(made.incoming(rank, MESSAGES)):
                tensor[-1] = 20 * rank + number + call
        assert [int(made.last_of(rank)[-1]) for rank in range(1, RANKS)] == [
            20 * rank + MESSAGES - 1 + call for rank in range(1, RANKS)]


@pytest.mark.parametrize("calls", [1, 40])
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_message_that_is_lost_leaves_poison(cache: str, calls: int) -> None:
    made = places(cache)
    for _ in range(calls):
        for tensor in made.incoming(1, MESSAGES):
            tensor.fill_(1)
    made.wipe()
    for _ in range(40):
        for tensor in made.incoming(1, MESSAGES):
            assert (tensor.view(-1, 4096) == POISON).any(dim=1).all()
            assert [int(tensor[0]), int(tensor[-1])] == [POISON, POISON]


def test_a_short_message_is_wiped_as_a_whole_and_a_long_one_leaves_the_cache_alone() -> None:
    for size, written in ((8, 8), (5000, 4098), (2**20, 4096 + 255 + 1)):
        made = places("cold", size)
        for tensor in made.incoming(1, MESSAGES):
            tensor.fill_(1)
        last = made.last_of(1)
        made.wipe()
        assert int((last == POISON).sum()) == written
