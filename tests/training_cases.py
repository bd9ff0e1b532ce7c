"""Training workloads and cases without a sweep file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcbench.config.axes import CHECKED
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.points import Option


def make_training(strategy: str = "data", **changes: Any) -> Training:
    """Return a tiny transformer on two data-parallel ranks: 2 x 4 samples of 32 tokens a step."""
    options: tuple[tuple[str, Option], ...] = ()
    work = Training(
        strategy=strategy, options=options, model="transformer-tiny", shrunk=False,
        family="gpt", layers=2, hidden=64, heads=4, kv_heads=4, inner=256, vocab=256,
        seq_length=32, dtype="fp32", batch_size=4, accumulation=1, optimizer="adamw",
        checkpointing="none", dp=2, tp=1, pp=1, parameters=118_528,
        flops=(("megatron", 190_000_000), ("palm", 200_000_000)), calls=("all_reduce",))
    return replace(work, **changes)


def make_training_case(work: Training | None = None, *, index: int = 0, **changes: Any) -> Case:
    """Return a training case on as many ranks as its degrees say, with gloo."""
    work = work or make_training()
    values: dict[str, Any] = {
        "index": index, "block": "trainings", "kind": "training", "backend": "gloo",
        "device": "cpu", "world_size": work.ranks, "env": (),
        "mode": "barrier_start", "warmup": 2, "iterations": 20, "check": CHECKED,
        "timeout_s": 60.0, "wakeup_s": 0.2, "skip": None, "needs": (), "estimate_s": 0.5,
        "memory_bytes": 4 * 4 * work.parameters}
    values |= changes
    case = Case(case_id="", workload=work, **values)
    return replace(case, case_id=case_id({"identity": f"{index} {case.label} {work}"}))
