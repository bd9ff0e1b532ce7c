"""When the canary of a real job runs: at both ends of a pass, and between cases where it is due."""

from __future__ import annotations

import pytest

from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ALWAYS_DUE = """
from hpcbench.__main__ import main
from hpcbench.launch import supervisor
supervisor.canary_pause_s = lambda rows: 0.0
main()
"""
"""As hpcbench itself, but that no time passes between two canaries."""
CASES, PASSES = 3, 2


@pytest.mark.parametrize(("program", "ranks", "runs_of_a_pass"), [
    (["-m", "hpcbench"], 1, 2), (["-c", ALWAYS_DUE], 2, 1 + CASES)], ids=["short", "always due"])
def test_it_runs_at_both_ends_and_never_twice_in_a_row(
    mpirun: MpiLauncher, program: list[str], ranks: int, runs_of_a_pass: int,
) -> None:
    config = sweep(benchmarks=[{"kind": "collective", "name": "all", "backend": "gloo",
                                "collective": "all_reduce", "size": ["8", "64", "512"]}],
                   measure={"passes": PASSES, "canary": True})
    done = mpirun.run(ranks, config=config, command=[
        mpirun.program("python"), *program, "run", "config.json", "-o", "results"]).check()
    results = read(done.folder).results
    assert len(results.cases) == CASES and results.canary is not None
    passes = [run.pass_index for run in results.canary.runs]
    assert passes == [number for number in range(PASSES) for _ in range(runs_of_a_pass)]
    assert results.canary.n_not_ok == 0
