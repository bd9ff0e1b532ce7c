"""Which rank comes late to the exchange of gradients: from stamps to a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, Steps
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import ARRIVAL, Record
from synthetic import plan_of, with_rows, write_synthetic_run
from training_cases import make_training, make_training_case

CASE = make_training_case(make_training(dp=3), world_size=3)
BEFORE_NS = 200
"""The last bucket is ready so long before the end of the step."""


def reduced(folder: Path, change: Callable[[int, Record], Record]) -> CaseResult:
    write_synthetic_run(folder, plan_of([CASE], 3, passes=2),
                        change=lambda rank, record: (change(rank, record),))
    return reduce_folder(folder).cases[0]


def with_buckets(rank: int, record: Record) -> Record:
    """Return a record whose rank 2 begins its steps late by 150 ns; all others are as they were."""
    rows = record.samples.rows()
    rows[:, 0] += 150 * (rank == 2)
    step = rows[:, 1] - rows[:, 0]
    return replace(with_rows(record, rows), phases={
        "backward": step - BEFORE_NS, "exchange": np.full(len(step), BEFORE_NS),
        f"{ARRIVAL}1": step // 2, f"{ARRIVAL}7": step - BEFORE_NS + 20 * (rank == 2)})


def steps_of(item: CaseResult) -> Steps:
    assert item.timing is not None and item.timing.steps is not None, item.reason
    return item.timing.steps


def test_arrivals_count_from_the_first_rank_s_begin(tmp_path: Path) -> None:
    item = reduced(tmp_path, with_buckets)
    steps = steps_of(item)
    assert [phase.name for phase in steps.phases] == ["backward", "exchange"]
    assert steps.other_share == 0  # arrivals are no durations
    first, last = steps.arrivals
    assert (first.bucket, last.bucket) == (1, 7)
    with open_results(tmp_path) as file:
        assert file.results.cases[0] == item
        samples = file.samples(CASE.case_id)
    timed = np.flatnonzero((samples.flags[0] & 1) == 0)
    late_ns = samples.start_ns - samples.start_ns.min(axis=0)
    arrived_ns = (late_ns + samples.phases[f"{ARRIVAL}7"])[:, timed]
    votes = (arrived_ns == arrived_ns.max(axis=0)).mean(axis=1)
    assert last.last_rank == int(np.argmax(votes))
    assert last.last_share == pytest.approx(votes.max(), abs=0.1)
    assert last.behind_s > 0
    assert all(early <= late for early, late in zip(first.median_s, last.median_s, strict=True))


def test_the_steps_of_each_pass_are_recorded(tmp_path: Path) -> None:
    steps = steps_of(reduced(tmp_path, with_buckets))
    assert len(steps.pass_step_s) == 2
    for times in steps.pass_step_s:
        assert times is not None and times == pytest.approx(steps.step_s, rel=0.5)
