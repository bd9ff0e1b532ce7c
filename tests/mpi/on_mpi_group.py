"""Run under mpirun: backend mpi against gloo on the same input, and training steps on it."""

from __future__ import annotations

import copy
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.groups import open_groups
from hpcbench.backends.mpi_buffers import Counting, DirectGroup, Staging, staging_of
from hpcbench.backends.mpi_group import MpiGroup, register_mpi
from hpcbench.operations.place import Buffers

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
OPS = {name: getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "MIN", "MAX")}
REDUCIBLE = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8]


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return small whole numbers, exact in any dtype and order, other ones on every rank."""
    generator = torch.Generator().manual_seed(100 * RANK + seed)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def reductions(group: Any, dtype: torch.dtype, op: Any) -> list[torch.Tensor]:
    every, some, own = values(7, dtype=dtype), values(5, dtype=dtype), torch.zeros(3, dtype=dtype)
    dist.all_reduce(every, op, group=group)
    dist.reduce(some, 0, op, group=group)
    dist.reduce_scatter(own, list(values(SIZE, 3, dtype=dtype)), op, group=group)
    return [every, *([some] if RANK == 0 else []), own]


def movements(group: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    root = SIZE - 1
    gathered = [torch.zeros(4, dtype=dtype) for _ in range(SIZE)]
    at_root = [torch.zeros(2, 2, dtype=dtype) for _ in range(SIZE)] if root == RANK else None
    scattered, exchanged = torch.zeros(3, dtype=dtype), torch.zeros(2 * SIZE, dtype=dtype)
    strided = values(3, 4, dtype=dtype).t()
    received, sent = torch.zeros(6, dtype=dtype), values(6, dtype=dtype)
    dist.all_gather(gathered, values(4, dtype=dtype), group=group)
    dist.gather(values(2, 2, dtype=dtype), at_root, root, group=group)
    dist.scatter(scattered, list(values(SIZE, 3, dtype=dtype)) if root == RANK else None, root,
                 group=group)
    dist.all_to_all_single(exchanged, values(2 * SIZE, dtype=dtype), group=group)
    dist.broadcast(strided, 0, group=group)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, NEXT, group),
                                           dist.P2POp(dist.irecv, received, BEFORE, group)]):
        request.wait()
    return [*gathered, *(at_root or []), scattered, exchanged, strided, received]


def uneven(group: Any) -> list[torch.Tensor]:
    """Exchange rows of which some ranks have none; rank s sends (s + d) % 3 rows to rank d."""
    give = [(RANK + other) % 3 for other in range(SIZE)]
    source, output = values(sum(give), 2), torch.zeros(sum(give), 2)
    dist.all_to_all_single(output, source, give, give, group=group)
    return [output]


def only_here(group: Any) -> None:
    """Check what gloo does not have against its definition."""
    parts = [torch.zeros(rank, dtype=torch.int64) for rank in range(SIZE)]
    dist.all_gather(parts, torch.full((RANK,), RANK), group=group)
    assert [part.tolist() for part in parts] == [[rank] * rank for rank in range(SIZE)]
    outputs = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_to_all(outputs, [torch.tensor([10.0 * RANK + to]) for to in range(SIZE)], group=group)
    assert [item.item() for item in outputs] == [10.0 * other + RANK for other in range(SIZE)]
    mine = torch.zeros(RANK)
    dist.reduce_scatter(mine, [torch.ones(rank) for rank in range(SIZE)], group=group)
    assert mine.tolist() == [SIZE] * RANK
    mean = torch.full((2,), float(RANK))
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    assert mean.tolist() == [(SIZE - 1) / 2] * 2
    slots = torch.arange(2.0 * SIZE)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    slots[2 * RANK:2 * RANK + 2] += 100
    gather(slots, slots[2 * RANK:2 * RANK + 2], group=group)
    assert slots.tolist() == [100.0 + value for value in range(2 * SIZE)]
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(slots[2 * RANK:2 * RANK + 2], slots, group=group)
    assert slots[2 * RANK].item() == SIZE * (100.0 + 2 * RANK)
    flags = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(flags, group=group)
    assert flags.tolist() == [True, True, False]
    coalesced(group)
    anysource(group)
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    assert work.is_completed() and work.wait()
    assert work.get_future().wait()[0].tolist() == [SIZE] * 2


def coalesced(group: Any) -> None:
    first, second = torch.ones(2), torch.full((3,), 2.0)
    work = group.allreduce_coalesced([first, second])
    assert work.wait() and (first[0].item(), second[0].item()) == (SIZE, 2 * SIZE)
    outputs = [torch.zeros(SIZE), torch.zeros(2 * SIZE)]
    group.allgather_into_tensor_coalesced(outputs, [torch.tensor([1.0 * RANK]), torch.ones(2)])
    assert outputs[0].tolist() == [float(rank) for rank in range(SIZE)]
    total = torch.zeros(1)
    options = dist.ReduceScatterOptions()
    group.reduce_scatter_tensor_coalesced([total], [torch.arange(1.0 * SIZE)], options)
    assert total.item() == SIZE * RANK


def anysource(group: Any) -> None:
    if RANK:
        dist.send(torch.tensor([RANK]), 0, group=group)
        return
    box, seen = torch.zeros(1, dtype=torch.int64), set()
    for _ in range(SIZE - 1):
        source = dist.recv(box, None, group=group)
        assert box.item() == source
        seen.add(source)
    assert seen == set(range(1, SIZE))


def collectives() -> None:
    """Compare with gloo, every op and dtype."""
    dist.init_process_group("gloo", store=_store(), rank=RANK, world_size=SIZE)
    group = open_groups(
        "mpi", timedelta(seconds=30), [range(SIZE)], RANK, mpi_comm=WORLD.Dup())
    everything(group, None)
    if SIZE == 2:
        everything(staged_group(), group)
    dist.destroy_process_group()


def everything(group: Any, other: Any) -> None:
    for dtype in REDUCIBLE:
        for name, op in OPS.items():
            _same(f"{name} {dtype}", reductions(group, dtype, op), reductions(other, dtype, op))
    for dtype in [*REDUCIBLE, torch.bfloat16]:
        _same(f"movement {dtype}", movements(group, dtype), movements(other, dtype))
    _same("uneven", uneven(group), uneven(other))
    only_here(group)


def counted() -> None:
    """Give what gloo gives where MPI counts to 5 only: all larger messages are counted otherwise.
    """
    dist.init_process_group("gloo", store=_store(), rank=RANK, world_size=SIZE)
    for most, sizes in (5, (1, 5, 6, 64)), (4096, ((1 << 20) + 7,)):
        counting, name = Counting(most), f"counted{most}"
        dist.Backend.register_backend(
            name, lambda options, comm, counting=counting: MpiGroup(
                comm, staging_of(MPI), counting), extended_api=True, devices=["cpu"])
        group = dist.new_group(backend=name, pg_options=WORLD.Dup())
        everything(group, None)
        for n_elements in sizes:
            for dtype in (torch.float32, torch.uint8):
                every_call(DirectGroup(WORLD.Dup(), counting), n_elements, dtype)
                every_call_of_torch(group, n_elements, dtype)
    dist.destroy_process_group()


def every_call(group: DirectGroup, n_elements: int, dtype: torch.dtype) -> None:
    """Make each call of mpi/direct with parts of so many elements, and check what comes."""
    own, filled = (torch.full((n_elements,), value, dtype=dtype) for value in (RANK + 1, 0))
    whole = torch.zeros(SIZE * n_elements, dtype=dtype)
    total = SIZE * (SIZE + 1) // 2

    def call(name: str, source: torch.Tensor | None, output: torch.Tensor | None) -> None:
        group.prepared(name, Buffers(source, output, "sum", SIZE - 1))()

    call("all_gather", own, whole)
    parts_are(whole, range(1, SIZE + 1))
    call("all_gather", None, whole)
    whole.zero_()
    call("gather", own, whole)
    parts_are(whole, range(1, SIZE + 1) if RANK == SIZE - 1 else [0] * SIZE)
    call("scatter", whole if RANK == SIZE - 1 else None, filled)
    parts_are(filled, [RANK + 1])
    exchanged = torch.zeros_like(whole)
    call("all_to_all", whole.fill_(RANK + 1), exchanged)
    parts_are(exchanged, range(1, SIZE + 1))
    del exchanged
    call("reduce_scatter", whole, filled)
    parts_are(filled, [total])
    call("send_recv", own, filled)
    parts_are(filled, [BEFORE + 1])
    call("all_reduce", own, filled)
    parts_are(filled, [total])
    call("reduce", None, own)
    parts_are(own, [total if RANK == SIZE - 1 else RANK + 1])
    call("broadcast", None, own)
    parts_are(own, [total])


def every_call_of_torch(group: Any, n_elements: int, dtype: torch.dtype) -> None:
    """Do the same with the group of torch, in the forms of one tensor and of lists of parts."""
    own = torch.full((n_elements,), RANK + 1, dtype=dtype)
    whole, total = torch.zeros(SIZE * n_elements, dtype=dtype), SIZE * (SIZE + 1) // 2
    group._allgather_base(whole, own)
    parts_are(whole, range(1, SIZE + 1))
    group._reduce_scatter_base(own, whole.fill_(RANK + 1))
    parts_are(own, [total])
    dist.all_to_all_single(whole, torch.full_like(whole, RANK + 1), group=group)
    parts_are(whole, range(1, SIZE + 1))
    parts = list(whole.fill_(0).split(n_elements))
    dist.all_gather(parts, own.fill_(RANK + 1), group=group)
    parts_are(whole, range(1, SIZE + 1))
    whole.fill_(0)
    dist.gather(own, parts if RANK == 0 else None, 0, group=group)
    parts_are(whole, range(1, SIZE + 1) if RANK == 0 else [0] * SIZE)
    dist.scatter(own, parts if RANK == 0 else None, 0, group=group)
    parts_are(own, [RANK + 1])
    dist.reduce_scatter(own, list(whole.fill_(RANK + 1).split(n_elements)), group=group)
    parts_are(own, [total])


def parts_are(tensor: torch.Tensor, values: Any) -> None:
    """Fail unless the equal parts of a tensor are filled with these values."""
    expected = list(values)
    for part, value in zip(tensor.split(len(tensor) // len(expected)), expected, strict=True):
        assert part.min() == value == part.max(), (value, part.min(), part.max())


def staged_group() -> Any:
    """Return a group that does to CPU tensors what it else does to CUDA tensors only."""
    staging = Staging(cuda=True, reason="a test", cpu=True)
    tensor = torch.ones(2, 3).t()
    for copy_of in (staging.send_buffer(tensor), staging.room(tensor)):
        assert copy_of.is_contiguous() and copy_of.data_ptr() != tensor.data_ptr()
    assert staging.how("cpu") == {"how": "staged", "reason": "a test"}
    dist.Backend.register_backend(
        "staged", lambda options, comm: MpiGroup(comm, staging), extended_api=True, devices=["cpu"])
    return dist.new_group(backend="staged", pg_options=WORLD.Dup())


def _store() -> dist.Store:
    """Return a store that rank 0 keeps, at a port that is its own from the start."""
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True) if RANK == 0 else None
    port = WORLD.bcast(kept.port if kept else None)
    return kept or dist.TCPStore("127.0.0.1", port)


def _same(what: str, ours: list[torch.Tensor], gloo: list[torch.Tensor]) -> None:
    for number, (one, other) in enumerate(zip(ours, gloo, strict=True)):
        assert torch.equal(one, other), (what, number, one, other)


def training() -> None:
    """DDP, FSDP2, tensor and pipeline parallel steps have one process's loss and gradients."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    register_mpi()
    dist.init_process_group("mpi4py", store=dist.HashStore(), rank=RANK, world_size=SIZE)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    inputs, targets = torch.randn(3 * SIZE, 8), torch.randn(3 * SIZE, 4)
    alone = copy.deepcopy(model)
    expected = torch.nn.functional.mse_loss(alone(inputs), targets)
    expected.backward()
    sharded = copy.deepcopy(model)
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    for parallel in (DistributedDataParallel(copy.deepcopy(model)), sharded):
        own = slice(3 * RANK, 3 * RANK + 3)
        loss = torch.nn.functional.mse_loss(parallel(inputs[own]), targets[own])
        loss.backward()
        dist.all_reduce(loss.detach().div_(SIZE))
        torch.testing.assert_close(loss.detach(), expected.detach())
        for ours, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
            whole = getattr(ours.grad, "full_tensor", lambda found=ours.grad: found)()
            torch.testing.assert_close(whole, theirs.grad)
    tensor_parallel(copy.deepcopy(model), inputs, alone)
    pipeline(copy.deepcopy(model), inputs, targets, alone)
    answers: list[Any] = [None] * SIZE
    dist.all_gather_object(answers, {"rank": RANK})
    assert [answer["rank"] for answer in answers] == list(range(SIZE))
    dist.destroy_process_group()


def tensor_parallel(model: Any, inputs: torch.Tensor, alone: Any) -> None:
    """Split over pairs of ranks, so that groups are divided off the default one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    split = parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(split(inputs), alone(inputs))


def pipeline(
    model: Any, inputs: torch.Tensor, targets: torch.Tensor, alone: Any,
) -> None:
    """Run two stages on the first two ranks; the others have none."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    group = dist.new_group([0, 1])
    if RANK > 1:
        return
    part = model[:2] if RANK == 0 else model[2:]
    stage = PipelineStage(part, RANK, 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, SIZE, loss_fn=torch.nn.functional.mse_loss)
    if RANK == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    theirs = alone[0] if RANK == 0 else alone[2]
    ours = model[0] if RANK == 0 else model[2]
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


if __name__ == "__main__":
    for part in sys.argv[1:]:
        {"collectives": collectives, "training": training, "counted": counted}[part]()
        print("right")
