"""A real training is recorded and imported: its calls are those that DDP must make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reading import NOT_DRAWN, ONCE, read

from hpcbench.interop.traffic.imported import import_traffic
from hpcbench.operations.traffic import TrafficRecord, read_traffic
from launcher import EVERY_MPI, ROOT, MpiLauncher, free_ports, launcher_for

pytestmark = pytest.mark.mpi
STEPS, WIDTH = 5, 256
PARAMETERS = WIDTH * WIDTH + WIDTH + WIDTH * 10 + 10


@EVERY_MPI
def test_the_calls_of_ddp_are_recorded_on_both_ranks(mpirun: MpiLauncher) -> None:
    python = mpirun.program("python")
    job = mpirun.run(2, command=(
        python, "-m", "hpcbench", "record", "--durations", "-o", "rec", "--", python,
        str(ROOT / "examples/traffic_ddp.py"), str(*free_ports(1)))).check()
    home = mpirun.jobs[-1].home
    for rank in (0, 1):
        assert f"rank {rank}: " in job.stderr and "none lost" in job.stderr
    traffic = imported(home)
    assert traffic.world_size == 2 and traffic.missing == ()
    assert [group.ranks for group in traffic.groups] == [(0, 1)]
    gradients, = (one for one in traffic.signatures if one.collective == "all_reduce")
    assert (gradients.count, gradients.bytes, gradients.elements_in, gradients.dtype) == (
        STEPS, 4 * PARAMETERS, (PARAMETERS,), "fp32")
    parameters = [one for one in traffic.signatures
                  if one.collective == "broadcast" and one.dtype == "fp32"]
    assert [(one.count, one.bytes) for one in parameters] == [(1, 4 * PARAMETERS)]
    first, second = traffic.order
    assert first.signature == second.signature and first.sequence == second.sequence
    steps = [at for at, index in enumerate(first.signature)
             if traffic.signatures[index] is gradients]
    assert steps[-STEPS + 1:] == list(range(len(first.signature)))[-STEPS + 1:]
    for one in traffic.order:
        assert one.dropped == one.unfinished == 0
        assert all(gap is not None and gap > 0 for gap in one.gap_ns[1:])
        assert all(one.duration_ns[at] and one.wait_ns[at] is not None for at in steps)
    assert gradients.transfer is not None and gradients.transfer.n == STEPS


def imported(home: Path) -> TrafficRecord:
    import_traffic([home / "rec"], home / "traffic.json")
    return read_traffic(home / "traffic.json")


RANKS = """
import gc, os, runpy, sys
ranks, port, modules, program = sys.argv[1:5]
gc.disable()  # among the modules of torch it takes a third of the time to import them
for name in modules.split(","):
    __import__(name)
gc.freeze()
gc.enable()
children = []
for rank in range(int(ranks)):
    if not (child := os.fork()):
        os.environ.update(RANK=str(rank), WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=port)
        sys.argv = [program, port]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
"""Starts ranks that share what torch takes most of their time to import. DDP is under mpirun."""


def recorded(
    mpirun: MpiLauncher, ranks: int, program: Path, home: Path, *more: str,
    modules: str = "torch.distributed",
) -> TrafficRecord:
    python = mpirun.program("python")
    mpirun.run(0, command=(
        python, "-m", "hpcbench", "record", *more, "-o", str(home / "rec"), "--", python,
        "-c", RANKS, str(ranks), str(*free_ports(1)), modules, str(program))).check()
    return imported(home)


