"""Steps without memory call what real steps call, and what needs values is told.

The fake mode has no public name in torch; this was tried with torch 2.13.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from hpcbench.backends.counting_backend import CallLog
from hpcbench.backends.dry_step import dry_step, fake_tensors
from hpcbench.config.load import check_config
from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.spec import fewer_microbatches, pipelining, strategies
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import IN_8_BITS, Training, training_of
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.operations.models import OWN_LIBRARY
from hpcbench.operations.place import Place
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from workloads.test_training_predictions import works
from workloads.training_cases import stepped

MIB = 2**20


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    """End the world that a dry step leaves open, as its process ends then."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def called(work: Training, rank: int, *, fake: bool) -> tuple[dict[str, list[int]], Any]:
    """Return the sizes of a rank's calls in a step, in order, and what it holds."""
    call_log, steps = CallLog(), work.features.dry_run_calls if fake else 2
    with (fake_tensors() if fake else nullcontext(),
          stepped(work, rank, call_log, steps) as operation):
        answer = operation.answer()["memory"]
    return call_log.tally, {name: answer[name] for name in (
        "parameters", "gradients", "optimizer_state")}


def check_fake_steps(chosen: list[Training]) -> None:
    for work in chosen:
        for stage in stages_of(work)[::max(work.pp - 1, 1)]:
            rank = stage.rank * work.tp
            real = called(work, rank, fake=False)
            if work.dtype == "fp16":  # what nobody sent may overflow: then there are no states
                real = real[0], called(work, rank, fake=True)[1]
            assert called(work, rank, fake=True) == real, work


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("strategy", [spec.name for spec in strategies()])
def test_fake_steps_call_and_hold_what_real_ones_do(strategy: str) -> None:
    found = works(strategy)
    check_fake_steps([found[0], max(found, key=lambda work: (work.pp, work.tp, work.options))])


@pytest.mark.soak
@pytest.mark.timeout(1200)  # hybrid has dozens of works, moe too
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("strategy", [spec.name for spec in strategies()])
def test_so_they_do_with_all_options(strategy: str) -> None:
    check_fake_steps([work for work in works(strategy)  # of libraries one: it follows from others
                      if (work.library == OWN_LIBRARY or work.model == "gpt2")
                      and work.optimizer != IN_8_BITS])  # bitsandbytes reads values to make one


def case_of(world_size: int, **block: Any) -> Case:
    case, = make_plan(check_config({"benchmarks": [block]}, "test"), world_size).cases
    return case


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("model", "strategies"), [
    ("llama3-8b", "data"), ("deepseek-v3", {"moe": {"ep": 8}})])
def test_a_large_model_takes_no_memory(model: str, strategies: Any) -> None:
    case = case_of(64, kind="training", model=model, strategies=strategies, batch_size=1, layers=4)
    work, before = training_of(case), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = dry_step(case, lambda place: nullcontext(
        TrainingOperation(work, place, validate=False)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert step.calls == {one.collective: (one.count, one.size_bytes)
                          for one in predict_stage(work, stages_of(work)[0]).calls}
    assert not step.needed
    assert grown < 512 * MIB < case.memory_bytes / 32


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("options", [
    {"pp": 2}, {"pp": 2, "tp": 2, "data": "fsdp", "sequence_parallel": True},
    {"pp": 2, "schedule": "GPipe"}, {"pp": 2, "schedule": "Interleaved1F1B"},
    {"pp": 2, "schedule": "ZBVZeroBubble"}, {"pp": 2, "schedule": "DualPipeV"},
    {"pp": 2, "tp": 2, "ep": 2, "load": "router"}])
def test_many_micro_batches_call_what_fewer_show(options: dict[str, Any]) -> None:
    model = "moe-tiny" if "ep" in options else "gpt2"
    case = case_of(8, kind="training", model=model, batch_size=64, accumulation=2, layers=8,
                   hidden=32, heads=4, vocab=64, seq_length=8, dtype="bf16", strategies={
                       "hybrid": {"microbatches": 32, **options}})
    work = training_of(case)
    pipelined = pipelining(work)
    assert pipelined and sum(fewer_microbatches(pipelined, work.pp)) in range(1, 17)
    step = dry_step(case, lambda place: nullcontext(
        TrainingOperation(work, place, validate=False)))
    assert step.calls == {one.collective: (one.count, one.size_bytes)
                          for one in predict_stage(work, stages_of(work)[0]).calls}


class Reading:
    """An operation that decides by the values of a large tensor."""

    name = "reading"

    def __init__(self, place: Place) -> None:
        self.place = place
        assert gc.isenabled() != is_fake(torch.zeros(2**18))  # cycles may keep what is real
        self.values = torch.zeros(2**18)

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        if float(self.values.sum()) == 0:
            dist.all_reduce(self.values, group=self.place.group)


def reading(place: Place) -> nullcontext[Any]:
    return nullcontext(Reading(place))


def test_what_reads_values_is_tried_with_memory_if_it_fits() -> None:
    case = case_of(4, kind="collective", collective="all_reduce", size="1MiB", backend="nccl")
    case = replace(case, memory_bytes=2**26)
    step = dry_step(case, reading)
    assert step.calls == {"all_reduce": (1, MIB)}
    assert "_local_scalar_dense" in step.needed
    assert gc.isenabled()
    with pytest.raises(CaseError, match=r"reads values of tensors .* rank 0 needs \d+ bytes"):
        dry_step(replace(case, memory_bytes=2**60), reading)


def test_parts_of_a_tensor_are_made_one_by_one_and_are_those_of_torch() -> None:
    whole = torch.empty(64, 6)
    with fake_tensors():
        fake = torch.empty(64, 6)
        for count, dim in ((2, 0), (16, 0), (64, -2), (9, 0)):
            parts, expected = fake.chunk(count, dim), whole.chunk(count, dim)
            assert len(parts) == len(expected)
            assert [one.shape for one in parts] == [one.shape for one in expected]
            assert parts[-1].storage_offset() == expected[-1].storage_offset()
        assert len(torch.cat([*fake.chunk(16)])) == 64
    assert "chunk" not in vars(FakeTensor)


def test_small_numbers_are_real_and_others_are_not() -> None:
    with fake_tensors():
        counts = torch.arange(4).repeat(2)
        assert (counts + 1).tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
        assert float(torch.tensor(2.5)) == 2.5
        assert is_fake(torch.arange(8191).repeat(1000))
        assert is_fake(torch.zeros(2, 3))
        assert is_fake(torch.ones(3) * torch.tensor(2.0))
        assert torch.empty(3, device="meta").is_meta
        assert not is_fake(torch.zeros(3, device="meta"))


def test_a_shape_that_fits_not_is_refused_as_by_torch() -> None:
    with fake_tensors():
        left, right = torch.ones(2, 3), torch.ones(4, 5)
        for _ in range(2):  # also when the operator is known with others
            assert (left @ torch.ones(3, 4)).shape == (2, 4)
            with pytest.raises(RuntimeError):
                left @ right
            with pytest.raises(RuntimeError):
                left.add_(right)
