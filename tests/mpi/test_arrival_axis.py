"""Ranks that enter late on purpose: what the others lose by it, in real jobs on gloo and mpi."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.reduce.arrival import MOST_OFF
from hpcbench.reduce.results import CaseResult, LateArrivals
from hpcbench.reduce.timing import MOST_LATE
from launcher import launcher_for
from mpi.reading import NOT_DRAWN, ONCE, Outcome, read

BY_S = 0.02
ARRIVALS: list[Any] = ["together", {"late": "last", "by": 0}, {"late": "last", "by": "2ms"},
                       {"late": "last", "by": "20ms"}]


SORTS: list[Any] = [{"late": late, "by": "20ms"} for late in (0, "rotating", "all")]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what one job of 2 ranks found."""
    six: dict[str, Any] = {"arrival": SORTS, "iterations": 6}
    config = {
        "name": "late", "measure": {**ONCE, "warmup": 2, "iterations": 12},
        "output": NOT_DRAWN, "launch": {"timeout_s": 60},
        "benchmarks": [
            {"kind": "collective", "collective": ["all_reduce", "broadcast"], "name": "waits",
             "backend": ["gloo", "mpi"], "size": 64, "arrival": ARRIVALS},
            {"kind": "collective", "collective": "all_reduce", "size": 64, **six},
            {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
             "implementations": "torch", **six},
            {"kind": "collective", "collective": "all_reduce", "size": 64, "mode": "pipelined",
             **six}]}
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("late"))
    return read(launcher.run(2, config=config, timeout=100).check().folder)


def _found(outcome: Outcome, name: str, backend: str, arrival: str) -> tuple[
        CaseResult, LateArrivals]:
    (item,) = [item for item in outcome.results.cases
               if item.case.arrival.text == arrival and item.case.block == "waits"
               and (item.case.workload.name, item.case.backend) == (name, backend)]
    assert item.status == "ok", item.reason
    assert item.timing is not None and item.timing.arrivals is not None
    return item, item.timing.arrivals


@pytest.mark.mpi
def test_punctual_ranks_wait_for_a_late_one_unless_a_buffer_takes_what_they_send(
    outcome: Outcome,
) -> None:
    for name, backend in (("all_reduce", "gloo"), ("all_reduce", "mpi"), ("broadcast", "gloo")):
        item, late = _found(outcome, name, backend, "last:20ms")
        if _is_missed(item, late):
            continue
        assert late.lateness_s is not None and late.lateness_s > 0.8 * BY_S
        assert late.own_entry_s is not None and late.own_entry_s > BY_S / 2
        assert item.timing.last_in_s < BY_S / 2  # what is left does not grow with the lateness
        if not _is_off(late):
            assert late.absorbed_share is not None and abs(late.absorbed_share) < 0.5
        _, sooner = _found(outcome, name, backend, "last:2ms")
        _, punctual = _found(outcome, name, backend, "last:0")
        assert sooner.own_entry_s < late.own_entry_s > punctual.own_entry_s + BY_S / 2
        assert punctual.absorbed_share is None and punctual.missed_share == 0
    item, buffered = _found(outcome, "broadcast", "mpi", "last:20ms")  # the root sends, and goes on
    if _is_missed(item, buffered):
        return
    assert buffered.lateness_s is not None and buffered.lateness_s > 0.8 * BY_S
    assert buffered.own_entry_s is not None and buffered.own_entry_s < BY_S / 2
    if not _is_off(buffered):
        assert buffered.absorbed_share is not None and buffered.absorbed_share > 0.5


def _is_missed(item: CaseResult, late: LateArrivals) -> bool:
    """Return whether ranks missed their moment in most samples, as they may on a busy machine."""
    assert ("missed_lateness" in item.timing.quality) == (late.missed_share > MOST_LATE)
    return late.missed_share > 0.5


def _is_off(late: LateArrivals) -> bool:
    """Return whether ranks entered too far off their delay, as on a busy machine: no share then."""
    is_off = late.lateness_s is None or abs(late.lateness_s - BY_S) > MOST_OFF * BY_S
    assert is_off == (late.absorbed_share is None)
    return is_off


@pytest.mark.mpi
def test_every_sort_of_delay_is_in_the_stamps_of_collectives_and_primitives(
    outcome: Outcome,
) -> None:
    cases = [item for item in outcome.results.cases if item.case.block != "waits"]
    *ran, refused = [cases[at:at + 3] for at in (0, 3, 6)]
    assert all(item.status == "skipped" and "pipelined" in item.reason for item in refused)
    for block in ran:
        for item, late_ranks in zip(block, ([0] * 8, [0, 1] * 4, [1] * 8), strict=True):
            assert item.status == "ok", item.reason
            samples = outcome.samples[item.case.case_id]
            late = samples.start_ns.argmax(axis=0).tolist()
            assert sum(one == other for one, other in zip(late, late_ranks, strict=True)) >= 7
