"""Sweeps over limited, lossy and broken links between virtual hosts, which leave nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import virtual_hosts
from hpcbench.analysis.machine import machine
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.kinds.collective.derive import bandwidth
from hpcbench.kinds.collective.plan import collective_of
from hpcbench.reduce.kind_facts import PairRates
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.journal import journal_path
from launcher import ROOT, Finished, MpiLauncher, Running
from mpi.reading import ONCE, read, sweep

pytestmark = pytest.mark.mpi

RATE = "1gbit"
WIRE_BYTES_PER_S = 125e6
"""The rate with all headers."""


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


def _command(mpirun: MpiLauncher, hosts: int = 2, **options: Any) -> dict[str, Any]:
    """Return the options of a job with a rank on each host."""
    env = virtual_hosts.OPENMPI_ENV if mpirun.mpi == "openmpi" else {}
    return {"before": virtual_hosts.inside(hosts, **{"rate": RATE, **options}), "env": env,
            "command": (
                *virtual_hosts.one_rank_each(hosts, mpirun.mpi), mpirun.program("python"), "-m",
                "hpcbench", "run", "config.json", "-o", "out")}


def _stream_bytes_per_s() -> float:
    """Return what a plain TCP stream carries each way at once between two such hosts."""
    done = subprocess.run(
        [*virtual_hosts.inside(2, RATE), sys.executable, str(ROOT / "benchmarks" / "link.py"),
         "--end", "vh1"], capture_output=True, text=True, timeout=60, check=True)
    return 1e6 * max(stream["mb_s"] for stream in json.loads(done.stdout))


def _fastest_bytes_per_s(done: Finished) -> dict[int, float]:
    """Return the bus bandwidth of the fastest all_reduce by number of ranks."""
    found = {}
    for item in read(done.folder).results.cases:
        assert item.status == "ok" and item.statistics is not None, str(done)
        fastest = bandwidth(collective_of(item.case), item.case.world_size, item.statistics.min_s)
        found[item.case.world_size] = fastest.busbw_bytes_per_s
    return found


def test_all_reduces_of_2_and_4_hosts_move_what_the_link_carries(mpirun: MpiLauncher) -> None:
    """Busbw is a direction's rate whatever the number of hosts: what plain TCP has, or nearly."""
    config = sweep("4MiB", block={"world_size": [2, 4]}, measure={"iterations": 12})
    fastest, stream = dict.fromkeys((2, 4), 0.0), 0.0
    for _ in range(4):  # as often as a busy machine needs to let them have the link once
        job = mpirun.run(4, config=config, **_command(mpirun, 4)).check()
        found, stream = _fastest_bytes_per_s(job), max(stream, _stream_bytes_per_s())
        fastest = {ranks: max(fastest[ranks], found[ranks]) for ranks in fastest}
        if fastest[2] > 0.93 * stream and fastest[4] > 0.85 * stream:
            break
    for ranks, least in ((2, 0.93), (4, 0.85)):
        assert least * stream < fastest[ranks] < WIRE_BYTES_PER_S, (fastest, stream)
    mpirun.assert_no_orphans()


def test_a_link_that_drops_packets_is_slow_and_nothing_is_wrong(mpirun: MpiLauncher) -> None:
    """The first host's link tells how many packets it has dropped."""
    config = sweep("1MiB", block={"world_size": [2]}, measure={"iterations": 5})
    options = _command(mpirun, rate="200mbit", queue="15kb")
    told = ("sh", "-c", '"$@"; code=$?; tc -s qdisc show dev eth0; exit $code', "sh")
    done = mpirun.run(2, config=config, **{**options, "before": (*options["before"], *told)})
    dropped = re.search(r"\(dropped (\d+),", done.check().stdout)
    assert dropped and int(dropped[1]) > 0, str(done)
    (item,) = read(done.folder).results.cases
    assert item.status == "ok" and item.n_wrong == 0
    assert _fastest_bytes_per_s(done)[2] < 25e6
    mpirun.assert_no_orphans()


PAIRS = {"name": "links", "measure": {"passes": 8, "iterations": 6, "warmup": 1, "canary": False,
                                      "noise_check_s": 0},
         "output": {"plots": False, "report": False},
         "benchmarks": [{"kind": "hardware", "test": "pairs", "what": "bandwidth",
                         "size": "256KiB", "messages": 4}]}


