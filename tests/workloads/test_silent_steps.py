"""Steps without communication, and communication without steps, of ranks that are alone here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.counting_backend import (
    CallLog,
    RecordedCall,
    TensorSpec,
    Wait,
    open_counting_world,
)
from hpcbench.backends.groups import open_lines
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.run.runner import ReplayOperation, TrainingOperation, calls_of_step
from hpcbench.kinds.training.run.strategies.replica import MOST, evenly_spaced
from hpcbench.trace.schema import ARRIVAL
from workloads.training_cases import counting_place, stepped, training

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
TOGETHER = {"sequence_parallel": True, "loss_parallel": True}
Works = tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]
SILENT: Works = (
    ("data", {"comm_hook": "powersgd"}, {"degrees": Degrees(dp=2), "accumulation": 2}),
    ("zero1", {}, {"degrees": Degrees(dp=2), "dtype": "fp16"}),
    ("fsdp", {}, {"degrees": Degrees(dp=2), "dtype": "bf16"}),
    ("tensor", TOGETHER, {"degrees": Degrees(tp=2), "dtype": "fp16"}),
    ("pipeline", {"schedule": "1F1B"}, {"degrees": Degrees(pp=2), "dtype": "fp16"}),
    ("hybrid", {"tp": 2, "ep": 2}, {"degrees": Degrees(dp=2, tp=2), "model": "moe-tiny"}),
)
REPLAYED: Works = (
    ("data", {"comm_hook": "powersgd"}, {"degrees": Degrees(dp=2)}),
    ("zero1", {}, {"degrees": Degrees(dp=2)}),
    ("hsdp", {"replicas": 2}, {"degrees": Degrees(dp=4)}),
    ("hybrid", {"tp": 2, "data": "fsdp"}, {"degrees": Degrees(dp=2, tp=2)}),
    ("hybrid", {"pp": 2, "data": "fsdp"}, {"degrees": Degrees(dp=2, pp=2)}),
    ("hybrid", {"pp": 2, "ep": 2}, {"degrees": Degrees(dp=2, pp=2), "model": "moe-tiny"}),
)


@pytest.mark.parametrize(("name", "options", "changes"), SILENT)
def test_no_step_without_communication_has_a_number_that_is_none(
    name: str, options: dict[str, Any], changes: dict[str, Any],
) -> None:
    work = replace(training(name, options, **changes), communication="off")
    for stage in stages_of(work)[::max(work.pp - 1, 1)]:
        call_log = CallLog()
        with counting_place(work, stage.rank * work.tp, call_log) as place:
            operation = TrainingOperation(work, place, validate=True)
            assert operation._parity is None
            for _ in range(3):
                operation.prepare()
                operation.run()
                assert operation.check() is None
                assert math.isfinite(float(operation._loss))
            weights = [torch.isfinite(getattr(one, "to_local", lambda: one)()).all()  # noqa: B023
                       for one in parameters_of(operation)]
            assert weights and all(weights)
            operation.corrupt_output()
            assert (operation.check() is not None) == operation._strategy.holds_loss
            operation.close()
        assert call_log.tally == {}


def parameters_of(operation: TrainingOperation) -> list[Any]:
    strategy: Any = operation._strategy
    return [*(strategy.plain.parameters() if hasattr(strategy, "plain") else strategy._parameters)]


@pytest.mark.parametrize(("name", "options", "changes"), REPLAYED)
def test_the_communication_alone_is_that_of_a_step(
    name: str, options: dict[str, Any], changes: dict[str, Any],
) -> None:
    work = replace(training(name, options, **changes), communication="only")
    for stage in stages_of(work)[::max(work.pp - 1, 1)]:
        call_log = CallLog()
        with counting_place(work, stage.rank * work.tp, call_log) as place:
            operation = ReplayOperation(work, place)
            assert call_log.tally == {}
            operation.run()
            operation.close()
        called = {name: (len(sizes), sum(sizes)) for name, sizes in call_log.tally.items()}
        assert called == {one.collective: (one.count, one.size_bytes)
                          for one in predict_stage(work, stage).calls}


def test_messages_are_waited_for_where_the_step_does() -> None:
    work = training("pipeline", {"schedule": "GPipe", "microbatches": 2}, degrees=Degrees(pp=2))
    with counting_place(work, 1, CallLog()) as place:
        program = calls_of_step(work, place, CallLog())
    hidden = TensorSpec((2, 16, 64), torch.float32, torch.device("cpu"))
    told = [(item.method, item.arguments[0][0]) if isinstance(item, RecordedCall) else item
            for item in program]
    received, sent, tied = ("recv", hidden), ("send", hidden), (96, 64)
    assert [item for item in told if isinstance(item, tuple) and item[0] == "recv"][:2] == [
        received] * 2
    assert told.count(sent) == 2
    assert all(isinstance(program[item.call], RecordedCall) and item.call < at
               for at, item in enumerate(program) if isinstance(item, Wait))
    assert len({item.call for item in program if isinstance(item, Wait)}) == 6
    assert [item[1].shape for item in told[-4:-2] if not isinstance(item, Wait)] == [tied] * 2


def test_every_bucket_records_when_it_is_ready() -> None:
    work = training("data", {"bucket_mb": 1}, degrees=Degrees(dp=2), accumulation=2,
                    sizes={"layers": 4, "hidden": 128, "seq_length": 16, "vocab": 1024})
    call_log = CallLog()
    with stepped(work, 0, call_log) as operation:
        told = operation.answer()["phases"]
    buckets = len(call_log.tally["all_reduce"])
    assert buckets > 2
    assert told["names"] == ["data", "forward", "backward", "exchange", "optimizer",
                             *(f"{ARRIVAL}{number + 1}" for number in range(buckets))]
    values = {name: ns[0] for name, ns in zip(told["names"], told["ns"], strict=True)}
    moments = [values[f"{ARRIVAL}{number + 1}"] for number in range(buckets)]
    assert moments == sorted(moments)
    own = values["data"] + values["forward"] + values["backward"]
    assert 0.5 * own < moments[0] < moments[-1] <= own


def test_of_many_buckets_the_first_and_the_last_are_watched() -> None:
    assert evenly_spaced(3) == [0, 1, 2]
    assert len(evenly_spaced(1000)) == MOST
    assert (evenly_spaced(1000)[0], evenly_spaced(1000)[-1]) == (0, 999)


def test_what_nobody_sent_is_finite_and_other_each_time(request: pytest.FixtureRequest) -> None:
    call_log = CallLog()
    group = open_counting_world(4, call_log, 2)
    request.addfinalizer(dist.destroy_process_group)
    first, second = torch.full((3, 5), math.nan), torch.full((3, 5), math.nan)
    group.recv([first], 1, 0).wait()
    group.recv([second], 1, 0).wait()
    assert torch.isfinite(first).all()
    assert torch.isfinite(second).all()
    assert not torch.equal(first, second)
    whole, part = torch.arange(8.0), torch.full((2,), math.nan)
    group._reduce_scatter_base(part, whole).wait()
    assert part.tolist() == [4, 5]
    rows = [torch.full((2,), math.nan) for _ in range(4)]
    group.allgather([rows], [part]).wait()
    assert all(row.tolist() == [4, 5] for row in rows)
    line = open_lines(group, [[0, 1], [2, 3]], 2)
    assert (line.rank(), line.size(), call_log.opened) == (0, 2, [[[0, 1], [2, 3]]])
