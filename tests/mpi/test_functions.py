"""Functions of a user's file under a real mpirun: measured, isolated, checked and compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from reading import NOT_DRAWN, ONCE, QUICK, read

from golden import hpcbench
from launcher import ROOT, MpiLauncher

FAULTS = """
import os, time
import torch, torch.distributed as dist
import hpcbench

@hpcbench.benchmark(n=[3])
def raises(ctx, n):
    def step():
        if ctx.rank == 1:
            raise ValueError("no such thing")
    return step

@hpcbench.benchmark()
def dies(ctx):
    return lambda: os._exit(3)

@hpcbench.benchmark
def hangs(ctx):
    return lambda: time.sleep(1000 * ctx.rank)

@hpcbench.benchmark()
def returns_nothing(ctx):
    print("a line of its own")

@hpcbench.benchmark()
def shapes_differ(ctx):
    mine = ctx.rand(4 + ctx.rank)
    return lambda: dist.all_reduce(mine, group=ctx.group)

@hpcbench.benchmark(right=[True, False])
def checked(ctx, right):
    sent, got = ctx.full(8, ctx.rank + 1.0), ctx.empty(8)
    def step():
        got.copy_(sent)
        dist.all_reduce(got, group=ctx.group)
    return hpcbench.Case(step, check=lambda: int((got != 3 + (not right)).sum()), bytes=got.nbytes,
                         flops=8, collective="all_reduce")

@hpcbench.benchmark()
def checked_on_one_rank(ctx):
    return hpcbench.Case(len, check=None if ctx.rank else int)

@hpcbench.benchmark()
def wrong_to_both_sides(ctx):
    signs = iter([3, -3] * 1000)
    return hpcbench.Case(lambda: None, check=lambda: next(signs))

@hpcbench.benchmark(limit=float("inf"), shape=[(2, 3)])
def skips(ctx, limit, shape):
    if limit == float("inf") and ctx.full(shape, 0.5).shape == shape:
        raise NotImplementedError("not without a limit")

@hpcbench.benchmark()
def skips_on_one_rank(ctx):
    if ctx.rank:
        raise hpcbench.Skip("not here")
    return len

@hpcbench.benchmark(world_size=[1, 2])
def plain(ctx, dtype, world_size):
    assert (dtype, world_size) == ("fp32", ctx.world_size) and ctx.dtype is torch.float32
    return lambda: time.sleep(0.001)
"""


HOSTILE = """
import os, resource, signal, subprocess, threading, time
import torch, torch.distributed as dist
import hpcbench

def leaves(change):
    def step():
        change()
    return step

@hpcbench.benchmark()
def a_changes_all(ctx):
    def change():
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        dist.all_reduce = None
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["GLOO_SOCKET_IFNAME"] = "none"
        os.umask(0o177)
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        subprocess.Popen(["sleep", "20"])
    return leaves(change)

@hpcbench.benchmark()
def b_changes_on_one_rank(ctx):
    return leaves(lambda: torch.set_num_threads(2 + ctx.rank))

def shared(words, at):
    for fd in range(3, 60):
        name = f"/proc/self/fd/{fd}"
        if os.path.exists(name) and "hpcbench-progress" in os.readlink(name):
            os.pwrite(fd, words, at)

@hpcbench.benchmark()
def c_writes_garbage(ctx):
    return leaves(lambda: shared(b"\\xff" * 128, 0) if ctx.rank else None)

@hpcbench.benchmark()
def d_writes_a_phase(ctx):
    return leaves(lambda: shared(b"\\x55" * 8, 64) if ctx.rank else None)

@hpcbench.benchmark()
def e_sees_what_there_is(ctx):
    assert os.getcwd() != "/" and torch.get_default_dtype() is torch.float32
    assert callable(dist.all_reduce) and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    return lambda: None
"""


@pytest.mark.mpi
def test_what_a_function_changes_does_not_reach_the_next(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Nor does what it writes over its own samples."""
    (tmp_path / "ops.py").write_text(HOSTILE)
    job = mpirun.run(2, config={
        "measure": {**ONCE, "warmup": 1, "iterations": 4, "order": "planned"},
        "output": NOT_DRAWN,
        "benchmarks": [{"kind": "function", "file": str(tmp_path / "ops.py")}]}).check(1)
    results = read(job.folder).results
    statuses = {item.case.workload.name[0]: item.status for item in results.cases}
    assert statuses == {"a": "ok", "b": "ok", "c": "failed", "d": "failed", "e": "ok"}, str(job)
    found = [one.message for one in results.findings if one.code == "HB152"]
    assert [one for one in found if "rank 1" in one and "torch.distributed.all_reduce" in one
            and "working folder" in one and "limits" in one and "signals" in one
            and "variables" in one and "mask" in one and "threads" in one and "child" in one], found
    assert len([one for one in found if "number of torch's threads" in one]) == 2, found
    assert "Traceback" not in job.stderr


