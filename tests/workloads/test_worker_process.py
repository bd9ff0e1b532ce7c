"""A worker's process: between two cases, its meshes, patches, and the calls it sees."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpcbench import worker
from hpcbench.backends.counting_backend import CallLog, CountingGroup
from hpcbench.backends.devices import CpuDevice
from hpcbench.backends.process_state import changed, process_state
from hpcbench.backends.python_group import GroupCall, called, watched
from hpcbench.config.load import check_config
from hpcbench.kinds.primitive.run.implementations.dtensor import Rowwise
from hpcbench.kinds.training.run.runner import StepCounter
from hpcbench.kinds.training.run.strategies.base import row_of
from hpcbench.launch.messages import CaseAnswer, CaseRequest, JoinRequest, StoreAnswer, StoreRequest
from hpcbench.launch.start import Watchdog
from hpcbench.measurement.control import SharedProgress
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan
from hpcbench.trace.clock import ClockModel
from workloads.primitive_ranks import Shape, ranks_of
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


def test_what_torch_puts_in_the_place_of_its_own_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = process_state()
    (folder,) = map(Path, torch.__path__)
    names: dict[str, object] = {}
    exec(compile("def wrapper(*seed): pass", str(folder / "_dynamo/eval_frame.py"), "exec"), names)
    monkeypatch.setattr(torch, "manual_seed", names["wrapper"])
    assert changed(before, process_state()) == ""

    @functools.wraps(dist.all_reduce)
    def own(*tensors: object) -> None:
        pass

    monkeypatch.setattr(dist, "all_reduce", own)
    assert changed(before, process_state()) == "torch.distributed.all_reduce"


def test_threads_of_a_case_are_left_behind_and_those_of_ours_are_not() -> None:
    before, over = process_state(), threading.Event()
    with Watchdog(60.0, lambda late_s: None):
        assert changed(before, process_state()) == ""
    left = threading.Thread(target=over.wait)
    left.start()
    assert changed(before, process_state()) == "Python's threads"
    over.set()
    left.join()
    assert changed(before, process_state()) == ""


def test_memory_that_a_case_left_is_given_back_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Device(CpuDevice):
        def give_back(self) -> None:
            log.append("given back")

    monkeypatch.setattr(worker, "open_device", lambda name, gpu: Device())
    cases = make_plan(check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "size": [8, 16, 32], "iterations": 2,
         "backend": "gloo"}]}, "test"), 1).cases
    one = worker.Worker(SharedProgress.create(9))
    try:
        store = one.answer(StoreRequest("127.0.0.1", (0,), 20.0))
        assert isinstance(store, StoreAnswer)
        one.answer(JoinRequest("127.0.0.1", store.port, 0, 1, 0, 1, None, 20.0))
        for number, case in enumerate(cases):
            answer = one.answer(CaseRequest(
                case, number, "cpu", (), ClockModel.identity(0), 1.0, 0.1))
            assert isinstance(answer, CaseAnswer), answer
            log.append(case.label)
    finally:
        one.abandon()
    assert log == [line for case in cases for line in ("given back", case.label)]


@pytest.fixture
def places() -> Iterator[list[Place]]:
    """Two groups of this process alone, as two backends have them."""
    with alone() as place:
        yield [Place(0, 1, dist.new_group([0]), place.device) for _ in range(2)]


def test_a_product_is_of_the_mesh_of_its_operands(places: list[Place]) -> None:
    for place in places:
        (inputs,) = ranks_of("tp_rowwise", "RS_after", "fp32", Shape(4, 4, 4, 1))
        inputs.place = place
        rowwise = Rowwise(inputs)
        product = rowwise._columns @ rowwise._weight
        assert product.device_mesh.get_group() is place.group


def test_what_is_sharded_by_a_strategy_is_of_its_group(places: list[Place]) -> None:
    for place in places:
        mesh = row_of(place, "shard")
        parts = [DTensor.from_local(torch.ones(4, 4), mesh, [placement], run_check=False)
                 for placement in (Shard(0), Replicate())]
        assert (parts[0] @ parts[1]).device_mesh.get_group() is place.group
