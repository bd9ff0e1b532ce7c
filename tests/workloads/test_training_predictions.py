"""What is predicted of a training step is what torch calls, holds and keeps, in one process."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.backends.counting_backend import CallLog
from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.spec import SCHEDULE_NAMES, strategies
from hpcbench.kinds.training.plan.step import (
    stages_of,
)
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.expand import make_plan
from workloads.training_cases import stepped

SMALL: dict[str, Any] = {"kind": "training", "model": "gpt2", "layers": 4, "hidden": 192,
                         "vocab": 255, "seq_length": 16, "batch_size": 8}
FAMILIES = ["gpt2", "mistral-7b", "bert-large"]
BOTH = [False, True]
LIBRARYS = {"model": FAMILIES, "library": "transformers", "layers": 2}
OF_LIBRARY = {"lora": FAMILIES, "qlora": FAMILIES[1:]}
SGD = {"optimizer": "sgd"}
"""Where parameters are divided AdamW's states take torch long: one case each has them."""
BLOCKS: dict[str, list[dict[str, Any]]] = {
    "single": [{"model": FAMILIES}],
    "data": [{"model": FAMILIES}, {"strategies": {"data": [
        {"bucket_mb": 1, "comm_hook": ["none", "bf16", "powersgd"]}, {"bucket_view": True},
        {"balance": "dynamic"}]}},
        LIBRARYS | {"strategies": {"data": {"bucket_mb": 1, "balance": ["static", "dynamic"]}}}],
    "zero1": [{"model": FAMILIES}, {"strategies": {"zero1": {"balance": "dynamic"}}}, LIBRARYS],
    "fsdp": [{"model": FAMILIES, "accumulation": 2, "dtype": "bf16"},
             {"strategies": {"fsdp": {"reshard": BOTH}}}, LIBRARYS],
    "hsdp": [{"accumulation": 2}],
    "tensor": [{"model": "gpt2", "layers": 1, "world_size": 2, "strategies": "tensor"},
               {"model": FAMILIES, "layers": 1, "heads": 8, "kv_heads": 2, "inner": 202,
                "seq_length": 1200, "batch_size": 1, "world_size": 2, "strategies": "tensor"},
               {"model": FAMILIES, "world_size": 2, "checkpointing": ["selective", "operators"],
                "layers": 2, **SGD, "strategies": {"tensor": {"sequence_parallel": BOTH}}},
               {"world_size": 2, "dtype": ["bf16", "fp16"], "accumulation": 2, "layers": 2, **SGD,
                "strategies": {"tensor": {"sequence_parallel": BOTH, "loss_parallel": True}}}],
    "model": [{"world_size": 4, "accumulation": 2}],
    "pipeline": [{"world_size": 2, "strategies": {"pipeline": {"schedule": list(SCHEDULE_NAMES)}}},
                 {"world_size": 4, "accumulation": 2, "model": "mistral-7b", "dtype": "bf16"}],
    "hybrid": [{"world_size": 4, "layers": 2, "strategies": {"hybrid": [
                   {"tp": 2, "data": "fsdp"}, {"pp": 2, "data": "fsdp"}]}},
               {"world_size": 4, "accumulation": 2, **SGD, "strategies": {"hybrid": [
                   {"tp": 2, "data": ["replicate", "fsdp"]},
                   {"pp": 2, "data": "replicate", "schedule": "1F1B"},
                   {"pp": 2, "data": "fsdp", "schedule": "DualPipeV"}]}},
               {"world_size": 8, "dtype": "bf16", "layers": 2, **SGD, "strategies": {"hybrid": [
                   {"tp": 2, "data": "fsdp", "sequence_parallel": True, "loss_parallel": True},
                   {"tp": 2, "pp": 2, "data": "fsdp"},
                   {"tp": 2, "pp": 2, "data": "replicate", "sequence_parallel": True}]}}],
    **{name: [
        {"strategies": {name: [
            {"over": "data", "targets": "attention", "bucket_mb": 1, "rank": 32},
            {"over": "fsdp", "reshard": False}]}},
        {"model": ["bert-large", "mistral-7b"], "layers": 2, "hidden": 256, "accumulation": 2,
         "dtype": "bf16",
         "strategies": {name: {"over": ["data", "fsdp"]}}},
        {"model": FAMILIES, "hidden": 256, "heads": 4, "kv_heads": 2, "inner": 192, "layers": 1},
        LIBRARYS | {"model": OF_LIBRARY[name], "hidden": 384, "strategies": {
            name: {"over": ["data", "fsdp"]}}}] for name in ("lora", "qlora")},
}
"""Of each strategy what changes what is called."""


def works(strategy: str) -> list[Training]:
    blocks = [SMALL | {"strategies": strategy} | more for more in BLOCKS[strategy]]
    cases = make_plan(check_config({"benchmarks": blocks}, "test"), 8).cases
    assert not [case.skip for case in cases if case.skip]
    return [training_of(case) for case in cases]


def rehearsed(work: Training, rank: int) -> tuple[dict[str, tuple[int, int]], dict[str, Any]]:
    """Return collective -> (calls, bytes) of a rank's step, and what it tells of its memory.

    Of most strategies the first step calls what later ones do: test_fake_tensors.py.
    """
    call_log = CallLog()
    with stepped(work, rank, call_log, work.features.dry_run_calls) as operation:
        called = {name: (len(sizes), sum(sizes)) for name, sizes in call_log.tally.items()}
        return called, operation.answer()["memory"]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("strategy", [spec.name for spec in strategies()])
def test_calls_and_what_is_held(strategy: str) -> None:
    for work in works(strategy):
        for stage in stages_of(work)[::max(work.pp - 1, 1)]:  # the first and the last
            expected = predict_stage(work, stage)
            called, told = rehearsed(work, stage.rank * work.tp)
            assert called == {one.collective: (one.count, one.size_bytes)
                              for one in expected.calls}, work
            memory = moments(work, stage)[-1]
            assert (told["parameters"], told["gradients"]) == (
                memory.parameters, memory.gradients), work
            if work.dtype != "fp16":  # which may overflow on data that nobody sent
                # of ZeRO another rank may have the most
                least = 0.8 if strategy == "zero1" else 1 - 1e-4
                assert least * memory.optimizer <= told["optimizer_state"] <= memory.optimizer


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize(("strategy", "ranks"), [
    ({"fsdp": {}}, 2), ({"hybrid": {"tp": 2, "data": "fsdp", "loss_parallel": True}}, 4)],
    ids=["fsdp", "hybrid"])
def test_shards_gather_blocks_twice_and_the_rest_once(strategy: dict[str, Any], ranks: int) -> None:
    """Backward begins where forward ended, so what is no block stays gathered between them."""
    (case,) = make_plan(check_config({"benchmarks": [SMALL | {
        "strategies": strategy, "world_size": ranks, "accumulation": 2}]}, "test"), ranks).cases
    called, _ = rehearsed(training_of(case), 0)
    assert called["all_gather"][0] == 2 * (2 * SMALL["layers"] + 1)
