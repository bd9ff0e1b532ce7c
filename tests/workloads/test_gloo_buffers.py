"""What torch's gloo does to buffers, without an error or with one, and that checks see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANKS = """
import os, sys
import torch
import torch.distributed as dist
from hpcbench.kinds.collective.plan import Collective
from hpcbench.kinds.collective.run import AllReduce
from hpcbench.operations.data import compare, contributed, moved, reduced
from hpcbench.operations.place import Place

rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
place = Place(rank, 2, dist.group.WORLD, torch.device("cpu"))
N, F32 = 64, torch.float32


def strided(values):
    view = torch.zeros(2 * len(values))[::2]
    view.copy_(values)
    return view


def whole(values):
    return values.clone()


def all_reduced(made):
    buffer = made(contributed(rank, 2, "sum", N, F32))
    dist.all_reduce(buffer)
    return buffer, reduced(2, "sum", 0, N, F32)


def broadcasted(made):
    buffer = made(moved(rank, 0, N, F32))
    dist.broadcast(buffer, 1)
    return buffer, moved(1, 0, N, F32)


def at_root(made):
    buffer = made(contributed(rank, 2, "sum", N, F32))
    dist.reduce(buffer, 1)
    return buffer, reduced(2, "sum", 0, N, F32) if rank == 1 else None


def scattered(made):
    parts = [made(moved(1, N * at, N, F32)) for at in range(2)] if rank == 1 else None
    buffer = made(torch.full((N,), -1.0))
    dist.scatter(buffer, parts, 1)
    return buffer, moved(1, N * rank, N, F32)


def views():
    for call in (all_reduced, broadcasted, at_root, scattered):
        for made in (whole, strided):
            got, expected = call(made)
            wrong = None if expected is None else compare(got, expected)
            seen = torch.tensor([0 if wrong is None else wrong.n_wrong])
            dist.all_reduce(seen)
            assert (int(seen) > 0) == (made is strided), (call.__name__, made.__name__, int(seen))


def work(dtype, op):
    return Collective("all_reduce", dtype, op, None, True, 256, 256, 256, "even")


def averages():
    # the sum is made first, which overflows where an average would not
    large = torch.full((4,), 40000.0, dtype=torch.float16)
    dist.all_reduce(large, dist.ReduceOp.AVG)
    assert large.isinf().all()
    for dtype in ("fp16", "bf16", "fp32", "complex64"):
        operation = AllReduce(work(dtype, "avg"), place)
        operation.prepare()
        operation.run()
        assert operation.check() is None, dtype
    # one that fails has changed the buffer: only what restores it may call again
    operation = AllReduce(work("int32", "avg"), place)
    operation.prepare()
    before = operation.output.clone()
    try:
        operation.run()
        raise SystemExit("gloo averages integers")
    except RuntimeError as error:
        assert "can't be cast" in str(error), error
    assert not torch.equal(operation.output, before)
    operation.prepare()
    assert torch.equal(operation.output, before)


globals()[sys.argv[2]]()
dist.destroy_process_group()
if rank == 0 and os.wait()[1]:
    raise SystemExit("rank 1 failed")
"""


@pytest.mark.parametrize("what", ["views", "averages"])
def test_wrong_elements_are_seen(tmp_path: Path, what: str) -> None:
    """``views``: gloo reads and writes memory behind a strided view's first element, silently."""
    done = subprocess.run([sys.executable, "-c", RANKS, str(tmp_path / "store"), what],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
