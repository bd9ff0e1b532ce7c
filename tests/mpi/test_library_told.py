"""What libraries print of a case, from the worker's stdout to the tables.

NCCL needs GPUs, so here gloo's workers say what NCCL says, through C's stdout as NCCL does. All
between the worker and the tables is what a job with NCCL goes through.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from hpcbench.trace.schema import LIBRARY
from hpcbench.trace.sealed import open_trace
from launcher import MpiLauncher
from mpi.reading import ONCE, read, sweep

pytestmark = pytest.mark.mpi

SPEAKING = '''
import ctypes, os

def speak():
    import torch.distributed as dist
    said, quiet = ctypes.CDLL(None).puts, dist.all_reduce
    made = set()

    def all_reduce(tensor, *arguments, group=None, **options):
        rank, prefix = dist.get_rank(), b"n1:4:4 [0] NCCL INFO "
        if group is not None and group not in made:
            made.add(group)
            said(prefix + b"Channel 00/0 : %d[0] -> 1[1] via " % rank + PLACES[rank])
            said(prefix + b"8 coll channels, 8 collnet channels, 0 nvls channels")
        if group is not None and rank == 0:
            used = b"RING proto SIMPLE" if tensor.nbytes > 1000 else b"TREE proto LL"
            said(prefix + b"AllReduce: %d Bytes -> Algo %s channel{Lo..Hi}={0..3}" % (
                tensor.nbytes, used))
        return quiet(tensor, *arguments, group=group, **options)

    PLACES = [b"P2P/CUMEM", b"NET/IB/0 token=planted-secret"]
    dist.all_reduce = all_reduce

os.register_at_fork(after_in_child=lambda: "LIKE_NCCL" in os.environ and speak())
'''


def job_of(mpirun: MpiLauncher, folder: Path, **options: Any) -> Any:
    (folder / "sitecustomize.py").write_text(SPEAKING)
    python = mpirun.environment(folder, {}).get("PYTHONPATH", "")
    config = sweep("512", "4096", launch={"pass_env": ["LIKE_NCCL"]}, **options)
    return mpirun.run(2, config=config, env={  # buffered, as C's stdout is by default
        "PYTHONPATH": f"{folder}:{python}", "LIKE_NCCL": "1", "PYTHONUNBUFFERED": ""}).check()


def test_what_is_printed_reaches_the_tables(mpirun: MpiLauncher, tmp_path: Path) -> None:
    job = job_of(mpirun, tmp_path, measure={**ONCE, "passes": 2})
    outcome = read(job.folder)
    transport = "P2P/CUMEM + NET/IB token=***"
    assert outcome.of_size(512).library == {
        "algorithm": "TREE", "protocol": "LL", "channels": "4", "transport": transport}
    assert outcome.of_size(4096).library == {
        "algorithm": "RING", "protocol": "SIMPLE", "channels": "4", "transport": transport}
    with (job.folder / "summary.csv").open() as stream:
        assert [row["algorithm"] for row in csv.DictReader(stream)] == ["TREE", "RING"]
    assert f"RING SIMPLE, 4 channels, {transport}" in job.details()
    for rank, said in enumerate(("P2P/CUMEM", "NET/IB token=***")):
        trace = open_trace(job.folder / "traces" / f"rank{rank:05d}.h5")
        assert [record.detail[LIBRARY]["transport"] for record in trace.records()] == [said] * 4
    written = b"".join(path.read_bytes() for path in job.folder.rglob("*") if path.is_file())
    assert b"planted" not in written and "planted" not in job.stdout + job.stderr


def test_gloo_and_mpi_say_nothing(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, config=sweep("8", block={"backend": ["gloo", "mpi", "nccl"]})).check()
    outcome = read(job.folder)
    for item in outcome.results.cases:
        assert item.library == (None if item.status == "skipped" else dict.fromkeys(
            ("algorithm", "protocol", "channels", "transport"), "unknown"))
    assert "library" not in job.stdout
    trace = open_trace(job.folder / "traces" / "rank00000.h5") if job.folder else None
    assert trace and all(LIBRARY not in record.detail for record in trace.records())
