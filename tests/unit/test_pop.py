"""Parallel efficiency of trainings: from stamps, from steps without communication, and scaling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcbench.kinds.training.derive.deriver import TrainingRecord, efficiency_values
from hpcbench.kinds.training.derive.rates import ScalingRecord
from hpcbench.kinds.training.derive.slow_ranks import Exposure
from hpcbench.kinds.training.derive.stalls import (
    STAMPS,
    WITHOUT,
    Pop,
    beside_base,
    from_partner,
    from_stamps,
)
from hpcbench.kinds.training.present.tables import efficiencies
from hpcbench.reduce.results import CaseSamples
from hpcbench.statistics.overlap import OverPasses
from hpcbench.statistics.scaling_laws import Efficiency
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME
from training_cases import make_training, make_training_case
from training_results import trained

MS = 1_000_000
CASE = make_training_case(make_training(dp=2), world_size=2)


def stamps(ready_ms: list[int], optimizer_ms: int, step_ms: int, steps: int = 6) -> CaseSamples:
    """Return steps of ranks that meet once, each from the same moment on."""
    ranks = len(ready_ms)
    shape = (ranks, steps)
    start = np.broadcast_to(np.arange(steps) * 100 * MS, shape).astype(np.int64)
    ready = np.broadcast_to(np.array(ready_ms)[:, None] * MS, shape).astype(np.int64)
    after = np.full(shape, optimizer_ms * MS, np.int64)
    none, pass_index = np.full(shape, NO_DEVICE_TIME, np.int64), np.arange(steps) // (steps // 3)
    return CaseSamples(
        tuple(range(ranks)), np.zeros(steps, np.int64), pass_index, start, start + step_ms * MS,
        none, none, np.zeros(shape, np.int64),
        {"forward": ready // 3, "backward": ready - ready // 3,
         "exchange": step_ms * MS - ready - after, "optimizer": after, f"{ARRIVAL}1": ready})


def test_stamps_give_all_factors() -> None:
    found = from_stamps(trained(CASE, 0.01), stamps([6, 4], 3, 10))
    assert found and found.source == STAMPS
    assert found.useful_s == pytest.approx((0.009, 0.007))
    assert found.step_s == pytest.approx(0.01)
    one = found.efficiency
    assert (one.load_balance, one.serialisation, one.transfer) == pytest.approx((8 / 9, 1, 0.9))
    assert found.score == one.parallel == pytest.approx(0.8)
    assert found.limit is None


@pytest.mark.parametrize("change", [{"tp": 2, "dp": 1}, {"calls": ("all_reduce", "broadcast")}])
def test_stamps_that_hold_waiting_give_nothing(change: dict[str, object]) -> None:
    """Ranks of tensor parallelism wait within forward; those of zero1 in the optimizer."""
    work = make_training(**{"dp": 2, **change})
    assert from_stamps(trained(make_training_case(work, world_size=2), 0.01),
                       stamps([6, 4], 2, 10)) is None
    blocking = replace(CASE, backend="mpi")
    assert from_stamps(trained(blocking, 0.01), stamps([6, 4], 2, 10)) is None


def test_one_rank_is_useful_all_the_time() -> None:
    alone = make_training_case(make_training(dp=1, strategy="single"), world_size=1)
    found = from_stamps(trained(alone, 0.01), stamps([8], 2, 10))
    assert found and (found.score, found.useful_s) == (1, pytest.approx((0.01,)))


def over(seconds: float) -> OverPasses:
    return OverPasses(seconds, seconds, seconds, 3)


def test_steps_without_communication_give_two_factors() -> None:
    found = from_partner(trained(CASE, 0.01), Exposure(own_s=(over(0.006), over(0.003))))
    assert found and found.source == WITHOUT
    assert (found.score, found.efficiency.load_balance, found.efficiency.communication) == (
        pytest.approx(0.45), pytest.approx(0.75), pytest.approx(0.6))
    assert found.efficiency.transfer is None and found.limit == "communication"
    assert from_partner(trained(CASE, 0.01), Exposure()) is None


def test_times_that_contradict_have_no_score_and_no_factor() -> None:
    found = from_partner(trained(CASE, 0.01), Exposure(own_s=(over(0.02), over(0.02))))
    assert found and found.score is None and found.efficiency.parallel == pytest.approx(2)
    assert found.factor("communication") is None and found.factor("load_balance") == 1


@pytest.mark.parametrize(("kind", "own", "factor"), [
    ("weak", (0.01, 0.01), 1.0), ("weak", (0.02, 0.02), 0.5), ("strong", (0.005, 0.005), 1.0),
    ("strong", (0.01, 0.01), 0.5)])
def test_computation_scaling(kind: str, own: tuple[float, ...], factor: float) -> None:
    base = Pop(STAMPS, (0.01,), 0.01, Efficiency(1, 1, 1, 1, 1))
    here = Pop(STAMPS, own, 0.02, Efficiency(0.5, 1, 0.5, 1, 0.5))
    scaling = ScalingRecord(kind, 0.5, "base", 1, None, "")
    found = beside_base(here, scaling, {"base": base})
    assert found and found.computation_scaling == pytest.approx(factor)
    assert found.global_efficiency == pytest.approx(factor / 2)
    other = replace(base, source=WITHOUT)
    assert beside_base(here, replace(scaling, base_ranks=2), {"base": other}) == here
    assert beside_base(here, None, {}) == here


def test_the_table_has_the_trainings_of_several_ranks() -> None:
    item = trained(CASE, 0.01)
    record = TrainingRecord(pop=from_stamps(item, stamps([8, 2], 0, 10)))
    (table,) = efficiencies([item], {item.case.case_id: record})
    (row,) = table.rows
    shown = dict(zip((column.name for column in table.columns), row.cells, strict=True))
    assert (shown["score"], shown["limits"], shown["source"]) == (
        pytest.approx(0.5), "load balance", STAMPS)
    assert efficiency_values(record.pop)["load_balance"] == pytest.approx(10 / 16)
    assert set(efficiency_values(None).values()) == {None}
    assert list(efficiencies([item], {})) == []


def test_trainings_that_differ_in_their_optimizer_have_two_names() -> None:
    both = [trained(make_training_case(replace(make_training(dp=2), optimizer=name), world_size=2),
                    0.01) for name in ("sgd", "adamw")]
    record = TrainingRecord(pop=from_stamps(both[0], stamps([8, 2], 0, 10)))
    (table,) = efficiencies(both, {item.case.case_id: record for item in both})
    assert [str(row.cells[0]).split()[-1] for row in table.rows] == ["sgd", "adamw"]
