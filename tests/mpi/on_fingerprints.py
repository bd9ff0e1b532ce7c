"""Run under mpirun: strategies on a model that counts as large, and strategies with mistakes.

Rank 0 prints for each what it was compared with, as lines of JSON.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.kinds.training.derive.fingerprints import counterparts
from hpcbench.kinds.training.plan import planner as untimed
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run import runner as operation
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.parity import Parity
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.kinds.training.run.strategies.base import Batch, PhaseClock
from hpcbench.kinds.training.run.strategies.data import Data
from hpcbench.kinds.training.run.strategies.replica import Fsdp
from hpcbench.operations.place import Place
from hpcbench.reduce.results import CaseResult
from training_cases import make_training_case
from unit.results_factory import ok
from workloads.training_cases import training

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SAMPLES = 8
FACTORS = {"fp32": 1.01, "bf16": 1.05}
"""Of a gradient that is scaled: the bound of its norm is 2 % in bf16."""
BRIEFLY = ("single", "data", "zero1", "fsdp", "scaled")
"""What two ranks do in bf16, too: that gradient is the mistake that is nearest to a bound."""
UP = "blocks.{}.mlp.up.weight"


class OneScaled(Fsdp):
    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(batch, phases)
        local(self.plain.get_parameter(UP.format(1)).grad).mul_(FACTORS[self.spec.dtype])
        return loss


class Swapped(Fsdp):
    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(batch, phases)
        one, two = (self.plain.get_parameter(UP.format(block)) for block in (0, 1))
        one.grad, two.grad = two.grad, one.grad
        return loss


class NotExchanged(Data):
    def communicating(self, last: bool) -> AbstractContextManager[object]:
        return self.ddp.no_sync()


class NotUpdated(Fsdp):
    def update(self, phases: PhaseClock) -> None:
        if RANK == 1:
            self.plain.get_parameter(UP.format(0)).grad = None
        super().update(phases)


MISTAKES: dict[str, tuple[str, type[Any]]] = {
    "scaled": ("fsdp", OneScaled), "swapped": ("fsdp", Swapped),
    "not exchanged": ("data", NotExchanged), "not updated": ("fsdp", NotUpdated)}


def trainings(dtype: str) -> dict[str, Training]:
    half = SIZE // 2
    laid_out = {
        "single": Degrees(), "data": Degrees(dp=SIZE), "zero1": Degrees(dp=SIZE),
        "fsdp": Degrees(dp=SIZE), "tensor": Degrees(tp=SIZE), "pipeline": Degrees(pp=SIZE)}
    options: dict[str, dict[str, Any]] = {
        "pipeline": {"microbatches": SIZE}, "hsdp": {"replicas": half}}
    if SIZE > 2:
        laid_out |= {"hsdp": Degrees(dp=SIZE), "hybrid": Degrees(dp=half, tp=2)}
        options["hybrid"] = {"tp": 2, "data": "fsdp"}
    sizes = {"layers": SIZE, "hidden": 64, "seq_length": 16, "vocab": 97}
    return {name: training(name, options.get(name), degrees=degrees, sizes=sizes, dtype=dtype,
                           batch_size=SAMPLES // degrees.dp)
            for name, degrees in laid_out.items() if is_done(name, dtype)}


def is_done(name: str, dtype: str) -> bool:
    return SIZE > 2 or dtype == "fp32" or name in BRIEFLY


def recorded(work: Training, place: Place, alone: Place) -> dict[str, Any]:
    """Return what a rank records of a training after its first step."""
    where = alone if work.ranks == 1 else place
    if where.rank >= where.world_size:
        return {}
    step = TrainingOperation(work, where, validate=True)
    step.prepare()
    step.run()
    step.check()
    answer = step.answer()
    step.close()
    return {key: answer[key] for key in ("fingerprints",) if key in answer}


def judged(works: dict[str, Training], reported: dict[str, dict[str, Any]]) -> None:
    """Print on rank 0 what each was compared with."""
    items: list[CaseResult] = []
    for at, (label, work) in enumerate(works.items()):
        items.append(replace(ok(make_training_case(work, index=at), 1e-3),
                             detail={"0": reported[label]}))
    found = counterparts(items)
    for label, item in zip(works, items, strict=True):
        print(json.dumps({"label": label, "dtype": works[label].dtype,
                          **asdict(found[item.case.case_id])}), flush=True)


def compare(works: dict[str, Training], places: tuple[Place, Place]) -> None:
    """Compare what is right, and then each mistake with some of that."""
    right = operation._strategy_class
    found = {label: recorded(work, *places) for label, work in works.items()}
    if RANK == 0:
        judged(works, found)
    for label, (name, kind) in MISTAKES.items():
        dtype = works[name].dtype
        if not is_done(label, dtype) or (label == "not updated" and dtype == "bf16"):
            continue  # in bf16, rounding changes as many signs as that mistake
        operation._strategy_class = lambda _, kind=kind: kind
        wrong = recorded(works[name], *places)
        operation._strategy_class = right
        if RANK == 0:
            judged({"single": works["single"], "zero1": works["zero1"], label: works[name]},
                   {**found, label: wrong})


def main() -> None:
    path = WORLD.bcast(str(Path("store").resolve()))
    dist.init_process_group("gloo", store=dist.FileStore(path, SIZE), rank=RANK, world_size=SIZE)
    cpu = torch.device("cpu")
    places = (Place(RANK, SIZE, dist.group.WORLD, cpu), Place(RANK, 1, dist.new_group([0]), cpu))
    untimed.MOST_PARAMETERS = 0  # all models are large
    operation.parity = lambda *_: Parity("a small model", 0.0, None)
    for dtype in ("fp32", "bf16"):
        compare(trainings(dtype), places)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