@pytest.mark.mpi
def test_each_function_costs_its_own_cases_only(mpirun: MpiLauncher, tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(FAULTS)
    job = mpirun.run(2, config={
        "measure": {**ONCE, "warmup": 1, "iterations": 4, "validate": True},
        "launch": {"timeout_s": 5}, "output": NOT_DRAWN,
        "benchmarks": [{"kind": "function", "file": str(tmp_path / "ops.py")}]}).check(1)
    results = read(job.folder).results
    found = {(item.case.workload.name, item.case.label.partition("right=")[2][:4],
              item.case.world_size): item for item in results.cases}
    statuses = {key: item.status for key, item in found.items()}
    assert statuses.pop(("shapes_differ", "", 2)) in ("failed", "timeout", "ok")  # as gloo takes it
    assert statuses == {
        ("raises", "", 2): "failed", ("dies", "", 2): "failed", ("hangs", "", 2): "timeout",
        ("returns_nothing", "", 2): "failed", ("checked", "True", 2): "ok",
        ("checked_on_one_rank", "", 2): "failed", ("wrong_to_both_sides", "", 2): "wrong",
        ("skips", "", 2): "skipped", ("skips_on_one_rank", "", 2): "failed",
        ("checked", "Fals", 2): "wrong", ("plain", "", 1): "ok", ("plain", "", 2): "ok"}
    assert "ops.py:10" in found["raises", "", 2].reason
    assert found["raises", "", 2].blamed_rank == 1
    assert found["skips", "", 2].reason == "not without a limit"
    assert found["skips_on_one_rank", "", 2].blamed_rank == 1
    assert found["hangs", "", 2].blamed_rank == 1
    assert found["plain", "", 2].n_wrong is None
    right = found["checked", "True", 2]
    assert right.n_wrong == 0
    record = results.record_of(right)
    assert record["rank_bytes_per_s"] == pytest.approx(32 / right.statistics.median_s)
    assert record["busbw_bytes_per_s"] == pytest.approx(record["rank_bytes_per_s"])  # factor 1
    told = hpcbench("plot", str(job.folder), "--only", "functions*")
    assert [*(job.folder / "plots").glob("functions*.png")], told
    rows = json.loads((job.folder / "summary.json").read_text("utf-8"))["results"]["functions"]
    assert {row["function"] for row in rows} == {
        item.case.workload.name for item in results.cases}
    mpirun.assert_no_orphans()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["ring_all_reduce", "overlapped_matmul", "training_step"])
def test_an_example_runs_and_is_right(mpirun: MpiLauncher, name: str, tmp_path: Path) -> None:
    file = ROOT / "examples" / f"{name}.py"
    job = mpirun.run(3 if name == "ring_all_reduce" else 2, str(file), "--passes", "1",
                     "--iters", "3", "--warmup", "1", *QUICK, timeout=300).check(0)
    results = read(job.folder).results
    assert results.cases and all(item.status == "ok" for item in results.cases)
    assert name != "ring_all_reduce" or len(results.cases) == 4  # torch's and its own, of two sizes
    assert {item.n_wrong for item in results.cases} == {0}
    if name == "overlapped_matmul":
        assert {item.case.kind for item in results.cases} == {"primitive"}
        assert {item.case.workload.implementer for item in results.cases} == {
            "overlapped", "torch", "chunked_pipeline"}


@pytest.mark.mpi
def test_a_changed_file_is_not_resumed(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """It is an example, which checks nothing of its results."""
    file = tmp_path / "ops.py"
    shutil.copy2(ROOT / "examples/plain_timing.py", file)
    before = mpirun.run(1, str(file), "--passes", "1", "--iters", "1", "--warmup", "0",
                        *QUICK).check(0)
    cases = read(before.folder).results.cases
    assert {(item.status, item.n_wrong) for item in cases} == {("ok", None)} and len(cases) == 4
    file.write_text(file.read_text("utf-8") + "# another version\n")
    words = (mpirun.program("python"), "-m", "hpcbench", "run")
    refused = mpirun.run(1, "--resume", str(before.folder), command=words).check(2)
    assert str(file) in refused.stderr
