"""Ranks that cannot start what they need: refused at once, with the ranks in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import virtual_hosts
from hpcbench.measurement.process import KernelFiles, granted_cores
from launcher import ROOT, Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ONE_OTHER = ('[ "$PMI_RANK" != 1 ] || export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; '
             'shift; exec "$@"')


NO_REPORTS = """
import sys
class NoReports:
    def find_spec(self, name, path=None, target=None):
        if name == "hpcbench.report.console":
            raise OSError(5, "Input/output error: console.py")
sys.meta_path.insert(0, NoReports())
"""


def with_another_torch(
    mpirun: MpiLauncher, folder: Path, text: str, timeout_s: float, ranks: int,
) -> Finished:
    """Run ranks, the second of which finds a torch that is this text."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)
    command = ["sh", "-c", ONE_OTHER, "sh", str(folder), mpirun.program("python"), "-m",
               "hpcbench", "run", "config.json", "-o", "out"]
    config = sweep("8", launch={"init_timeout_s": timeout_s})
    return mpirun.run(ranks, config=config, command=command)


def error(done: Finished) -> str:
    """Return the one message of a job that was refused before it made anything."""
    assert done.check(2).stderr.count("hpcbench: ") == 1 and "Traceback" not in done.stderr, done
    assert done.folder is None
    return done.stderr


def test_a_rank_that_cannot_import_torch(mpirun: MpiLauncher, tmp_path: Path) -> None:
    text = "raise ImportError('libcudart.so.12: no file')"
    done = with_another_torch(mpirun, tmp_path, text, 60, ranks=2)
    assert ("probing the machine failed on 1 of 2 ranks\n  rank 1: the worker template did not "
            "start: ImportError: libcudart.so.12: no file") in error(done)
    mpirun.assert_no_orphans()


def test_reports_that_rank_0_cannot_import(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """All ranks end with its message before anything is measured; none is aborted."""
    (tmp_path / "sitecustomize.py").write_text(NO_REPORTS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = mpirun.run(2, config=sweep("8"), env={"PYTHONPATH": path})
    assert "[Errno 5] Input/output error: console.py" in error(done)
    assert "All ranks are ended" not in done.stderr
    mpirun.assert_no_orphans()


@pytest.mark.soak
def test_a_rank_whose_workers_do_not_start_in_time(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """It waits longer than told where ranks share cores (benchmarks/results/many_ranks.md)."""
    done = with_another_torch(mpirun, tmp_path, "import time; time.sleep(300)", 25, ranks=3)
    ranks_a_core = 3 / granted_cores(KernelFiles())
    assert ("failed on 1 of 3 ranks\n  rank 1: the worker template did not start: no answer in "
            f"{25 * max(1, ranks_a_core):g} s (launch.init_timeout_s)") in error(done)
    mpirun.assert_no_orphans()


@pytest.fixture
def hosts() -> None:
    """Hosts of their own for the ranks, or a skip."""
    if why := virtual_hosts.why_not():
        pytest.skip(f"no virtual hosts: {why}")


@pytest.mark.usefixtures("hosts")
def test_an_address_that_is_not_rank_0s_is_refused_before_anything_starts(
    mpirun: MpiLauncher,
) -> None:
    """It resolves, nothing answers there, and each case would wait for all of timeout_s."""
    config = sweep("8", launch={"address": "10.77.0.9", "timeout_s": 100})
    started = time.monotonic()
    line = error(mpirun.run(2, config=config, before=virtual_hosts.inside(1)))
    assert time.monotonic() - started < 60
    assert line.count("\n") == 1 and "launch.address: 10.77.0.9" in line and "10.77.0.1" in line


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("launch", [{}, {"interface": "eth0"}, {"address": "vh1"}])
@pytest.mark.parametrize("mpirun", ["openmpi"], indirect=True)
def test_two_hosts_with_ipv6_alone(mpirun: MpiLauncher, launch: dict[str, str]) -> None:
    """Open MPI starts ranks over it, as srun does; MPICH's mpirun has IPv4 only."""
    command = [*virtual_hosts.one_rank_each(2, "openmpi"), mpirun.program("python"), "-m",
               "hpcbench", "run", "config.json", "-o", "out"]
    config = sweep("64KiB", launch={"timeout_s": 30, **launch})
    done = mpirun.run(2, config=config, command=command, env=virtual_hosts.OPENMPI_ENV,
                      before=virtual_hosts.inside(2, six=True)).check()
    outcome = read(done.folder)
    assert set(outcome.status().values()) == {"ok"} and len(outcome.results.run.nodes) == 2


@pytest.mark.usefixtures("hosts")
def test_loopback_between_two_hosts(mpirun: MpiLauncher) -> None:
    command = [*virtual_hosts.one_rank_each(2), mpirun.program("python"), "-m", "hpcbench", "run",
               "config.json", "-o", "out"]
    done = mpirun.run(2, config=sweep("8"), command=command, env={"GLOO_SOCKET_IFNAME": "lo"},
                      before=virtual_hosts.inside(2))
    assert "GLOO_SOCKET_IFNAME=lo is loopback, which reaches only one of the 2 nodes" in error(done)
