"""A soak as a real job: the cycle, rank, case, element and bit of a wrong result, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher import MpiLauncher
from mpi.reading import sweep

pytestmark = pytest.mark.mpi
FLIP = {"rank": 1, "kind": "wrong", "case": "* 64B *", "iteration": 2, "cycle": 2}


def test_a_flipped_bit_is_named_and_the_soak_goes_on(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """Workers of all cycles are forks of one template; nothing of a sound cycle stays on disk."""
    config, soaked = tmp_path / "sweep.json", tmp_path / "soaked"
    config.write_text(json.dumps(sweep("8", "64", fault=[FLIP])))
    words = [mpirun.program("python"), "-m", "hpcbench", "soak", "--resume", str(soaked)]
    mpirun.run(2, command=[*words, str(config), "--for", "1h", "--cycles", "2"]).check(1)
    status = json.loads((soaked / "status.json").read_text())
    wrong = status["first_wrong"]
    assert (wrong["cycle"], wrong["rank"]) == (2, 1) and " 64B " in wrong["label"] and wrong["node"]
    assert "1 of 16 elements, first index 15" in wrong["text"] and "0x01000000" in wrong["text"]
    assert (status["wrong_cycles"], status["n_problems"], status["exit_code"]) == (1, 0, 1)
    assert [path.name for path in (soaked / "kept").iterdir()] == ["cycle-000002"]
    mpirun.run(2, command=[*words, "--cycles", "3"]).check(1)
    status = json.loads((soaked / "status.json").read_text())
    assert (status["cycles"], status["wrong_cycles"], status["state"]) == (3, 1, "done")
    assert not (soaked / "cycle").exists()
    mpirun.assert_no_orphans()
