"""Which calls of collectives are seen, of groups of torch's and of groups in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from hpcbench.backends.counting_backend import CallLog, CountingGroup
from hpcbench.backends.python_group import GroupCall, called, watched
from hpcbench.kinds.training.run.runner import StepCounter
from workloads.training_cases import alone


class Nested(CountingGroup):
    """A group whose coalesced call is several of its own."""

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None,
    ) -> Any:
        for output, part in zip(outputs, inputs, strict=True):
            done = self._allgather_base(output, part)
        return done


def test_a_call_within_a_call_is_none_of_its_own() -> None:
    group, found = Nested(0, 2, CallLog(counts=False), None), list[GroupCall]()
    pairs = [torch.zeros(4), torch.zeros(6)], [torch.zeros(2), torch.zeros(3)]
    with watched([group, group], found.extend):
        for _ in range(2):
            group.allgather_into_tensor_coalesced(*pairs)
        group.allreduce([torch.zeros(5)])
    group.allreduce([torch.zeros(5)])
    gathered = [GroupCall("all_gather", 16, 2), GroupCall("all_gather", 24, 2)]
    assert found == [*gathered, *gathered, GroupCall("all_reduce", 20, 2)]


@pytest.mark.filterwarnings("ignore")
def test_calls_of_torch_s_own_groups() -> None:
    two, four = torch.zeros(2), torch.zeros(2, 2)
    counter = StepCounter([])
    with alone() as place, counter:
        group = place.group
        dist.all_reduce(two)
        dist.broadcast(two, 0)
        dist.all_gather([two.clone()], two)
        dist.all_gather_into_tensor(two.clone(), two)
        dist.reduce_scatter_tensor(two.clone(), two)
        dist.barrier()
        functional.all_reduce(four, "sum", group).sum()
        functional.all_gather_tensor(four, 0, group).sum()
        functional.reduce_scatter_tensor(four, "sum", 0, group).sum()
        functional.all_to_all_single(four, None, None, group).sum()
    assert [(one.collective, one.size_bytes) for one in counter.calls[:10]] == [
        ("all_reduce", 8), ("broadcast", 8), ("all_gather", 8), ("all_gather", 8),
        ("reduce_scatter", 8), ("barrier", 0), ("all_reduce", 16), ("all_gather", 16),
        ("reduce_scatter", 16), ("all_to_all", 16)]
    assert {one.ranks for one in counter.calls} == {1} and counter.unknown == set()


def test_an_operation_that_is_not_known_is_named() -> None:
    with pytest.raises(KeyError, match="batch_p2p_ops"):
        called(torch.ops._c10d_functional.batch_p2p_ops.default, (), None)


def test_attention_s_second_scores_stand_apart() -> None:
    """2 products forward, 5 backward, of 2 x 8 x 8 x 4 FLOPs in 3 heads: one is of scores again."""
    queries, keys, values = (nn.Parameter(torch.randn(1, 3, 8, 4)) for _ in range(3))
    counter = StepCounter([queries])
    with counter:
        nn.functional.scaled_dot_product_attention(queries, keys, values).sum().backward()
    product = 3 * 2 * 8 * 8 * 4
    assert (counter.flops, counter.scores_again_flops) == (7 * product, product)