def test_the_calls_of_fsdp(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """Of a layer of 65,792 parameters; torch records gloo's reduce_scatter as an all_reduce."""
    traffic = recorded(mpirun, 2, ROOT / "examples/traffic_fsdp.py", tmp_path, "--profile", "2-3",
                       modules="torch._dynamo,torch.distributed.fsdp")
    parameters = WIDTH * WIDTH + WIDTH
    assert [(one.collective, one.elements_in, one.elements_out, one.bytes, one.count)
            for one in traffic.signatures] == [
        ("all_gather", (parameters // 2,), (parameters,), 4 * parameters, STEPS),
        ("reduce_scatter", (parameters,), (parameters // 2,), 4 * parameters, STEPS)]
    assert [one.signature for one in traffic.order] == [(0, 1) * STEPS] * 2
    for rank in range(2):
        trace = json.loads((tmp_path / f"rec/profile/rank{rank:05}.json").read_text())
        assert trace["distributedInfo"]["rank"] == rank
        steps = [event for event in trace["traceEvents"]
                 if event.get("ph") == "X" and event["name"].startswith("Optimizer.step")]
        assert len(steps) == 2
        marks = sorted((event["ts"], event["name"]) for event in trace["traceEvents"]
                       if event.get("ph") == "X" and event["name"].startswith("ProfilerStep"))
        assert [name for _, name in marks] == ["ProfilerStep#2", "ProfilerStep#3"]


SCATTERS = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.group.WORLD
x, part = torch.arange(8.) + rank, torch.empty(4)
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
scatter(part, x)
scatter(part, x, async_op=True).wait()
dist.all_reduce(x.clone())
dist.reduce_scatter(part, [x[:4], x[4:]])
dist.reduce_scatter(torch.empty(5 if rank else 3), [x[:3], x[3:]])
with dist._coalescing_manager(async_ops=True) as both:
    scatter(part, x)
    scatter(torch.empty(2), x[:4])
both.wait()
functional.reduce_scatter_tensor(x, "sum", 0, world).wait()
for one in functional.reduce_scatter_tensor_coalesced([x, x[:4]], "sum", [0, 0], world):
    one.wait()
compiled = torch.compile(lambda x: functional.reduce_scatter_tensor(x * 2, "sum", 0, world) + 1,
                         backend="aot_eager", fullgraph=True)
compiled(x)
mesh = init_device_mesh("cpu", (2,))
whole = DTensor.from_local(x.view(4, 2), mesh, [Partial()])
given = whole.redistribute(mesh, [Shard(0)]).to_local() + 0
expected = torch.tensor([1., 3, 5, 7, 9, 11, 13, 15])[4 * rank:4 * rank + 4]
assert torch.equal(given.flatten(), expected), given
dist.destroy_process_group()
"""


def test_each_form_of_a_reduce_scatter_is_recorded_as_one(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    (tmp_path / "scatters.py").write_text(SCATTERS)
    traffic = recorded(mpirun, 2, tmp_path / "scatters.py", tmp_path, modules="torch._dynamo")
    assert {(one.collective, one.elements_in, one.elements_out, one.bytes): one.count
            for one in traffic.signatures} == {
        ("reduce_scatter", (8,), (4,), 32): 8, ("all_reduce", (8,), (8,), 32): 1,
        ("reduce_scatter", (8,), (3, 5), 32): 1, ("reduce_scatter", (4,), (2,), 16): 2}
    assert [one.dropped for one in traffic.order] == [0, 0]


def test_the_messages_of_a_pipeline(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """3 stages, each part of the batch sent on, and its gradient back."""
    ranks, parts = 3, 4
    traffic = recorded(mpirun, ranks, ROOT / "examples/traffic_pipeline.py", tmp_path,
                       modules="torch._dynamo,torch.distributed.pipelining")
    sent = {one.pair: (one.bytes, one.count) for one in traffic.signatures
            if one.dtype == "fp32" and one.count > 1}
    between = [pair for left in range(ranks - 1) for pair in ((left, left + 1), (left + 1, left))]
    assert sent == dict.fromkeys(between, (8 // parts * WIDTH * 4, STEPS * parts))
    numbers = {index for index, one in enumerate(traffic.signatures) if one.count == STEPS * parts}
    for order in traffic.order:
        neighbours = (order.rank > 0) + (order.rank < ranks - 1)
        assert sum(index in numbers for index in order.signature) == 2 * neighbours * STEPS * parts
        assert order.dropped == 0


LATE = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.broadcast(torch.ones(7, dtype=torch.int64), 0)
for _ in range(30):
    time.sleep(0.03 * (os.environ["RANK"] == "0"))
    dist.all_reduce(torch.ones(65_536))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrafficRecord]:
    """Record a job of which rank 0 comes 30 ms late in each of 30 steps."""
    home = tmp_path_factory.mktemp("late")
    (home / "late.py").write_text(LATE)
    mpirun = launcher_for("mpich", tmp_path_factory.mktemp("jobs"))
    return home / "traffic.json", recorded(mpirun, 2, home / "late.py", home, "--durations")


def test_with_its_own_gaps_a_late_job_stays_late(
    mpirun: MpiLauncher, late: tuple[Path, TrafficRecord],
) -> None:
    """Replay the first steps in order."""
    path, traffic = late
    job = mpirun.run(2, config={
        "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": NOT_DRAWN,
        "benchmarks": [{"kind": "replay", "traffic": str(path), "calls": 9,
                        "gaps": ["recorded", "together", "none"]}]}).check()
    cases = {str(item.case.workload.to_json()["gaps"]): item for item in read(
        job.folder).results.cases}
    assert {item.status for item in cases.values()} == {"ok"}
    assert {item.n_wrong for item in cases.values()} == {0}
    work = cases["recorded"].case.workload.to_json()
    assert work["n_calls"] == 9
    assert work["recorded_calls"] == sum(one.count for one in traffic.signatures)
    assert work["size_bytes"] == sum(
        traffic.signatures[index].bytes for index in traffic.order[0].signature[:9])
    times = {gaps: item.statistics.median_s for gaps, item in cases.items() if item.statistics}
    assert times["recorded"] > times["together"] + 0.1
    assert times["recorded"] > 0.9 * work["recorded_ns"] / 1e9


STEPS_OF_BLOCKS, MORE_STEPS = (1, 2), 1
