"""Parallel efficiency of trainings: from stamps, from steps without communication, and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpcbench.kinds.training.derive.slow_ranks import OwnSteps
from hpcbench.kinds.training.derive.stalls import (
    STAMPS,
    WITHOUT,
    Useful,
    beside_base,
    from_partner,
    from_stamps,
)
from hpcbench.kinds.training.present.tables import efficiencies
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.overlap import OverPasses
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME
from hpcbench.views.table import Table
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
    assert found["efficiency_of"] == STAMPS
    assert found["useful"].seconds == pytest.approx((0.009, 0.007))
    assert [found[name] for name in ("load_balance", "serialisation", "transfer")] == (
        pytest.approx([8 / 9, 1, 0.9]))
    assert found["efficiency_score"] == found["useful"].parallel == pytest.approx(0.8)
    assert found["efficiency_limit"] is None


@pytest.mark.parametrize("change", [{"tp": 2, "dp": 1}, {"calls": ("all_reduce", "broadcast")}])
def test_stamps_that_hold_waiting_give_nothing(change: dict[str, object]) -> None:
    """Ranks of tensor parallelism wait within forward; those of zero1 in the optimizer."""
    work = make_training(**{"dp": 2, **change})
    assert from_stamps(trained(make_training_case(work, world_size=2), 0.01),
                       stamps([6, 4], 2, 10)) == {}
    blocking = replace(CASE, backend="mpi")
    assert from_stamps(trained(blocking, 0.01), stamps([6, 4], 2, 10)) == {}


def test_one_rank_is_useful_all_the_time() -> None:
    alone = make_training_case(make_training(dp=1, strategy="single"), world_size=1)
    found = from_stamps(trained(alone, 0.01), stamps([8], 2, 10))
    assert (found["efficiency_score"], found["useful"].seconds) == (1, pytest.approx((0.01,)))


def over(seconds: float) -> OverPasses:
    return OverPasses(seconds, seconds, seconds, 3)


def test_steps_without_communication_give_two_factors() -> None:
    found = from_partner(trained(CASE, 0.01), OwnSteps(own_s=(over(0.006), over(0.003))))
    assert [found[name] for name in (
        "efficiency_score", "load_balance", "communication_efficiency")] == (
        pytest.approx([0.45, 0.75, 0.6]))
    assert (found["efficiency_of"], found["transfer"], found["efficiency_limit"]) == (
        WITHOUT, None, "communication_efficiency")
    assert from_partner(trained(CASE, 0.01), OwnSteps()) == {}


def test_times_that_contradict_have_no_score_and_show_no_factor() -> None:
    found = from_partner(trained(CASE, 0.01), OwnSteps(own_s=(over(0.02), over(0.02))))
    assert found["efficiency_score"] is None and found["useful"].parallel == pytest.approx(2)
    (row,) = table_of([trained(CASE, 0.01)], found).rows
    assert [row.cells[at] for at in (2, 3, 4)] == [None, 1, None]


def table_of(items: Sequence[CaseResult], values: Values) -> Table:
    (table,) = efficiencies(items, {item.case.case_id: values for item in items})
    return table


@pytest.mark.parametrize(("kind", "own", "factor"), [
    ("weak", (0.01, 0.01), 1.0), ("weak", (0.02, 0.02), 0.5), ("strong", (0.005, 0.005), 1.0),
    ("strong", (0.01, 0.01), 0.5)])
def test_computation_scaling(kind: str, own: tuple[float, ...], factor: float) -> None:
    base = {"useful": Useful(STAMPS, (0.01,), 1.0)}
    here = {"useful": Useful(STAMPS, own, 0.5), "scaling": kind, "scaling_base_ranks": 1}
    found = beside_base(here, base)
    assert found["computation_scaling"] == pytest.approx(factor)
    assert found["global_efficiency"] == pytest.approx(factor / 2)
    other = {"useful": Useful(WITHOUT, (0.01,), 1.0)}
    assert beside_base({**here, "scaling_base_ranks": 2}, other) == {}
    assert beside_base(here, {}) == {}


def test_the_table_has_the_trainings_of_several_ranks() -> None:
    item = trained(CASE, 0.01)
    values = from_stamps(item, stamps([8, 2], 0, 10))
    table = table_of([item], values)
    (row,) = table.rows
    shown = dict(zip((column.title for column in table.columns), row.cells, strict=True))
    assert (shown["score"], shown["limits"], shown["by"]) == (
        pytest.approx(0.5), "load balance", STAMPS)
    assert values["load_balance"] == pytest.approx(10 / 16)
    assert list(efficiencies([item], {})) == []


def test_trainings_that_differ_in_their_optimizer_have_two_names() -> None:
    both = [trained(make_training_case(replace(make_training(dp=2), optimizer=name), world_size=2),
                    0.01) for name in ("sgd", "adamw")]
    table = table_of(both, from_stamps(both[0], stamps([8, 2], 0, 10)))
    assert [str(row.cells[0]).split()[-1] for row in table.rows] == ["sgd", "adamw"]
