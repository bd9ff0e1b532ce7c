"""In which order implementations communicate and multiply, on which group, and nothing else.

One process of a world of torch's ``fake`` backend, which accepts all calls and moves nothing;
what torch dispatches is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from hpcbench.kinds.primitive.run.implementations import base
from hpcbench.kinds.primitive.run.implementations.base import PrimitiveOperation
from hpcbench.operations.place import Place
from workloads.primitive_ranks import ORDERS, Shape, workload_of

RANKS = 4
_SHAPE = Shape(m=32, n=16, k=48, ranks=RANKS)
_COLLECTIVES = {
    "_allgather_base_": "all_gather", "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "allreduce_": "all_reduce",
    "all_reduce": "all_reduce", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "send": "send", "recv_": "recv",
}
_WAITING = ("wait_tensor", "_wrap_tensor_autograd")
_LETTERS = {"all_gather": "G", "reduce_scatter": "R", "all_reduce": "A", "all_to_all": "T",
            "send": "s", "recv": "r", "mm": "m"}


@dataclass
class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records collectives, messages and products in the order in which they are started."""

    names: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        namespace, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if namespace == "aten" and name in ("mm", "bmm"):
            self.names.append("mm")
        elif namespace in ("c10d", "_c10d_functional") and name not in _WAITING:
            self.names.append(_COLLECTIVES[name])
            self.groups |= {_group_name(arg) for arg in args if _is_group(arg)}
        return func(*args, **(kwargs or {}))

    @property
    def letters(self) -> str:
        """Return a letter for each: G, R, A, T are collectives, s and r messages, m a product."""
        return "".join(_LETTERS[name] for name in self.names)


def _is_group(arg: Any) -> bool:
    if isinstance(arg, torch.ScriptObject):
        return "ProcessGroup" in str(arg._type())
    return isinstance(arg, (str, dist.ProcessGroup)) and arg not in ("sum", "SUM")


def _group_name(arg: Any) -> str:
    if isinstance(arg, str):
        return arg
    group = arg if isinstance(arg, dist.ProcessGroup) else dist.ProcessGroup.unbox(arg)
    return str(group.group_name)


@pytest.fixture
def group() -> Iterator[Any]:
    """Open a group that is not the default one, as the group under test never is."""
    # registers the backend; torch has no public name for it
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=RANKS)
    yield dist.new_group(list(range(RANKS)), backend="fake")
    dist.destroy_process_group()


def recorded(
    group: Any, primitive: str, order: str, name: str, *, messages: bool = False, **options: Any,
) -> Recorder:
    """Set a primitive up, and return what one call of it does after a first one.

    It must call what the plan says, or, if it is told to, send messages only.
    """
    workload = workload_of(primitive, order, "fp32", _SHAPE, name, **options)
    operation = PrimitiveOperation(workload, Place(0, RANKS, group, torch.device("cpu")))
    operation.run()
    with Recorder() as recorder:
        operation.run()
    communicated = {"send_recv" if name in ("send", "recv") else name
                    for name in recorder.names if name != "mm"}
    assert communicated == ({"send_recv"} if messages else set(workload.calls))
    assert recorder.groups == {group.group_name}
    return recorder


