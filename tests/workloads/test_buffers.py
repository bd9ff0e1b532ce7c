"""Buffers of calls: sets in turn, out of place, cold, and compared element for element."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hpcbench.kinds.collective.plan import Collective
from hpcbench.kinds.collective.run import CollectiveRunner, Operation, Rotation
from hpcbench.kinds.hardware.plan.pairs import Pairs
from hpcbench.kinds.hardware.run.pairs import Places
from hpcbench.operations.collectives import COLD_BYTES
from hpcbench.operations.data import _PIECE, compare
from hpcbench.operations.place import Buffers, Place

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


COUNT = 6


class _Lane:
    """A group of one rank, whose call may also do something to what it reads."""

    def __init__(self, damage: Callable[[torch.Tensor], object]) -> None:
        self.damage = damage
        self.seen: list[Buffers] = []

    def prepared(self, collective: str, buffers: Buffers) -> Callable[[], object]:
        self.seen.append(buffers)

        def call() -> None:
            assert buffers.output is not None
            if buffers.source is not None:
                buffers.output.copy_(buffers.source)
                self.damage(buffers.source)
        return call


def opened(lane: _Lane, *, in_place: bool) -> Any:
    spec = Collective(
        collective="all_reduce", dtype="fp32", op="sum", root=None, in_place=in_place,
        requested_bytes=4 * COUNT, size_bytes=4 * COUNT, count=COUNT)
    place = Place(0, 1, lane, torch.device("cpu"))
    return CollectiveRunner().open(spec, place, validate=True)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_right_call_is_right_again_and_again(in_place: bool) -> None:
    lane = _Lane(lambda _: None)
    operation = opened(lane, in_place=in_place)
    for _ in range(2):
        operation.prepare()
        operation.run()
        assert operation.check() is None
    (given,) = lane.seen
    assert (given.source is None) is in_place
    operation.corrupt_output()
    assert operation.check().n_wrong == 1


def test_an_input_that_is_changed_out_of_place_is_wrong() -> None:
    operation = opened(_Lane(lambda source: source[2:4].add_(1)), in_place=False)
    operation.prepare()
    operation.run()
    wrong = operation.check()
    assert (wrong.n_wrong, wrong.first_index) == (2, 2)


def test_an_output_that_is_not_written_out_of_place_is_wrong() -> None:
    operation = opened(_Lane(lambda _: None), in_place=False)
    operation.prepare()
    assert operation.check().n_wrong == COUNT


def test_labels_distinguish_the_forms() -> None:
    words = [opened(_Lane(lambda _: None), in_place=form).spec.label(4).words
             for form in (True, False)]
    assert "out_of_place" not in words[0] and "out_of_place" in words[1]


class NumberedBuffers:
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


def rotation(sets: int) -> tuple[Any, list[NumberedBuffers], list[str]]:
    log: list[str] = []
    buffers = [NumberedBuffers(number, log) for number in range(sets)]
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


NAN = float("nan")


@pytest.mark.parametrize("count", [0, 1, _PIECE, _PIECE + 1, 2 * _PIECE + 5])
def test_equal_outputs_have_no_mismatch(count: int) -> None:
    whole = torch.arange(count, dtype=torch.float32)
    assert compare(whole.clone(), whole) is None
    assert compare(whole.to(torch.float64), whole) is None  # other dtypes: no shortcut


@pytest.mark.parametrize("at", [0, _PIECE - 1, _PIECE, 2 * _PIECE + 4])
def test_one_wrong_element_is_found_wherever_pieces_end(at: int) -> None:
    expected = torch.zeros(2 * _PIECE + 5)
    got = expected.clone()
    got[at] = 3
    found = compare(got, expected)
    assert found and (found.n_wrong, found.first_index, found.got) == (1, at, "3.0")
    assert found.n_elements == len(expected)


def test_wrong_elements_of_all_pieces_are_counted() -> None:
    expected = torch.zeros(3, _PIECE)
    found = compare(expected + 1, expected)
    assert found and (found.n_wrong, found.first_index) == (3 * _PIECE, 0)


@pytest.mark.parametrize("same", [False, True])
def test_nan_is_never_right(same: bool) -> None:
    expected = torch.tensor([1.0, NAN, 2.0])
    found = compare(expected if same else expected.clone(), expected)
    assert found and (found.n_wrong, found.first_index) == (1, 1)


def test_what_is_not_equal_may_still_be_close_enough() -> None:
    expected = torch.full((5,), 1.0)
    near = expected + torch.finfo(torch.float32).eps
    assert compare(near, expected, ulps=1) is None
    found = compare(near, expected)
    assert found and found.n_wrong == 5