def test_the_slow_link_among_four_hosts_is_measured_and_no_other_is_named(
    mpirun: MpiLauncher,
) -> None:
    """The median over passes shows the link; a busy machine may leave nothing to name for sure."""
    done = mpirun.run(4, config=PAIRS, timeout=120,
                      **_command(mpirun, 4, slow=("2-4", "500mbit"))).check()
    with open_results(done.folder) as file:
        run = Run("run", file.results, file)
        (item,) = file.results.cases
        (pairs,) = run.facts(item, PairRates, partial(run.samples.samples, item.case.case_id))
        parts = machine([run], TopicOptions()).parts
    rates = np.array(pairs.rates, dtype=np.float64)
    usual = np.median([rates[at] for at in np.ndindex(4, 4)
                       if at[0] != at[1] and sorted(at) != [1, 3]])
    assert 0.35 * usual < min(rates[1, 3], rates[3, 1]) < 0.65 * usual, str(done)
    assert {part.what for part in parts} <= {"the link of ranks 1 and 3"}, str(done)
    assert all(0.35 < part.drop < 0.65 for part in parts)
    mpirun.assert_no_orphans()


LONG = {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "iterations": 10**6}
SHORT = {**LONG, "iterations": 3}


def _broken(timeout_s: float, **launch: Any) -> dict[str, Any]:
    """Return a sweep whose second case can only end by its timeout."""
    return sweep(benchmarks=[{**SHORT, "size": "8"}, {**LONG, "size": "64KiB"},
                             {**SHORT, "size": "16"}],
                 measure={**ONCE, "max_iterations": 10**6},
                 launch={"timeout_s": timeout_s, **launch})


def _process_in_second_case(job: Running, host: str) -> int:
    """Wait until the second case has begun; return a process of the job on the host.

    It is looked for before, since the case lasts only until its timeout.
    """
    job.wait_for("results in", timeout=90)
    found = next(process.pid for process in job.processes() if _is_rank(process)
                 and virtual_hosts.host_of(process.pid) == host)
    job.wait_for("[1/3] ok", timeout=90)
    deadline = time.monotonic() + 30
    while journal_path(job.folder / "traces", 0).read_bytes().count(b'"begin"') < 2:
        assert time.monotonic() < deadline, job.finished()
        time.sleep(0.02)
    return found


def _is_rank(process: psutil.Process) -> bool:
    """Tell whether it is a rank, which lives as long as the job."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()[1:4] == ["-m", "hpcbench", "run"]
    return False


def test_a_broken_link_is_a_timeout_that_names_the_node(mpirun: MpiLauncher) -> None:
    """MPI has a network of its own, so the job goes on, and the next case finds the link mended."""
    options = _command(mpirun, 2, two=True)
    with mpirun.start(2, config=_broken(8, interface="eth1"), **options) as job:
        process = _process_in_second_case(job, "vh2")
        virtual_hosts.set_link(process, "eth1", "down")
        job.wait_for("] timeout all_reduce", timeout=90)
        virtual_hosts.set_link(process, "eth1", "up")
        done = job.wait(90).check(1)
    first, broken, mended = read(done.folder).results.cases
    assert (first.status, broken.status, mended.status) == ("ok", "timeout", "ok"), str(done)
    assert broken.blamed_rank == 1
    assert broken.reason.startswith(
        "rank 1 on vh2: network interface eth1 is down; no end in 8 s")
    assert broken.reason in done.stdout
    mpirun.assert_no_orphans()


@pytest.mark.soak
def test_a_node_that_is_cut_off_from_mpi_too_ends_the_job_with_its_name(
    mpirun: MpiLauncher,
) -> None:
    """The others agree without it, and put their verdict on disk before they end."""
    with mpirun.start(3, config=_broken(5), **_command(mpirun, 3)) as job:
        virtual_hosts.set_link(_process_in_second_case(job, "vh3"), "eth0", "down")
        job.wait_for("rank 2 on vh3", timeout=90)
        assert job.folder is not None
        deadline = time.monotonic() + 30
        while (found := reduce_folder(job.folder).cases[1]).status != "timeout":
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        assert found.blamed_rank == 2 and "rank 2 on vh3: process was stopped" in found.reason
    mpirun.assert_no_orphans(within=20)
