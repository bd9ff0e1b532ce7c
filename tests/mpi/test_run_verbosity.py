"""How much a run says: a path with --quiet, each stage once with --verbose."""

from __future__ import annotations

import pytest

from launcher import EVERY_MPI_IF_ALL, MpiLauncher
from mpi.reading import sweep

pytestmark = pytest.mark.mpi

STAGES = ("start of MPI", "plan", "probe, with the start of the worker template", "measurement",
          "traces sealed and collected", "reduction", "summaries and plots", "whole command")


@EVERY_MPI_IF_ALL
def test_a_quiet_run_prints_its_folder_and_what_failed(mpirun: MpiLauncher) -> None:
    config = sweep("8", block={"backend": ["gloo", "nccl"]}, required_backends=["nccl"])
    job = mpirun.run(1, "--quiet", config=config).check(1)
    assert job.stdout == f"{job.folder}\n"
    assert "failed: 1 of 2 cases" in job.stderr and "nccl is required" in job.stderr
    assert "hpcbench: " not in job.stderr and " ok " not in job.stderr
    assert job.folder is not None and (job.folder / "summary.json").exists()


def test_a_verbose_run_names_each_stage_and_each_skip_once(mpirun: MpiLauncher) -> None:
    config = sweep("8", block={"backend": ["gloo", "nccl"]})
    job = mpirun.run(2, "-v", "--mode", "pipelined", config=config).check()
    for stage in STAGES:
        assert job.stderr.count(f"hpcbench: {stage}: ") == 1, stage
    assert job.stderr.count("hpcbench: versions: ") == 1
    assert job.stderr.count('override: measure.mode = "pipelined"') == 1
    assert job.stderr.count("skipped: all_reduce nccl cuda fp32 sum 8B n=2 pipelined: ") == 1
    assert "[1/1] ok" in job.stdout and "hpcbench: " not in job.stdout


@EVERY_MPI_IF_ALL
def test_a_job_whose_reader_has_read_enough_goes_on_to_its_end(mpirun: MpiLauncher) -> None:
    """As in ``run | head`` of one rank, or of srun and torchrun."""
    words = f"exec {mpirun.program('python')} -m hpcbench {{}} > >(true)"
    for arguments in ("validate --json", "run config.json"):
        command = ("bash", "-c", words.format(arguments))
        job = mpirun.run(1, config=sweep("8"), command=command).check()
        assert job.stdout == job.stderr == ""
    written = {path.name for path in job.folder.iterdir()}
    assert {"results.h5", "summary.json", "summary.csv"} <= written