IN_TURN = {
    ("tp_columnwise", "AG_before"): "Gm", ("tp_columnwise", "AG_after"): "mG",
    ("tp_rowwise", "RS_after"): "mR", ("tp_rowwise", "AR_after"): "mA",
    ("tp_mlp", "sequence_parallel"): "GmmR", ("tp_mlp", "AR_after"): "mmA",
    ("dp_allreduce", "AR_after"): "mmmmA", ("ep_all_to_all", "dispatch_combine"): "TmT",
}
PIPELINED = {
    ("tp_columnwise", "AG_before"): "GGGGmmmmm", ("tp_columnwise", "AG_after"): "mGmGmGmG",
    ("tp_rowwise", "RS_after"): "mRmRmRmR", ("tp_rowwise", "AR_after"): "mAmAmAmA",
    ("tp_mlp", "sequence_parallel"): "GGmmRGmmRGmmRmmR", ("tp_mlp", "AR_after"): "mmAmmAmmAmmA",
    ("dp_allreduce", "AR_after"): "mAmAmAmA",
    ("ep_all_to_all", "dispatch_combine"): "TTmTTmTTmTmT",
}
"""Of 4 chunks: the next one's communication has begun when a product begins."""
ONE_CHUNK = IN_TURN | {("tp_columnwise", "AG_before"): "Gmm"}
"""Nothing is overlapped but the product of the own rows, which need no gathering."""
BY_MESSAGES = {
    ("tp_columnwise", "AG_before"): "r" * 12 + "s" * 12 + "mmmmm",
    ("tp_columnwise", "AG_after"): "r" * 12 + "msss" * 4,
    ("tp_rowwise", "RS_after"): "r" * 12 + "msss" * 4 + "m",
    ("tp_mlp", "sequence_parallel"): "r" * 24 + "s" * 12 + "m" + "mmsss" * 4 + "m",
}
"""The same of rank 0 of 4, each of which sends to 3; the own rows come first or last."""
RING = {
    ("tp_columnwise", "AG_before"): "rsm" "rsm" "rsm" "m",
    ("tp_columnwise", "AG_after"): "m" "rsm" "rsrsm" "rsrsrsm" "rsrsrs" "rsrs" "rs",
    ("tp_rowwise", "RS_after"): "m" "rsm" "rsm" "rsm",
    ("tp_mlp", "sequence_parallel"): "rsm" "rsmm" "rsrsmm" "rsmm" "rsm",
}


@pytest.mark.parametrize(("primitive", "order"), ORDERS)
@pytest.mark.parametrize("name", ["torch", "functional"])
def test_one_after_the_other(group: Any, primitive: str, order: str, name: str) -> None:
    found = recorded(group, primitive, order, name)
    assert found.letters == IN_TURN[primitive, order]


@pytest.mark.parametrize(("primitive", "order"), ORDERS)
def test_the_next_chunk_is_under_way_before_a_product_begins(
    group: Any, primitive: str, order: str,
) -> None:
    assert recorded(group, primitive, order, "chunked_pipeline",
                    chunks=4).letters == PIPELINED[primitive, order]
    assert recorded(group, primitive, order, "chunked_pipeline",
                    chunks=1).letters == ONE_CHUNK[primitive, order]


@pytest.mark.parametrize(("primitive", "order"), list(BY_MESSAGES))
def test_receives_are_posted_before_anything_is_sent(
    group: Any, primitive: str, order: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on gloo, which cannot be asked what it does without other ranks."""
    monkeypatch.setattr(base, "by_messages", lambda _place: True)
    assert recorded(group, primitive, order, "chunked_pipeline", messages=True,
                    chunks=4).letters == BY_MESSAGES[primitive, order]


@pytest.mark.parametrize(("primitive", "order"), list(RING))
def test_blocks_travel_while_others_are_multiplied(
    group: Any, primitive: str, order: str,
) -> None:
    assert recorded(group, primitive, order, "p2p_ring").letters == RING[primitive, order]


@pytest.mark.parametrize(("primitive", "order"), [
    pair for pair in ORDERS if pair[0] != "ep_all_to_all"])
def test_placements_cost_the_planned_collectives_and_no_more(
    group: Any, primitive: str, order: str,
) -> None:
    workload = workload_of(primitive, order, "fp32", _SHAPE, "dtensor")
    operation = PrimitiveOperation(workload, Place(0, RANKS, group, torch.device("cpu")))
    with CommDebugMode() as counted:
        operation.run()
    names = {_COLLECTIVES[call.__name__]: number
             for call, number in counted.get_comm_counts().items() if number}
    assert names == dict.fromkeys(workload.calls, 1)


@pytest.mark.parametrize(("name", "primitive", "order"), [
    (name, *pair) for name in ("torch", "functional", "dtensor") for pair in ORDERS
    if (name, pair[0]) != ("dtensor", "ep_all_to_all")])
def test_nothing_of_an_earlier_output_can_pass_for_the_next_one(
    group: Any, name: str, primitive: str, order: str,
) -> None:
    """The allocator may hand the next call the memory of what the last one returned."""
    workload = workload_of(primitive, order, "fp32", _SHAPE, name)
    operation = PrimitiveOperation(workload, Place(0, RANKS, group, torch.device("cpu")))
    operation.prepare()
    operation.run()
    returned = operation.output
    returned.fill_(1)
    operation.prepare()
    assert returned.isnan().all()
