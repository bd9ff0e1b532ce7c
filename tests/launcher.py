"""Start a real ``mpirun`` in a test, bounded in time, and see that nothing is left behind.

A test takes the fixture ``mpirun`` (tests/conftest.py), which is an `MpiLauncher`::

    @EVERY_MPI                                     # every wheel; without it: MPICH
    def test_sweep(mpirun):
        job = mpirun.run(4, config={...})          # mpirun -np 4 python -m hpcbench run config.json
        job.check()                                # rc 0, else fail with what it printed; check(1)
        results = job.folder / "results.h5"
        mpirun.assert_no_orphans()

    def test_kill(mpirun):
        with mpirun.start(2, config={...}) as job:  # while it runs; leaving the block ends it
            job.wait_for("rank 0")                  # a text in what it printed so far
            job.processes()                         # every living process of it, as psutil.Process
            os.kill(job.pid, signal.SIGKILL)        # mpirun itself
            job.wait(timeout=20)

``run`` and ``start`` take ``*args`` (arguments of ``run``), ``config`` (a dict, written to
``config.json`` in the job's folder and given as the first argument), ``env`` (additions),
``timeout`` (seconds), ``command`` (words that replace ``python -m hpcbench run``; then neither the
config's path nor ``-o`` is added), ``before`` (words in front of mpirun) and ``owner`` (a user id
to give the job's folder to). With 0 ranks there is no mpirun in front: ``command`` starts its own.
At the time limit everything the job started is killed and `TimeoutExpired` raised. Every job has
a folder of its own below ``tmp_path``: its working directory, by which its processes are known.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
UNCOLLECTED = """
import atexit, gc, runpy, sys
gc.disable()
atexit.register(gc.freeze)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script without collections of garbage: among modules of torch they take a third of it."""
EVERY_MPI = pytest.mark.parametrize(
    "mpirun", ["mpich", "openmpi", pytest.param("impi", marks=pytest.mark.soak)], indirect=True)
"""Intel MPI with --all only."""
EVERY_MPI_IF_ALL = pytest.mark.parametrize(
    "mpirun", ["mpich", pytest.param("openmpi", marks=pytest.mark.soak)], indirect=True)
"""For what takes long and hardly depends on the MPI: Open MPI with --all only."""
MPICH_AND_OPENMPI = pytest.mark.parametrize("mpirun", ["mpich", "openmpi"], indirect=True)
"""For several hosts, where Intel MPI was never tried."""
INTEL_MPI = pytest.mark.parametrize("mpirun", ["impi"], indirect=True)
OUTER_LAUNCH = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "SLURM_", "HYDRA_",
                "I_MPI_")
OF_A_GROUP = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
"""Of torch's groups: tests that open one in their own process leave them behind."""
OPENMPI_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl": "^ofi",
}
TOKEN = "HPCBENCH_TEST_JOB"
SHARED_MEMORY = ("mpich_shm_*", "sm_segment.*")


class TimeoutExpired(AssertionError):
    """The job was still running at its time limit; it has been killed."""


