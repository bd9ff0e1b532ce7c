"""What the tests under Slurm share: the partitions, how jobs get there, and what they left."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcbench.trace.schema import Header
from hpcbench.trace.sealed import open_trace
from launcher import ROOT, MpiLauncher
from mpi.reading import Outcome, read
from slurm_cluster import Nodes, missing_programs

PARTITIONS = (
    Nodes("v100", 2, gpus="v100:4", features="v100,nvlink"),
    Nodes("h100", 1, gpus="h100:8", features="h100"),
    Nodes("b200", 1, gpus="b200:8", features="b200"),
    Nodes("a10", 4, gpus="a10:1"),
    Nodes("cpu", 2),
)


_FEW = ("--iters", "2", "--warmup", "1", "--passes", "1", "--set", "measure.noise_check_s=0",
        "--set", "output.plots=false", "--set", "output.report=false")


@dataclass(frozen=True)
class Batch:
    """A job file, where it runs, how many ranks each node gets, and the GPUs these see."""

    file: str
    partition: str
    ranks_by_node: dict[str, int]
    gpus: str = ""
    arguments: tuple[str, ...] = _FEW


WITHOUT_GPUS = (*_FEW, "--set", "required_backends=[]")
"""The nodes' GPUs are names alone, and torch is built for CPUs."""
BATCHES = (
    Batch("smoke.sbatch", "cpu", {"cpu-1": 2, "cpu-2": 2}, arguments=()),
    Batch("cpu.sbatch", "cpu", {"cpu-1": 2, "cpu-2": 2},
          arguments=("--only", "all_reduce * 4096B *", "--set", "measure.canary=false", *_FEW)),
    Batch("v100_nvlink.sbatch", "v100", {"v100-1": 4, "v100-2": 4}, gpus="0,1,2,3",
          arguments=WITHOUT_GPUS),
    Batch("h100_nvlink.sbatch", "h100", {"h100-1": 8}, gpus="0,1,2,3,4,5,6,7",
          arguments=WITHOUT_GPUS),
    Batch("b200_nvlink.sbatch", "b200", {"b200-1": 8}, gpus="0,1,2,3,4,5,6,7",
          arguments=WITHOUT_GPUS),
    Batch("a10_cluster.sbatch", "a10", {f"a10-{node}": 1 for node in (1, 2, 3, 4)}, gpus="0",
          arguments=WITHOUT_GPUS),
)


@dataclass(frozen=True)
class Ended:
    """A batch job that has ended: its exit code, what it printed, the folder it ran in."""

    returncode: int
    output: str
    folder: Path

    def check(self, returncode: int = 0) -> Ended:
        """Return this job; fail with what it printed if it ended with another exit code."""
        if self.returncode != returncode:
            pytest.fail(f"rc {self.returncode}\n{self.output}", pytrace=False)
        return self

    @property
    def results(self) -> Path:
        """Return the folder of its one run."""
        return (self.folder / "results" / "latest").resolve()

    def outcome(self) -> Outcome:
        """Return its results."""
        return read(self.results)

    def headers(self) -> list[Header]:
        """Return who wrote the sealed traces, by rank."""
        found = [open_trace(path).header for path in sorted(self.results.glob("traces/*.h5"))]
        assert [header.rank for header in found] == list(range(len(found)))
        return found


def require_slurm() -> None:
    """Skip without Slurm's programs; .ci/run installs them, so that it is a failure in CI."""
    if missing := missing_programs():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no Slurm: {', '.join(missing)}")


def checkout(folder: Path, batch: Batch) -> Path:
    """Make a folder with the job files in which nothing but account and partition is edited."""
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    path = folder / "slurm" / batch.file
    text = path.read_text()
    for line, word in ("--account=ACCOUNT", "test"), ("--partition=PARTITION", batch.partition):
        assert text.count(line) == 1
        text = text.replace(line, f"{line.partition('=')[0]}={word}")
    path.write_text(text)
    return folder


def environment(mpirun: MpiLauncher, folder: Path, **additions: str) -> dict[str, str]:
    """Return the variables of a shell in which the environment of this MPI is active."""
    return mpirun.environment(folder, additions)


def ended(returncode: int, folder: Path) -> Ended:
    """Return a job and what it has printed so far, which may end within a letter."""
    outputs = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.out")))
    return Ended(returncode, outputs, folder)


def assert_ranks_and_devices(done: Ended, batch: Batch) -> None:
    """Every node has its ranks, each with a place of its own, and they see that node's GPUs."""
    headers = done.headers()
    nodes = Counter(header.environment["scheduler"]["SLURMD_NODENAME"] for header in headers)
    assert nodes == batch.ranks_by_node
    assert {header.world_size for header in headers} == {sum(batch.ranks_by_node.values())}
    assert len({(header.node, header.local_rank) for header in headers}) == len(headers)
    seen = {header.environment["variables"].get("CUDA_VISIBLE_DEVICES", "") for header in headers}
    assert seen == {batch.gpus}


def assert_measured_by_every_rank(outcome: Outcome, backend: str = "gloo") -> None:
    """Rows of this backend are there, and every rank has stamped every sample of them."""
    measured = [item for item in outcome.results.cases
                if item.case.backend == backend and item.status != "skipped"]
    assert measured and {item.status for item in measured} == {"ok"}, outcome.status()
    for item in measured:
        samples = outcome.samples[item.case.case_id]
        assert samples.ranks == tuple(range(outcome.results.run.world_size))
        assert (samples.end_ns > samples.start_ns).all()
