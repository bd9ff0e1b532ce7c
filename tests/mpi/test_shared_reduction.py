"""A real job whose rank 0 reduces in several processes, beside an MPI that is still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbench.reduce.reduce import reduce_folder
from launcher import EVERY_MPI, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ON_SEVERAL = Path(__file__).with_name("on_several_processes.py")


@EVERY_MPI
def test_the_job_ends_as_ever_with_the_bytes_of_one_process(mpirun: MpiLauncher) -> None:
    config = sweep(benchmarks=[{"kind": "collective", "name": "all", "backend": "gloo",
                                "collective": ["all_reduce", "all_gather", "broadcast"],
                                "size": ["4KiB", "64KiB"]}], measure={"passes": 2})
    done = mpirun.run(2, config=config, command=[
        mpirun.program("python"), str(ON_SEVERAL), "run", "config.json", "-o", "results"])
    done.check()
    assert "reduced in 2 processes" in done.stderr
    outcome = read(done.folder)
    assert set(outcome.status().values()) == {"ok"} and len(outcome.status()) == 6
    assert done.folder is not None
    content = (done.folder / "results.h5").read_bytes()
    reduce_folder(done.folder)
    assert (done.folder / "results.h5").read_bytes() == content
    mpirun.assert_no_orphans()
