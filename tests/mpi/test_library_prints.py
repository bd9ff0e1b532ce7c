"""What libraries print of a case, from the worker's stdout to the tables.

NCCL needs GPUs, so here gloo's workers say what NCCL says, through C's stdout as NCCL does. All
between the worker and the tables is what a job with NCCL goes through.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.trace.schema import LIBRARY
from hpcbench.trace.sealed import open_trace
from launcher import Finished, MpiLauncher
from mpi.reading import ONCE, read, sweep

pytestmark = pytest.mark.mpi

SPEAKING = '''
import ctypes, os, sys

def speak():
    import torch.distributed as dist
    said, quiet = ctypes.CDLL(None).puts, dist.all_reduce
    made = set()

    def all_reduce(tensor, *arguments, group=None, **options):
        rank, prefix = dist.get_rank(), b"n1:4:4 [0] NCCL INFO "
        if group is None or group.size() == 1:
            return quiet(tensor, *arguments, group=group, **options)
        if group not in made:
            made.add(group)
            said(prefix + b"Channel 00/0 : %d[0] -> 1[1] via " % rank + PLACES[rank])
            said(prefix + b"8 coll channels, 8 collnet channels, 0 nvls channels")
        if rank == 0:
            used = b"RING proto SIMPLE" if tensor.nbytes > 1000 else b"TREE proto LL"
            said(prefix + b"AllReduce: %d Bytes -> Algo %s channel{Lo..Hi}={0..3}" % (
                tensor.nbytes, used))
        return quiet(tensor, *arguments, group=group, **options)

    PLACES = [b"P2P/CUMEM", b"NET/IB/0 token=planted-secret"]
    dist.all_reduce = all_reduce

os.register_at_fork(
    after_in_child=lambda: {"LIKE_NCCL", "torch"} <= {*os.environ, *sys.modules} and speak())
'''


def job_of(mpirun: MpiLauncher, folder: Path) -> Finished:
    """Run cases of which libraries print, and one on each of three backends of which none does."""
    (folder / "sitecustomize.py").write_text(SPEAKING)
    python = mpirun.environment(folder, {}).get("PYTHONPATH", "")
    silent = {"kind": "collective", "collective": "all_reduce", "size": "8",
              "backend": ["gloo", "mpi", "nccl"], "world_size": 1}
    config = sweep("512", "4096", launch={"pass_env": ["LIKE_NCCL"]},
                   measure={**ONCE, "passes": 2})
    config["benchmarks"].append(silent)
    return mpirun.run(2, config=config, env={  # buffered, as C's stdout is by default
        "PYTHONPATH": f"{folder}:{python}", "LIKE_NCCL": "1", "PYTHONUNBUFFERED": ""}).check()


def test_what_is_printed_reaches_the_tables(mpirun: MpiLauncher, tmp_path: Path) -> None:
    job = job_of(mpirun, tmp_path)
    outcome = read(job.folder)
    transport = "P2P/CUMEM + NET/IB token=***"
    told, silent = outcome.results.cases[:2], outcome.results.cases[2:]
    gloo, mpi, nccl = (one for backend in ("gloo", "mpi", "nccl")
                       for one in silent if one.case.backend == backend)
    assert [item.library for item in told] == [
        {"algorithm": "TREE", "protocol": "LL", "channels": "4", "transport": transport},
        {"algorithm": "RING", "protocol": "SIMPLE", "channels": "4", "transport": transport}]
    unknown = dict.fromkeys(("algorithm", "protocol", "channels", "transport"), "unknown")
    assert gloo.library == mpi.library == unknown
    assert nccl.status == "skipped" and nccl.library is None
    with (job.folder / "summary.csv").open() as stream:
        assert [row["algorithm"] for row in csv.DictReader(stream)][:2] == ["TREE", "RING"]
    shown = CliRunner().invoke(app, ["show", str(job.folder), "-v"])
    assert f"RING SIMPLE, 4 channels, {transport}" in shown.output
    heads = [line for line in shown.output.splitlines() if line.split()[:1] == ["size"]]
    assert [head.endswith("  library") for head in heads].count(True) == 1 < len(heads), heads
    for rank, said in enumerate(("P2P/CUMEM", "NET/IB token=***")):
        trace = open_trace(job.folder / "traces" / f"rank{rank:05d}.h5")
        details = {item.case.case_id: [record.detail.get(LIBRARY, {}) for record in trace.records()
                                       if record.case_id == item.case.case_id]
                   for item in outcome.results.cases}
        for item in told:
            assert [one["transport"] for one in details[item.case.case_id]] == [said] * 2
        assert details[gloo.case.case_id] == details[mpi.case.case_id] == [{}] * (2 - 2 * rank)
    written = b"".join(path.read_bytes() for path in job.folder.rglob("*") if path.is_file())
    assert b"planted" not in written and "planted" not in job.stdout + job.stderr
