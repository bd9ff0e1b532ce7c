"""Of the sweep that gen-config writes for a machine without a GPU, cases of every kind run."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import QUICK, read

from hpcbench.config.load import read_config
from hpcbench.gen_config import generate_here
from launcher import MpiLauncher


@pytest.mark.mpi
def test_the_sweep_for_this_machine_runs_here(mpirun: MpiLauncher, tmp_path: Path) -> None:
    generate_here(2, tmp_path / "here.json", force=False)
    config = read_config(tmp_path / "here.json")
    assert [block["backend"] for block in config["benchmarks"]][1] == ["gloo", "mpi"]
    job = mpirun.run(2, "--warmup", "0", "--iters", "1", "--passes", "1",
                     "--only", "4096B", "--only", "tp_columnwise torch",
                     *QUICK, config=config).check()
    cases = read(job.folder).results.cases
    assert len(cases) == 11 and {item.status for item in cases} == {"ok"}
