"""Ranks whose nodes have disks of their own: mount namespaces in which each sees another folder.

Rank 0 sees the job's folder as it is. For the others something else is mounted over ``out``: a
folder of their own, which outlives the job, or a disk that cannot be written, so that TMPDIR is
left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import pytest

from hpcbench.reduce.reduce import reduce_folder
from hpcbench.trace.sealed import open_trace, trace_path
from launcher import EVERY_MPI_IF_ALL, MpiLauncher, Running
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

OWN_DISK = """
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$RANK}}
if [ "$rank" != 0 ]; then
    mkdir -p out "disk$rank" && mount --bind "disk$rank" out || exit 99
    [ "$rank" != "$READ_ONLY" ] || mount -t tmpfs -o ro tmpfs out || exit 99
fi
exec "$@"
"""
LONG = {"warmup": 0, "iterations": 40, "mode": "barrier_start", "passes": 2}


@pytest.fixture(autouse=True)
def mounts() -> None:
    """Skip where a rank cannot have a mount namespace of its own."""
    done = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespaces: {done.stderr.strip()}")


def _words(mpirun: MpiLauncher, *args: str) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", OWN_DISK, "sh", mpirun.program("python"), "-m",
            "hpcbench", "run", *args]


def _apart(mpirun: MpiLauncher, *, temporary: Path, **options: Any) -> dict[str, Any]:
    """Return the options of a job whose rank 1 has a disk of its own, and rank 2 only TMPDIR."""
    temporary.mkdir(exist_ok=True)
    return {"command": _words(mpirun, "-v", "config.json", "-o", "out"),
            "env": {"READ_ONLY": "2", "TMPDIR": str(temporary)}, **options}


def _contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _of_ranks(folder: Path) -> dict[str, set[int]]:
    """Return which ranks have a file of each kind, by its path with the rank left out."""
    found: dict[str, set[int]] = {}
    for name in _contents(folder):
        if rank := re.search(r"rank(\d{5})", name):
            found.setdefault(name.replace(rank[0], "rank"), set()).add(int(rank[1]))
    return found


@EVERY_MPI_IF_ALL
def test_traces_of_own_disks_make_the_results_of_a_shared_one(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """All that each rank wrote has come, as where all see one folder."""
    config = sweep("8", "64KiB", measure={"canary": True},
                   profiling={"enabled": True, "samples": 1})
    temporary = tmp_path / "temporary"
    job = mpirun.run(3, config=config, **_apart(mpirun, temporary=temporary)).check()
    assert "2 of the ranks do not see this folder" in job.prose
    outcome, files = read(job.folder), _of_ranks(job.folder)
    assert outcome.results.run.ranks_present == (0, 1, 2)
    assert set(outcome.status().values()) == {"ok"}
    for samples in outcome.samples.values():
        assert samples is not None and samples.ranks == (0, 1, 2)
    profile = json.loads((job.folder / "profile" / "profile.json").read_text())["cases"]
    assert len(profile) == len(outcome.samples)
    assert "traces/rank.h5" in files and len(files) == 1 + len(profile)
    assert set(map(frozenset, files.values())) == {frozenset({0, 1, 2})}, files
    assert all((job.folder / one["file"]).is_file() and len(one["rank_files"]) == 3
               for one in profile.values())
    with h5py.File(job.folder / "results.h5") as file:
        assert {"canary"} <= set(file), list(file)
    home = mpirun.jobs[-1].home
    assert not _contents(home / "disk1") and not _contents(home / "disk2")
    assert not [path for path in temporary.iterdir() if path.name.startswith("hpcbench")]
    mpirun.assert_no_orphans()


def test_killed_and_stopped_with_own_disks(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """What a killed rank's node holds is named, and counts as soon as the run goes on there."""
    config = sweep("8", "16", "32", "64", "128", measure=LONG, fault=[
        {"case": "* 128B *", "rank": 0, "kind": "slow", "iteration": 0,
         "seconds": 2}])  # the signal comes into it
    with mpirun.start(3, config=config, **_apart(
            mpirun, temporary=tmp_path / "temporary")) as job:
        job.wait_for("[ 3/10]", timeout=90)
        job.kill()
    home, folder = job.home, job.folder
    assert list((home / "disk1" / f"{folder.name}.on-{os.uname().nodename}" / "traces").iterdir())
    lost = [item.message for item in reduce_folder(folder).findings if item.code == "HB101"]
    assert len(lost) == 1 and "rank00001.* on host " in lost[0], lost
    assert f"{tmp_path}/temporary/hpcbench-" in lost[0] and "rank00002.*" in lost[0]
    second = _resumed_and_stopped(mpirun, job, folder, tmp_path / "temporary")
    assert "do not see this folder" in " ".join(second.stdout().split())
    for attempt in ("", "attempt1"):
        assert {path.name for path in (folder / "traces" / attempt).glob("rank*")} == {
            f"rank{rank:05d}.h5" for rank in range(3)}
    records = [(record.case_id, record.pass_index) for attempt in ("", "attempt1")
               for record in open_trace(trace_path(folder / "traces" / attempt, 1)).records()]
    assert 4 <= len(records) < 10 and len(records) == len(set(records))
    assert not _contents(home / "disk1")
    mpirun.assert_no_orphans()


def _resumed_and_stopped(
    mpirun: MpiLauncher, job: Running, folder: Path, temporary: Path,
) -> Running:
    """Go on with a run in the same home, so on the same disks; stop it after a case."""
    words = _words(mpirun, "-v", "--resume", str(folder))
    enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(job.home)]
    with mpirun.start(3, command=words, before=enter,
                      env={"READ_ONLY": "2", "TMPDIR": str(temporary)}) as second:
        second.wait_for("[1/", timeout=90)
        os.kill(second.pid, signal.SIGUSR1)
        second.wait(60).check(3)
    return second


@EVERY_MPI_IF_ALL
def test_files_larger_than_a_piece_arrive_whole(mpirun: MpiLauncher, tmp_path: Path) -> None:
    program = Path(__file__).with_name("on_delivery.py")
    job = mpirun.run(3, command=[
        mpirun.program("python"), str(program), str(tmp_path), "41"]).check()
    told = json.loads(job.stdout)
    assert [rank_told[2] for rank_told in told] == [False, False, False]
    assert told[0][0] == ["rank 2: attempt1/lost.h5 did not arrive from "
                          f"{tmp_path}/node2/lost.h5 on host2: No such file or directory"]
    for rank in (1, 2):
        data = (tmp_path / "traces" / f"rank{rank:05d}.h5").read_bytes()
        assert len(data) == (41 << 20) + 1 and data[-1] == rank
    assert max(grown for _, grown, _ in told) < 32 << 20
