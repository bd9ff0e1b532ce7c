"""jobs/k8s/run.sh over the MPI operator acted out: real sshd, mpirun and ranks on virtual hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import virtual_hosts
from hpcbench.trace.sealed import open_trace
from launcher import EVERY_MPI_IF_ALL, ROOT, MpiLauncher
from mpi.reading import read, sweep

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
PATIENT = {"timeout_s": 60, "init_timeout_s": 180}
TESTS = ROOT / "tests"
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # all of it ends with it
VARIABLE = "- {name: NCCL_DEBUG, value: WARN}"
PLACE = "# variables for the ranks, such as NCCL_DEBUG, belong here, not to the workers"


@dataclass(frozen=True)
class Cluster:
    """Two nodes with two slots each; ``folder`` has the user's files and those of the cluster."""

    folder: Path
    mpirun: MpiLauncher

    @contextmanager
    def start(
        self, config: dict[str, object], **variables: str,
    ) -> Iterator[subprocess.Popen[str]]:
        """Have run.sh run a sweep, with the generic manifest and a variable for the ranks in it."""
        for name in ("cluster", "bin", "user"):
            (self.folder / name).mkdir()
        kubectl = self.folder / "bin" / "kubectl"
        kubectl.write_text(f"#!/bin/sh\nexec {sys.executable} {TESTS / 'kubectl.py'} "
                           f'{self.folder / "cluster"} "$@"\n')
        kubectl.chmod(0o755)
        manifest = (ROOT / "jobs" / "k8s" / "mpijob.yaml").read_text()
        assert manifest.count(PLACE) == 1
        (self.folder / "user" / "job.yaml").write_text(manifest.replace(PLACE, VARIABLE))
        (self.folder / "user" / "my.json").write_text(json.dumps(config))
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
               "HPCBENCH_IMAGE": "acted-out", "HPCBENCH_MPI": self.mpirun.mpi,
               "HPCBENCH_CONFIG": "my.json", "HPCBENCH_MANIFEST": "job.yaml",
               "HPCBENCH_NAME": "job", "HPCBENCH_SLOTS": "2", "HPCBENCH_GPU": "none",
               "HPCBENCH_START_LIMIT": "60", **variables}
        words = [*ALONE, *virtual_hosts.inside(3), sys.executable,
                 str(TESTS / "kubernetes_operator.py"), str(self.folder / "cluster"),
                 str(self.mpirun.venv), "bash", str(ROOT / "jobs" / "k8s" / "run.sh"), "2"]
        with subprocess.Popen(words, cwd=self.folder / "user", env=env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as popen:
            try:
                yield popen
            finally:
                popen.kill()

    @property
    def results(self) -> Path:
        return self.folder / "user" / "results" / "job"


@pytest.fixture
def cluster(mpirun: MpiLauncher, tmp_path: Path) -> Iterator[Cluster]:
    """Skip where there can be none; check that nothing of it is left."""
    if why := virtual_hosts.why_not():
        pytest.skip(f"no virtual hosts: {why}")
    if not all(shutil.which(name, path="/usr/bin:/usr/sbin") for name in ("sshd", "ssh")):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no sshd: openssh-server is missing")
    yield Cluster(tmp_path, mpirun)
    deadline = time.monotonic() + 20
    while left := [process for process in psutil.process_iter() if _belongs(process, tmp_path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _belongs(process: psutil.Process, folder: Path) -> bool:
    """Tell whether a process was started with this folder, or is in a pod that has it mounted."""
    with suppress(OSError, psutil.Error):
        mounted = Path(f"/proc/{process.pid}/mountinfo").read_text()
        return str(folder) in mounted or str(folder) in " ".join(process.cmdline())
    return False


@EVERY_MPI_IF_ALL
def test_a_job_of_the_operator_is_measured_by_every_rank(cluster: Cluster) -> None:
    """The launcher's pod gets to the workers by ssh, as an ordinary user with no capability."""
    with cluster.start(sweep("8", "64KiB", launch=PATIENT)) as popen:
        output, _ = popen.communicate(timeout=300)
    assert popen.returncode == 0, output
    outcome = read(cluster.results)
    assert set(outcome.status().values()) == {"ok"}
    for samples in outcome.samples.values():
        assert samples is not None and samples.ranks == (0, 1, 2, 3)
    headers = [open_trace(path).header for path in sorted(cluster.results.glob("traces/*.h5"))]
    assert [(header.rank, header.hostname) for header in headers] == [
        (0, "job-worker-0"), (1, "job-worker-0"), (2, "job-worker-1"), (3, "job-worker-1")]
    assert {header.environment["variables"].get("NCCL_DEBUG") for header in headers} == {"WARN"}
    assert (cluster.folder / "cluster" / "deleted").exists()
    logs = {path.name: path.read_text() for path in (cluster.results / "logs").iterdir()}
    assert "waiting for 2 workers" in logs["job-launcher.log"]
    assert "not checked" not in output
