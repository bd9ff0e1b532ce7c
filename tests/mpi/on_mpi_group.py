"""Run under mpirun: backend mpi against gloo on the same input, and training steps on it."""

from __future__ import annotations

import copy
import os
import socket
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.groups import equal_lines, open_groups
from hpcbench.backends.mpi_buffers import Staging
from hpcbench.backends.mpi_group import MpiGroup, register_mpi

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
    port = WORLD.bcast(_free_port() if RANK == 0 else None)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
    group = open_groups(
        "mpi", timedelta(seconds=30), equal_lines(SIZE, 1), RANK, mpi_comm=WORLD.Dup())
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


def staged_group() -> Any:
    """Return a group that does to CPU tensors what it else does to CUDA tensors only."""
    staging = Staging(cuda=True, reason="a test", cpu=True)
    tensor = torch.ones(2, 3).t()
    for copy_of in (staging.taken(tensor), staging.room(tensor)):
        assert copy_of.is_contiguous() and copy_of.data_ptr() != tensor.data_ptr()
    assert staging.how("cpu") == {"how": "staged", "reason": "a test"}
    dist.Backend.register_backend(
        "staged", lambda options, comm: MpiGroup(comm, staging), extended_api=True, devices=["cpu"])
    return dist.new_group(backend="staged", pg_options=WORLD.Dup())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    {"collectives": collectives, "training": training}[sys.argv[1]]()
    print("right")
