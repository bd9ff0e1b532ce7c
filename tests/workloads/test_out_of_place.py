"""All_reduce out of place, by a lane: a wrong output and a changed input are both seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hpcbench.kinds.collective.plan import Collective
from hpcbench.kinds.collective.run import CollectiveRunner
from hpcbench.operations.place import Buffers, Place

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
