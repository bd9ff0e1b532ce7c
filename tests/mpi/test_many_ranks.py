"""Many more ranks than cores: what grows with their number still fits, and every one is heard.

Each rank costs about 4 s of CPU time to start and end, nearly all of it imports.
"""

from __future__ import annotations

import os

import pytest

from launcher import EVERY_MPI_IF_ALL, ROOT, MpiLauncher
from mpi.reading import read

pytestmark = pytest.mark.mpi


@pytest.mark.soak
@pytest.mark.timeout(900)
@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("ranks", [32, 64])
def test_a_smoke_sweep_of_many_oversubscribed_ranks(mpirun: MpiLauncher, ranks: int) -> None:
    _smoke(mpirun, ranks)


def test_a_smoke_sweep_of_oversubscribed_ranks(mpirun: MpiLauncher) -> None:
    """More ranks than cores, where there are at most seven, and than other tests have."""
    _smoke(mpirun, min(8, max(5, (os.cpu_count() or 1) + 1)))


def _smoke(mpirun: MpiLauncher, ranks: int) -> None:
    words = [mpirun.program("python"), "-m", "hpcbench", "run", str(ROOT / "slurm/smoke.json"),
             "--set", "output.plots=false", "--set", "output.report=false", "-o", "out"]
    done = mpirun.run(ranks, command=words, timeout=100 + 10 * ranks).check()
    outcome = read(done.folder)
    assert outcome.results.run.ranks_present == tuple(range(ranks))
    assert set(outcome.status().values()) == {"ok"}, outcome.status()
    for samples in outcome.samples.values():
        assert samples is not None and samples.ranks == tuple(range(ranks))
    assert outcome.results.canary is not None
    mpirun.assert_no_orphans()