@dataclass(frozen=True)
class Finished:
    """What a job left: exit code, output, and its results ``folder`` (None if it made none)."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    duration_s: float
    folder: Path | None

    def check(self, returncode: int = 0) -> Finished:
        """Return this job; fail with all that it printed if it ended with another exit code."""
        if self.returncode != returncode and not self._lost_by_mpich(returncode):
            pytest.fail(str(self), pytrace=False)
        return self

    @property
    def prose(self) -> str:
        """Return what it printed as if no line were wrapped."""
        return " ".join(self.stdout.split())

    def details(self) -> str:
        """Return what ``show -v`` prints of the results."""
        done = subprocess.run([sys.executable, "-m", "hpcbench", "show", str(self.folder), "-v"],
                              capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def _lost_by_mpich(self, code: int) -> bool:
        """Return whether a rank called MPI_Abort with ``code`` and MPICH's mpirun ended with 9.

        On a loaded machine 4 of 650 jobs ended so, a bare mpi4py script that only calls
        Abort(2) included: mpirun then reports the rank that it killed (seen with MPICH 5.0.2).
        """
        aborted = re.search(rf"called MPI_Abort\([^)]*, {code}\)", self.stderr)
        return self.returncode == 9 and aborted is not None and "EXIT CODE: 9" in self.stdout

    def __str__(self) -> str:
        parts = [" ".join(self.command), f"rc {self.returncode} after {self.duration_s:.1f} s"]
        parts += ["-- stdout", self.stdout[-4000:], "-- stderr", self.stderr[-4000:]]
        return "\n".join(parts)


@dataclass(frozen=True)
class Running:
    """A started job; ``pid`` is mpirun's, ``home`` its working directory."""

    popen: subprocess.Popen[bytes]
    command: tuple[str, ...]
    home: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def folder(self) -> Path | None:
        """Return the results folder, as soon as there is one."""
        for latest in (self.home / "out" / "latest", self.home / "results" / "latest"):
            if latest.exists():
                return latest.resolve()
        return None

    def stdout(self) -> str:
        return (self.home / "stdout").read_text(errors="replace")

    def stderr(self) -> str:
        return (self.home / "stderr").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that this job started, orphans included."""
        return [process for process in psutil.process_iter() if _belongs(process, self.home)]

    def wait_for(self, text: str, timeout: float = 60) -> None:
        """Wait until the job has printed ``text`` on stdout or stderr."""
        deadline = time.monotonic() + timeout
        while text not in self.stdout() + self.stderr():
            assert self.popen.poll() is None, f"ended without {text!r}\n{self.finished()}"
            assert time.monotonic() < deadline, f"no {text!r} in {timeout} s\n{self.stderr()}"
            time.sleep(0.02)

    def wait(self, timeout: float = 60) -> Finished:
        """Wait for mpirun's end; kill everything at the limit and raise `TimeoutExpired`."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            left = self.describe()
            self.kill()
            raise TimeoutExpired(f"over {timeout} s; alive:\n{left}\n{self.finished()}") from None
        return self.finished()

    def finished(self) -> Finished:
        """Return what there is; the exit code is -1 while mpirun still runs."""
        code = self.popen.poll()
        return Finished(self.command, -1 if code is None else code, self.stdout(), self.stderr(),
                        time.monotonic() - self.started, self.folder)

    def describe(self) -> str:
        """Return a line per living process."""
        return "\n".join(_describe(process) for process in self.processes())

    def kill(self) -> None:
        """SIGKILL mpirun's process group and whatever else belongs to the job; tidy up after it."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                _kill(process)
            time.sleep(0.02)
        self.popen.wait(10)
        _drop_shared_memory(since=time.time() - (time.monotonic() - self.started))


@dataclass
class MpiLauncher:
    """One MPI's ``mpirun`` and the jobs that one test started with it."""

    mpi: str
    venv: Path
    folder: Path
    jobs: list[Running] = field(default_factory=list)

    def run(self, np: int, *args: str, timeout: float = 100, **options: Any) -> Finished:
        """Run a job to its end; see the module's text for the options."""
        with self.start(np, *args, **options) as job:
            return job.wait(timeout)

    @contextmanager
    def start(
        self,
        np: int,
        *args: str,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        before: Sequence[str] = (),
        owner: int | None = None,
    ) -> Iterator[Running]:
        """Start a job; on leaving the block whatever is left of it is killed."""
        home = self._new_home(config, owner)
        words = (*before, *((self.program("mpirun"), "-np", str(np)) if np else ()))
        words += tuple(command) if command else self._hpcbench_run(home)
        with (home / "stdout").open("wb") as out, (home / "stderr").open("wb") as err:
            popen = subprocess.Popen([*words, *args], cwd=home, stdin=subprocess.DEVNULL,
                                     stdout=out, stderr=err, start_new_session=True,
                                     env=self.environment(home, env or {}))
        job = Running(popen, (*words, *args), home)
        self.jobs.append(job)
        try:
            yield job
        finally:
            job.kill()

    def assert_no_orphans(self, within: float = 5) -> None:
        """Fail if a process of a job of this test is still alive after ``within`` seconds.

        Call it after `run`, or inside the block of `start`: leaving that kills what is left.
        """
        deadline = time.monotonic() + within
        while left := "\n".join(filter(None, (job.describe() for job in self.jobs))):
            assert time.monotonic() < deadline, f"still alive after {within} s:\n{left}"
            time.sleep(0.05)

    def program(self, name: str) -> str:
        """Return the path of a program of this MPI's virtual environment."""
        return str(self.venv / "bin" / name)

    def environment(self, home: Path, additions: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a job: this one, less any outer launch, plus what is needed."""
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith(OUTER_LAUNCH) and k not in OF_A_GROUP}
        kept["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
        kept |= {"OMP_NUM_THREADS": "1", TOKEN: home.name}
        kept |= OPENMPI_ENV | _session_folder(home) if self.mpi == "openmpi" else {}
        if not any(self.venv.glob("lib/python3*/site-packages/hpcbench-*.dist-info")):
            kept["PYTHONPATH"] = str(ROOT)  # a virtual environment not made by tests/run.sh
        return kept | dict(additions)

    def _new_home(self, config: Mapping[str, Any] | None, owner: int | None) -> Path:
        home = self.folder / f"job{len(self.jobs)}-{uuid.uuid4().hex[:8]}"
        home.mkdir(parents=True)
        if config is not None:
            (home / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        if owner is not None:
            os.chown(home, owner, owner)
        return home

    def _hpcbench_run(self, home: Path) -> tuple[str, ...]:
        path = home / "config.json"
        words = (self.program("python"), "-m", "hpcbench", "run")
        return (*words, *([str(path)] if path.exists() else []), "-o", str(home / "out"))


def launcher_for(mpi: str, folder: Path) -> MpiLauncher:
    """Return the launcher of ``mpi``; skip or fail where that MPI is not installed.

    MPICH is this interpreter's own. tests/run.sh names the environments that have the others; only
    without it, or without --full, can they be missing, and those skips are in allowed_skips.txt.
    """
    name = f"HPCBENCH_TEST_{mpi.upper()}_VENV"
    if mpi != "mpich" and name not in os.environ:
        pytest.skip(f"no {mpi}: {name} is not set (tests/run.sh sets it)")
    venv = Path(sys.prefix if mpi == "mpich" else os.environ[name])
    assert (venv / "bin" / "mpirun").exists(), f"no mpirun in {venv}: run bash tests/run.sh"
    return MpiLauncher(mpi, venv, folder)


def free_ports(count: int) -> list[int]:
    """Return ports that no program has, and that the kernel gives to none by itself.

    Seconds may pass until they are used, in which other jobs of this machine take ports of the
    kernel's choice.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(first // 2, first), first // 4):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports below {first}")


def _session_folder(home: Path) -> dict[str, str]:
    """Return what keeps Open MPI's session folder in the job's own.

    A killed mpirun leaves /tmp/ompi.PID behind, and the next mpirun with that process id ends
    with "The PMIx server's listener thread failed to start" (seen with 5.0.11).
    """
    return {"PRTE_MCA_prte_tmpdir_base": str(home)}


def _belongs(process: psutil.Process, home: Path) -> bool:
    """Tell whether a process is alive and carries the job's working directory, token or path.

    A worker's environment is an allow-list, so the token alone would miss one.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:  # dead; a slow init has yet to reap it
            return False
        words = " ".join([process.cwd(), *process.cmdline()])
        return home.name in words or process.environ().get(TOKEN) == home.name
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _drop_shared_memory(since: float, folder: Path = Path("/dev/shm")) -> None:
    """Delete what killed ranks leave, 2 to 4 MB a job, before a small /dev/shm is full.

    The files do not say whose they are: ours are newer than the job and mapped by no one.
    """
    left = [path for pattern in SHARED_MEMORY for path in folder.glob(pattern)]
    if not left:
        return
    mapped = "".join(_maps(process) for process in psutil.process_iter())
    for path in left:
        with suppress(FileNotFoundError, PermissionError):
            if path.stat().st_ctime >= since and str(path) not in mapped:
                path.unlink()


def _maps(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except (OSError, psutil.NoSuchProcess):
        return ""


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid} ended"


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
