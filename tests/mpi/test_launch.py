"""Launches, configs and folders that cannot work, and the launcher itself, under a real mpirun."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcbench.measurement.process import KernelFiles, granted_cores, own_cores, threads_of_rank
from hpcbench.trace.sealed import open_trace, trace_path
from launcher import EVERY_MPI, EVERY_MPI_IF_ALL, ROOT, Finished, MpiLauncher, TimeoutExpired
from mpi.reading import QUICK, read, sweep

pytestmark = pytest.mark.mpi

BOUND = """
unset OMP_NUM_THREADS
eval "cores=\\$CORES${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
exec taskset -c "$cores" "$@"
"""
"""What a launcher does that binds ranks to cores."""


def _one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("hpcbench:")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@EVERY_MPI
def test_a_bad_config_is_reported_once(mpirun: MpiLauncher) -> None:
    config = sweep("8")
    config["benchmarks"][0]["colective"] = "all_reduce"
    job = mpirun.run(2, config=config).check(2)
    assert "colective" in _one_line(job.stderr)
    assert job.folder is None


def test_lonely_ranks_are_refused_with_the_fix(mpirun: MpiLauncher) -> None:
    command = ["env", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=0",
               mpirun.program("python"), "-m", "hpcbench", "run"]
    job = mpirun.run(1, command=command).check(2)
    line = _one_line(job.stderr)
    assert "started 4 ranks, but MPI sees 1" in line
    assert "mpirun" in line


def test_a_port_in_use_is_one_failed_start(mpirun: MpiLauncher) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        config = sweep("8", launch={"port": taken.getsockname()[1], "timeout_s": 10})
        found = read(mpirun.run(1, config=config).check(1).folder).of_size(8)
    assert found.status == "failed"
    assert "launch.port" in found.reason


@pytest.mark.parametrize(("file", "ranks"), [("h100_nvlink", 2), ("a10_cluster", 1)])
def test_a_cluster_job_without_its_gpus_is_not_green(
    mpirun: MpiLauncher, file: str, ranks: int,
) -> None:
    """The shipped job file, as sbatch starts it, where torch is built for CPUs."""
    job = mpirun.run(0, command=[
        "bash", str(ROOT / "slurm" / f"{file}.sbatch"), str(ROOT / "slurm" / f"{file}.json"),
        "--warmup", "0", "--iters", "1", "--passes", "1", *QUICK],
        env={"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_NTASKS": str(ranks), "SLURM_JOB_ID": "7",
             "SLURM_JOB_NAME": "gpus"}).check(1)
    assert "no GPU: " in job.stdout
    cases = read(job.folder).results.cases
    of_gpus = [item for item in cases if item.case.device == "cuda"]
    assert of_gpus and {item.status for item in of_gpus} <= {"failed", "skipped"}
    assert all("cuda is required (required_backends)" in item.reason for item in of_gpus
               if item.case.skip is None)
    assert {item.status for item in cases if item.case.device == "cpu"} <= {"ok", "skipped"}


def test_a_required_backend_that_is_missing_fails(mpirun: MpiLauncher) -> None:
    """A layer of a required backend, too. Shorthands are honoured beside it."""
    config = sweep("8", "16", block={"backend": ["gloo", "nccl", "ucc/tl/ucp"]})
    job = mpirun.run(2, "--require", "nccl", "--require", "ucc", "--benchmark", "comm",
                     "--warmup", "2", "--iters", "4", "--only", "*16B*", "--set", "name=renamed",
                     config=config).check(1)
    outcome = read(job.folder)
    assert outcome.results.run.name == "renamed"
    for item in outcome.results.cases:
        case = item.case
        assert (case.workload.size_bytes, case.warmup, case.iterations) == (16, 2, 4)
    by_backend = {item.case.backend: item for item in outcome.results.cases}
    assert by_backend.pop("gloo").status == "ok"
    assert set(by_backend) == {"nccl", "ucc/tl/ucp"}
    for item in by_backend.values():
        assert item.status == "failed" and "required" in item.reason, item


@EVERY_MPI
def test_without_mpirun_there_is_one_rank(mpirun: MpiLauncher, tmp_path: Path) -> None:
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps(sweep("8")))
    done = subprocess.run(
        [mpirun.program("python"), "-m", "hpcbench", "run", str(config), "-o",
         str(tmp_path / "out")],
        env=mpirun.environment(tmp_path, {}), capture_output=True, text=True, timeout=60,
        check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = read(tmp_path / "out" / "latest")
    assert outcome.results.run.world_size == 1
    assert set(outcome.status().values()) == {"ok"}


@EVERY_MPI_IF_ALL
def test_a_rank_has_the_threads_of_its_own_cores(mpirun: MpiLauncher) -> None:
    """Two ranks are bound to the first half of the cores here, and one to the other half."""
    cores = own_cores()
    first, other = cores[:max(1, len(cores) // 2)], cores[len(cores) // 2:]
    masks = [first, first, other]
    command = ["sh", "-c", BOUND, "sh", mpirun.program("python"), "-m", "hpcbench", "run",
               "config.json", "-o", "out"]
    lists = {f"CORES{rank}": ",".join(map(str, mask)) for rank, mask in enumerate(masks)}
    job = mpirun.run(3, command=command, config=sweep("8"), env=lists).check()
    assert job.folder is not None
    headers = [open_trace(trace_path(job.folder / "traces", rank)).header for rank in range(3)]
    assert [header.environment["process"]["affinity"] for header in headers] == masks
    assert [header.environment["variables"]["OMP_NUM_THREADS"] for header in headers] == [
        str(threads_of_rank(mask, masks, granted_cores(KernelFiles()))) for mask in masks]


def test_ranks_with_different_software_are_refused_once(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    other = tmp_path / "numpy-9.9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9.9\n")
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps(sweep("8")))
    script = (f'[ "$PMI_RANK" = 1 ] && export PYTHONPATH={tmp_path}:$PYTHONPATH; '
              f"exec {mpirun.program('python')} -m hpcbench run {config}")
    job = mpirun.run(2, command=["sh", "-c", script]).check(2)
    assert "rank 1 on" in _one_line(job.stderr)
    assert "has numpy 9.9.9" in job.stderr
    assert job.folder is None


@EVERY_MPI_IF_ALL
def test_inline_variables_are_those_of_the_case_and_an_exception_does_not_end_the_job(
    mpirun: MpiLauncher,
) -> None:
    """Without mpirun: a process that is alone is a group of MPI, too."""
    config = sweep(fault=[{"case": "* 64B *", "rank": 0, "kind": "raise"}], benchmarks=[
        {"kind": "collective", "name": "raises", "collective": "all_reduce", "size": 64},
        {"kind": "collective", "name": "bad", "collective": "all_reduce", "size": 8,
         "env": {"GLOO_SOCKET_IFNAME": "no_such_interface"}},
        {"kind": "collective", "name": "good", "collective": "all_reduce", "size": 16,
         "backend": "mpi"},
        {"kind": "collective", "name": "early", "collective": "all_reduce", "size": 32,
         "env": {"OMP_NUM_THREADS": 2}},
    ])
    outcome = read(mpirun.run(0, "--inline", config=config).check(1).folder)
    assert outcome.results.run.world_size == 1
    assert outcome.of_size(8).status == "failed"
    assert outcome.of_size(16).status == "ok"
    assert "run without --inline" in outcome.of_size(32).reason
    assert outcome.of_size(64).status == "failed"
    assert "injected exception" in outcome.of_size(64).reason


def test_an_address_that_does_not_resolve(mpirun: MpiLauncher) -> None:
    config = sweep("8", launch={"address": "no-such-host.invalid"})
    assert "launch.address" in _one_line(mpirun.run(2, config=config).check(2).stderr)


RANK = """
from mpi4py import MPI
print(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n", end="", flush=True)
"""


def python(mpirun: MpiLauncher, code: str) -> list[str]:
    return [mpirun.program("python"), "-c", code]


@EVERY_MPI
def test_time_limit_kills_everything(mpirun: MpiLauncher) -> None:
    code = f"{RANK}\nimport time; time.sleep(60)"
    with pytest.raises(TimeoutExpired, match="over 3 s"):
        mpirun.run(2, command=python(mpirun, code), timeout=3)
    mpirun.assert_no_orphans(within=0.5)


def test_finds_an_orphan_without_token(mpirun: MpiLauncher) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = f"""
import subprocess
child = subprocess.Popen({sleeper}, env={{}}, start_new_session=True,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("started", child.pid, flush=True)
"""
    with mpirun.start(1, command=python(mpirun, code)) as job:
        job.wait_for("started")
        job.wait(20)
        with pytest.raises(AssertionError, match="still alive"):
            mpirun.assert_no_orphans(within=0.2)
    mpirun.assert_no_orphans(within=0.5)


@pytest.mark.parametrize("mpirun", ["openmpi"], indirect=True)
def test_a_killed_mpirun_leaves_nothing_that_a_later_one_could_meet(mpirun: MpiLauncher) -> None:
    """Process ids come again: /tmp/ompi.PID of a killed mpirun ended another with code 213."""
    with mpirun.start(2, command=python(mpirun, f"{RANK}\nimport time; time.sleep(60)")) as job:
        job.wait_for("rank")
        session = f"ompi.{job.pid}"
    assert (job.home / session).is_dir()
    assert not Path(tempfile.gettempdir(), session).exists()


def test_an_exit_code_that_mpich_lost_counts_only_with_its_evidence() -> None:
    banner = "=   EXIT CODE: 9\n"
    aborted = "application called MPI_Abort(comm=0x84000001, 2) - process 1\n"
    job = Finished((), 9, banner, aborted, 0.0, None)
    assert job.check(2) is job
    for other in (Finished((), 9, banner, "", 0.0, None), Finished((), 9, "", aborted, 0.0, None),
                  Finished((), 1, banner, aborted, 0.0, None)):
        with pytest.raises(pytest.fail.Exception):
            other.check(2)
    with pytest.raises(pytest.fail.Exception):
        job.check(3)
