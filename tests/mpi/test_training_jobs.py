"""The twin of every shipped job in a real job: what is planned for GPUs runs here, smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbench.config.load import read_config
from jobs import JOBS, twin_words
from launcher import MpiLauncher
from mpi.reading import QUICK, read

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("job", [
    pytest.param(job, id=job.stem, marks=[] if "scaling" in job.stem else pytest.mark.soak)
    for job in JOBS])
def test_the_twin_of_a_job_runs(mpirun: MpiLauncher, job: Path) -> None:
    done = mpirun.run(4, *twin_words(job), *QUICK, config=read_config(job), timeout=240).check(0)
    mpirun.assert_no_orphans()
    results = read(done.folder).results
    assert {item.status for item in results.cases} == {"ok"}, [
        (item.case.label, item.reason) for item in results.cases if item.status != "ok"]
    assert {told["parity"]["on"] for item in results.cases
            for told in item.detail.values()} == {"the model"}
