"""Messages between every two of three ranks: measured, checked, shown; who is blamed for a hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from golden import hpcbench
from hpcbench.reduce.results import CaseResult
from launcher import Finished, launcher_for
from mpi.reading import NOT_DRAWN, ONCE, Outcome, read

pytestmark = pytest.mark.mpi
STOPPED, WRONG, COLD = "24", "40", "3000"
TIMEOUT_S = 12.0  # two other workers may have both cores, and ranks of MPI spin
PAIRS = {"kind": "hardware", "test": "pairs", "messages": 3}
EVERY_WAY = {**PAIRS, "direction": ["one way", "both at once"], "concurrent": [True, False],
             "cache": "warm"}
COLD_ONES = {**PAIRS, "direction": "both at once", "concurrent": False, "cache": "cold"}
"""Each case of them takes a second: what a cache may hold is allocated and passed through."""
CONFIG = {
    "name": "pairs", "measure": {**ONCE, "warmup": 1, "iterations": 3},
    "launch": {"timeout_s": TIMEOUT_S}, "output": NOT_DRAWN,
    "benchmarks": [
        {**EVERY_WAY, "name": "large", "backend": "gloo", "size": "100000"},
        {**EVERY_WAY, "name": "small", "backend": "mpi", "size": "1", "concurrent": True},
        {**PAIRS, "name": "small_gloo", "backend": "gloo", "size": "1"},
        {**COLD_ONES, "name": "cold_mpi", "backend": "mpi", "size": "100000", "what": "bandwidth"},
        {"kind": "hardware", "test": "pairs", "what": "latency", "size": [STOPPED, WRONG],
         "concurrent": False},
        {"kind": "hardware", "test": "pairs", "what": "bandwidth", "size": [COLD]}],
    "fault": [{"case": f"pairs gloo * {STOPPED}B *", "rank": 1, "kind": "stop", "iteration": 2},
              {"case": f"pairs gloo * {WRONG}B *", "rank": 2, "kind": "wrong", "iteration": 0},
              {"case": f"pairs gloo * {COLD}B *", "rank": 2, "kind": "wrong", "iteration": 0}],
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Run all cases once, with the faults."""
    mpirun = launcher_for("mpich", tmp_path_factory.mktemp("pairs"))
    yield mpirun.run(3, config=CONFIG, timeout=100).check(1)
    mpirun.assert_no_orphans()


@pytest.fixture(scope="module")
def outcome(job: Finished) -> Outcome:
    return read(job.folder)


def of_size(outcome: Outcome, *sizes: int) -> list[CaseResult]:
    return [item for item in outcome.results.cases if item.case.workload.message_bytes in sizes]


def test_every_link_is_measured_and_every_byte_checked(outcome: Outcome) -> None:
    sound = of_size(outcome, 1, 100_000)
    assert len(sound) == 2**3 + 2**2 + 2 + 1 and {item.status for item in sound} == {"ok"}
    for item in sound:
        record = outcome.results.record_of(item)
        assert item.n_wrong == 0 and record is not None and record["pairs"] is not None
        for rank, row in enumerate(record["pairs"].matrix):
            assert [peer for peer, value in enumerate(row) if value is None] == [rank]
            assert all(value > 0 for value in row if value is not None)
        (distance,) = record["pairs"].distances
        assert (distance.name, distance.links) == ("same node", 6)
    assert not {code for code in outcome.codes() if code in ("HB148", "HB120")}


def test_the_tables_and_charts_are_there(job: Finished) -> None:
    assert "worst link" in job.stdout and "pairs latency" in job.stdout
    told = hpcbench("plot", str(job.folder), "--only", "hardware-pairs-bandwidth*")
    drawn = [path.name for path in Path(job.folder / "plots").iterdir()]
    assert any(name.startswith("hardware-pairs-bandwidth") for name in drawn), told


def test_a_rank_that_stops_is_blamed_and_the_round_named(outcome: Outcome) -> None:
    (item,) = of_size(outcome, int(STOPPED))
    assert (item.status, item.blamed_rank) == ("timeout", 1), item.reason
    assert "rank 1: process is stopped" in item.reason
    assert "rank 0, 2 before round 1 of 3" in item.reason, item.reason
    assert "pair of ranks" in item.reason


def test_a_wrong_byte_names_its_sender(outcome: Outcome) -> None:
    for item in of_size(outcome, int(WRONG)):
        assert (item.status, item.blamed_rank) == ("wrong", 2)
        assert "message of rank 1: 1 of 40 elements" in item.reason, item.reason
    (cold,) = of_size(outcome, int(COLD))
    assert (cold.status, cold.blamed_rank, cold.case.workload.cache) == ("wrong", 2, "cold")
    assert "message of rank 1: 1 of 3000 elements" in cold.reason, cold.reason
