"""Sweeps over a link of 1 Gbit/s between two virtual hosts, which leave nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import virtual_hosts
from hpcbench.analysis.bandwidth import bandwidth
from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

RATE = "1gbit"
WIRE_BYTES_PER_S, LEAST_BYTES_PER_S = 125e6, 100e6
"""The rate with all headers, and what is left when others use the machine (118e6 if none do)."""


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Skip where there can be no such link; check that nothing of it is left on the machine."""
    if why := virtual_hosts.why_not(RATE):
        pytest.skip(f"no limited link: {why}")
    before = _machine()
    yield
    assert _machine() == before


def _machine() -> tuple[set[str], str, set[str]]:
    """Return the network devices, the mounts and the named network namespaces of this machine."""
    named = Path("/run/netns")
    return ({path.name for path in Path("/sys/class/net").iterdir()},
            Path("/proc/self/mounts").read_text(),
            {path.name for path in named.iterdir()} if named.exists() else set())


def _command(mpirun: MpiLauncher) -> dict[str, Any]:
    """Return the options of a job with a rank on each of two hosts."""
    return {"before": virtual_hosts.inside(2, RATE), "command": (
        *virtual_hosts.one_rank_each(2), mpirun.program("python"), "-m", "hpcbench", "run",
        "config.json", "-o", "out")}


def test_a_large_all_reduce_moves_what_the_link_carries(mpirun: MpiLauncher) -> None:
    """All_reduce of two ranks sends its size each way at once: busbw is a direction's rate."""
    config = sweep("4MiB", measure={"iterations": 12})
    done = mpirun.run(2, config=config, **_command(mpirun)).check()
    for item in read(done.folder).results.cases:
        assert item.status == "ok" and item.statistics is not None, str(done)
        fastest = bandwidth(item.case.collective, 2, item.statistics.min_s)
        assert fastest is not None
        assert LEAST_BYTES_PER_S < fastest.busbw_bytes_per_s < WIRE_BYTES_PER_S, fastest
    mpirun.assert_no_orphans()


def test_hosts_and_links_end_with_a_killed_job(mpirun: MpiLauncher) -> None:
    config = sweep("64KiB", measure={"iterations": 100_000})
    with mpirun.start(2, config=config, **_command(mpirun)) as job:
        job.wait_for("results in")
        assert len({Path(f"/proc/{process.pid}/ns/net").stat().st_ino
                    for process in job.processes()}) == 2
        os.kill(job.pid, signal.SIGKILL)
        mpirun.assert_no_orphans(within=20)
