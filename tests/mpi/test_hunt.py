"""Hunts by real launchers: no rank enters MPI, and faults of a node are found on virtual hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import virtual_hosts
from launcher import EVERY_MPI_IF_ALL, ROOT, MpiLauncher

pytestmark = pytest.mark.mpi
BENCHMARK = ROOT / "benchmarks" / "hunt_faults.py"


@EVERY_MPI_IF_ALL
def test_ranks_of_mpirun_hunt_and_one_node_is_not_called_good(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Nothing is there to compare its speed with; all that was measured is on disk."""
    done = mpirun.run(2, command=(
        mpirun.program("python"), "-m", "hpcbench", "hunt", "-o", str(tmp_path / "hunts"),
        "--stage-seconds", "1"))
    done.check(3)
    (file,) = tmp_path.glob("hunts/hunt-*/hunt.json")
    hunt = json.loads(file.read_bytes())
    assert hunt["is_complete"] and [one["verdict"] for one in hunt["verdicts"]] == ["untested"]
    (node,) = hunt["job"]["nodes"]
    assert node["ranks"] == [0, 1]
    measured = {(fact["stage"], fact["measure"], fact["rank"]) for fact in hunt["facts"]
                if fact["outcome"] == "measured" and fact["value"] > 0}
    assert measured >= {("alone", measure, rank) for measure in ("gemm", "memory", "storage")
                        for rank in (0, 1)} | {("ladder", "bandwidth", None)}
    assert not (file.parent / "good_nodes.txt").read_text()
    assert not (file.parent / "bad_nodes.txt").read_text()
    mpirun.assert_no_orphans()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_each_fault_names_its_node_and_no_other(mpirun: MpiLauncher) -> None:
    """Of the faults that no other process of this machine can hide."""
    if why := virtual_hosts.why_not("1gbit"):
        pytest.skip(f"no limited link: {why}")
    done = mpirun.run(0, "--runs", "2", "--clean", "1", "--faults", "device", "hang", "dead",
                      "wrong", command=[sys.executable, str(BENCHMARK)], timeout=1700).check()
    assert "goals: met" in done.stdout
