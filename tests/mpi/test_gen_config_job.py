"""Of the sweep that gen-config writes for a machine without a GPU, cases of every kind run."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import QUICK, read

from hpcbench.config.load import read_config
from hpcbench.config.presets.preset import load_preset
from hpcbench.gen_config import generate, generate_here
from launcher import MpiLauncher


@pytest.mark.mpi
def test_cases_of_each_kind_run_as_they_are_written(mpirun: MpiLauncher, tmp_path: Path) -> None:
    generate("cpu", None, tmp_path / "cpu.json", force=False)
    some = ("all_reduce gloo", "tp_columnwise", "transformer-tiny data", "gemm gloo cpu fp32 512x*")
    job = mpirun.run(2, "--warmup", "0", "--iters", "1", "--passes", "1",
                     *(word for text in some for word in ("--only", text)),
                     *QUICK, config=read_config(tmp_path / "cpu.json")).check()
    cases = read(job.folder).results.cases
    assert {item.status for item in cases} == {"ok"}
    assert {item.case.kind for item in cases} == {
        block["kind"] for block in load_preset("cpu").content["benchmarks"]}


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
