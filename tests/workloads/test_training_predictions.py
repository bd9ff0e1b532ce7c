"""What is predicted of a training step is what torch calls, holds and keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest

from hpcbench.backends.counting_backend import CallLog
from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.memory import ERROR, moments
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.spec import SCHEDULE_NAMES, strategies
from hpcbench.kinds.training.plan.step import (
    stages_of,
)
from hpcbench.kinds.training.plan.workload import CHUNKED, LINEAR, Training, training_of
from hpcbench.kinds.training.run.runner import TrainingOperation, count_step
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan
from launcher import ROOT
from workloads.training_cases import alone, stepped, training

SMALL: dict[str, Any] = {"kind": "training", "model": "gpt2", "layers": 4, "hidden": 192,
                         "vocab": 255, "seq_length": 16, "batch_size": 8}
FAMILIES = ["gpt2", "mistral-7b", "bert-large"]
NORMED = {"model": "qwen3-0.6b", "heads": 4, "kv_heads": 2, "inner": 128, "layers": 2}
"""Queries and keys with norms of their own, heads of another extent, tied logits of no GPT."""
BOTH = [False, True]
LIBRARYS = {"model": FAMILIES, "library": "transformers", "layers": 2}
EXPERTS: dict[str, Any] = {"model": "moe-tiny", "layers": 4, "vocab": 256, "heads": 4,
                           "kv_heads": 2, "world_size": 8, "optimizer": "sgd"}
OF_LIBRARY = {"lora": FAMILIES, "qlora": FAMILIES[1:]}
SGD = {"optimizer": "sgd"}
"""Where parameters are divided AdamW's states take torch long: one case each has them."""
HELD: dict[str, Any] = {"dtype": "bf16", "layers": 2, "accumulation": 2}
PRECISE = [HELD | {"precision": ["bf16", "bf16_master", "fp8_rowwise"]},
           HELD | {"precision": ["mixed", "bf16_master"], "optimizer": "adamw8bit"}]
NARROW = HELD | {"world_size": 2, "precision": ["bf16", "bf16_master"]}
BLOCKS: dict[str, list[dict[str, Any]]] = {
    "single": [{"model": FAMILIES}, *PRECISE],
    "data": [NORMED, {"model": FAMILIES}, {"strategies": {"data": [
        {"bucket_mb": 1, "comm_hook": ["none", "bf16", "powersgd"]}, {"bucket_view": True},
        {"balance": "dynamic"}]}},
        LIBRARYS | {"strategies": {"data": {"bucket_mb": 1, "balance": ["static", "dynamic"]}}},
        *PRECISE],
    "zero1": [{"model": FAMILIES}, {"strategies": {"zero1": {"balance": "dynamic"}}}, LIBRARYS,
              NARROW, HELD | {"precision": "bf16_master", "optimizer": "adamw8bit"}],
    "fsdp": [NORMED | {"dtype": "bf16"}, {"model": FAMILIES, "accumulation": 2, "dtype": "bf16"},
             {"strategies": {"fsdp": {"reshard": BOTH}}}, LIBRARYS, *PRECISE],
    "hsdp": [{"accumulation": 2}, PRECISE[0]],
    "moe": [NARROW | {"model": "moe-tiny", "vocab": 256},
            {"model": "moe-tiny", "world_size": 3, "layers": 2, **SGD, "strategies": {
                "moe": {"ep": 1}}},  # 8 experts on 3 ranks
            {"model": "moe-tiny", "vocab": 256, "world_size": 4, **SGD, "strategies": {"moe": [
                {"ep": 1}, {"ep": [2, 4], "load": "lognormal:1", "dedup": ["rank", "expert"]},
                {"ep": 4, "load": "zipf:1", "capacity_factor": 1.25, "dispatch": "fp8"},
                {"load": "router", "dedup": ["rank", "expert"]}]}},
            {"model": "moe-tiny", "vocab": 256, "world_size": 4, "layers": 2, "dtype": "bf16",
             "accumulation": 2, "strategies": {"moe": {
                 "load": "max_over_mean:3,seed=2", "reshard": BOTH}}},
            {"model": "mla-tiny", "vocab": 256, "world_size": 4, "layers": 2, "dtype": "bf16",
             "accumulation": 2, "strategies": {"moe": [{}, {"ep": 1}, {"load": "router"}]}}],
    "tensor": [NARROW | {"strategies": {"tensor": {"sequence_parallel": BOTH}}},
               HELD | {"world_size": 2, "optimizer": "adamw8bit", "strategies": "tensor"},
               NORMED | {"world_size": [2, 4], **SGD, "strategies": {
                   "tensor": {"sequence_parallel": BOTH}}},
               {"model": ["gpt2", "mistral-7b"], "kv_heads": 1, "layers": 2, "world_size": 2, **SGD,
                "checkpointing": ["none", "attention", "full"], "strategies": "tensor"},
               {"model": "gpt2", "layers": 1, "world_size": 2, "strategies": "tensor"},
               {"model": FAMILIES, "layers": 1, "heads": 8, "kv_heads": 2, "inner": 202,
                "seq_length": 1200, "batch_size": 1, "world_size": 2, "strategies": "tensor"},
               {"model": FAMILIES, "world_size": 2, "checkpointing": ["selective", "operators"],
                "layers": 2, **SGD, "strategies": {"tensor": {"sequence_parallel": BOTH}}},
               {"world_size": 2, "dtype": ["bf16", "fp16"], "accumulation": 2, "layers": 2, **SGD,
                "strategies": {"tensor": {"sequence_parallel": BOTH, "loss_parallel": True}}}],
    "model": [{"world_size": 4, "accumulation": 2, "layers": [4, 6]}],
    "pipeline": [{"world_size": 2, "strategies": {"pipeline": {"schedule": list(SCHEDULE_NAMES)}}},
                 NARROW,
                 {"world_size": 4, "accumulation": 2, "model": "mistral-7b", "dtype": "bf16"}],
    "hybrid": [NORMED | {"world_size": 4, "strategies": {"hybrid": {"pp": 2}}},
               NARROW | {"world_size": 4, "strategies": {"hybrid": [
                   {"tp": 2, "data": "fsdp", "sequence_parallel": True}, {"pp": 2}]}},
               NORMED | {"world_size": 4, "dtype": "bf16", "accumulation": 2, **SGD,
                         "strategies": {"hybrid": {"tp": 2, "data": "fsdp"}}},
               {"world_size": 4, "layers": 2, "strategies": {"hybrid": [
                   {"tp": 2, "data": "fsdp"}, {"pp": 2, "data": "fsdp"}]}},
               {"world_size": 4, "accumulation": 2, **SGD, "strategies": {"hybrid": [
                   {"tp": 2, "data": ["replicate", "fsdp"]},
                   {"pp": 2, "data": "replicate", "schedule": "1F1B"},
                   {"pp": 2, "data": "fsdp", "schedule": "DualPipeV"}]}},
               {"world_size": 8, "dtype": "bf16", "layers": 2, **SGD, "strategies": {"hybrid": [
                   {"tp": 2, "data": "fsdp", "sequence_parallel": True, "loss_parallel": True},
                   {"tp": 2, "pp": 2, "data": "fsdp"},
                   {"tp": 2, "pp": 2, "data": "replicate", "sequence_parallel": True}]}},
               {"world_size": 8, "layers": 2, "vocab": 256, "accumulation": 2, **SGD,
                "strategies": {"hybrid": [
                    {"tp": 2, "data": "hsdp", "sync_each_batch": BOTH},
                    {"pp": 2, "data": "hsdp", "schedule": "GPipe"}]}},
               {"world_size": 8, "model": FAMILIES[:2], "heads": 8, "kv_heads": 4, "layers": 2,
                "vocab": 256, "checkpointing": ["none", "full"], **SGD, "strategies": {"hybrid": [
                    {"tp": 2, "cp": 2, "sequence_parallel": True},
                    {"tp": 2, "cp": 4, "rotate": "alltoall", "data": "fsdp"},
                    {"tp": 2, "pp": 2, "cp": 2, "attention": "ulysses"}]}},
               EXPERTS | {"dtype": "bf16", "accumulation": 2, "strategies": {"hybrid": [
                   {"tp": 2, "ep": [1, 2], "data": ["replicate", "fsdp"], "load": "zipf:1"},
                   {"tp": 2, "ep": 2, "data": "hsdp", "sequence_parallel": True},
                   {"pp": 2, "ep": 4, "load": "zipf:1", "capacity_factor": 1.25},
                   {"pp": 2, "cp": 2, "ep": 4, "data": "fsdp", "load": "router"},
                   {"tp": 2, "pp": 4, "microbatches": 4}]}},
               EXPERTS | {"strategies": {"hybrid": [
                   {"tp": 2, "pp": 2, "ep": 2, "data": "fsdp", "dedup": "expert",
                    "schedule": "ZBVZeroBubble", "load": "zipf:1"}]}}],
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
    "context": [
        NARROW,
        {"model": FAMILIES[:2], "heads": 16, "kv_heads": 8, "layers": 2, **SGD, "strategies": {
            "context": [{"rotate": ["allgather", "alltoall"]}, {"cp": 2, "balance": "none"},
                        {"attention": "ulysses"}]}},
        {"model": "bert-large", "heads": 6, "layers": 2, "dtype": "bf16", "accumulation": 2,
         "checkpointing": "full", **SGD, "strategies": {
             "context": [{"balance": "none"}, {"cp": 2, "attention": "ulysses"}]}}],
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


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = spec_from_file_location("memory_benchmark", ROOT / "benchmarks" / "memory.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_cross_entropy_takes_12_bytes_a_logit(benchmark: Any, dtype: str) -> None:
    forward, kept, backward = benchmark.loss_bytes(dtype)
    assert forward == pytest.approx(8 if dtype == "fp32" else 10, rel=0.02)
    assert kept == pytest.approx(4, rel=0.05)
    assert backward == pytest.approx(12, rel=0.02)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize(("shape", "block"), [
    ("logits", {"strategies": "single", "world_size": 1}),
    ("logits", {"strategies": "fsdp", "loss": [CHUNKED, LINEAR]}),
    ("logits", {"strategies": "single", "world_size": 1, "loss": LINEAR}),
    ("weights", {"strategies": "data"}),
    ("weights", {"strategies": "fsdp", "accumulation": 2}),
    ("weights", {"strategies": {"fsdp": {"sync_each_batch": True}}, "accumulation": 2}),
    ("weights", {"strategies": {"hybrid": {"pp": 2, "data": "replicate"}}, "dtype": "fp32",
                 "layers": 8}),
    ("activations", {"strategies": "hsdp", "dtype": "fp32"}),
    ("activations", {"strategies": ["data", "fsdp"], "checkpointing": ["attention",
                                                                       "selective:3"]}),
    ("activations", {"strategies": "fsdp", "library": "transformers"}),
    ("activations", {"strategies": {"context": [{}, {"rotate": "alltoall"},
                                                {"attention": "ulysses"}]}}),
    ("activations", {"strategies": ["data", "fsdp"], "documents": 3}),
    ("activations", {"strategies": {"lora": {"variant": "dora"}}}),
    ("weights", {"strategies": ["data", "fsdp"], "precision": ["bf16", "bf16_master"]}),
    ("weights", {"strategies": ["data", "zero1"], "optimizer": "adamw8bit"}),
    ("weights", {"strategies": ["zero1", "tensor"], "precision": ["bf16", "bf16_master"]}),
    ("weights", {"model": "moe-tiny", "heads": 4, "kv_heads": 2, "strategies": "moe",
                 "precision": ["bf16", "bf16_master"]}),
    ("activations", {"strategies": ["data", "fsdp"], "precision": "fp8_rowwise"}),
    ("activations", {"strategies": "moe", "model": "mla-tiny", "layers": 3,
                     "checkpointing": ["none", "attention"]}),
    ("activations", {"model": "moe-tiny", "heads": 4, "kv_heads": 2, "checkpointing": [
        "none", "full"], "strategies": {"moe": {"load": "zipf:1"}}}),
    ("weights", {"strategies": {"qlora": {"over": "data"}}})])
def test_a_step_takes_what_is_predicted(benchmark: Any, shape: str, block: dict[str, Any]) -> None:
    for one in benchmark.compared(shape, {"dtype": "bf16", "layers": 5, **block}):
        assert one.ratio == pytest.approx(1, abs=ERROR), one


GPT2: dict[str, Any] = {
    "kind": "training", "model": "gpt2", "layers": 4, "hidden": 64, "heads": 2, "vocab": 256,
    "seq_length": 16, "batch_size": 4, "world_size": 2}
STRATEGIES: list[dict[str, Any]] = [
    {"strategies": {"data": {"bucket_mb": 1, "comm_hook": ["none", "bf16"]}}},
    {"strategies": {"data": {"balance": "dynamic"}}},
    {"strategies": "zero1"},
    {"strategies": {"fsdp": {"reshard": [True, False]}}, "dtype": "bf16", "accumulation": 2},
    {"strategies": {"tensor": {"sequence_parallel": [False, True]}}, "dtype": ["fp32", "fp16"]},
    {"strategies": {"pipeline": {"schedule": ["1F1B", "ZBVZeroBubble"]}}, "layers": [4, 5]},
    {"strategies": "model", "accumulation": 2},
    {"model": "moe-tiny", "layers": 2, "vocab": 256, "heads": 4, "kv_heads": 2, "strategies": {
        "moe": [{"load": "zipf:1", "dedup": ["rank", "expert"]},
                {"load": "zipf:1", "capacity_factor": 0.7, "dispatch": "fp8"}]}},
    {"model": "moe-tiny", "layers": 2, "vocab": 256, "heads": 4, "kv_heads": 2,
     "strategies": "moe", "checkpointing": ["attention", "full", "selective"]},
    {"model": "mla-tiny", "layers": 2, "vocab": 256, "strategies": {"moe": {"load": "zipf:1"}},
     "checkpointing": ["none", "attention", "full"], "documents": [1, 3]},
    {"strategies": {"lora": [{"over": ["data", "fsdp"]}, {"targets": ["qv", "mlp"]},
                             {"variant": "dora", "over": ["data", "fsdp"]}]},
     "checkpointing": ["full", "attention"]},
    {"strategies": {"lora": {"over": "tensor", "targets": ["all", "qv", "mlp"]}},
     "model": "mistral-7b", "heads": 4, "kv_heads": 2, "inner": 128,
     "checkpointing": ["full", "attention"], "dtype": ["fp32", "bf16"]},
    {"strategies": {"lora": {"over": "tensor"}, "tensor": {}}, "model": "bert-large",
     "checkpointing": ["operators", "full"]},
    {"strategies": ["data", "lora"], "loss": "linear_cross_entropy"},
    {"strategies": ["fsdp", "tensor"], "documents": 5, "checkpointing": ["none", "full"]},
    {"strategies": ["fsdp", "lora", "tensor"], "checkpointing": ["attention", "selective:3"]},
    {"strategies": {"tensor": {"sequence_parallel": True}}, "checkpointing": "attention"},
    {"strategies": {"context": [{"balance": ["zigzag", "none"]}, {"attention": "ulysses"}]},
     "checkpointing": ["full", "attention"]},
]


def real_works(common: dict[str, Any] = GPT2, blocks: Sequence[dict[str, Any]] = STRATEGIES,
          ranks: int = 2) -> list[Training]:
    config = {"benchmarks": [common | more for more in blocks]}
    cases = make_plan(check_config(config, "test"), ranks).cases
    assert not [case.skip for case in cases if case.skip]
    return [training_of(case) for case in cases]


FOUR: list[dict[str, Any]] = [{**STRATEGIES[7], "world_size": 4, "strategies": {"hybrid": [
    {"tp": 2, "ep": 2, "data": "fsdp", "load": "zipf:1"},
    {"pp": 2, "ep": 2, "load": "zipf:1", "dedup": "expert"},
    {"tp": 2, "cp": 2, "ep": 2, "load": "zipf:1", "sequence_parallel": True}]}}]


def predicted(work: Training, rank: int) -> tuple[dict[str, list[int]], int]:
    stages = stages_of(work)
    expected = predict_stage(work, stages[rank // work.tp % len(stages)])
    return {one.collective: [one.count, one.size_bytes, one.wire_bytes]
            for one in expected.calls}, expected.hardware_flops


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("work", [*real_works(), *real_works(blocks=FOUR, ranks=4)],
                         ids=lambda work: work.strategy)
def test_calls_bytes_and_flops_are_those_that_were_predicted(work: Training) -> None:
    ranks = [stage.rank * work.tp for stage in stages_of(work)]
    ranks += [1] * (work.strategy == "zero1")
    for rank in ranks if ranks[1:] else (work.cp - 1,):  # of a context the last has most
        with stepped(work, rank) as operation:
            counted = count_step(work, operation._strategy, operation._loader.batch(1, 0, 4))
        calls, flops = predicted(work, rank)
        assert counted["calls"] == calls
        assert counted["flops"] == flops
        assert counted["activations"] > 0


def test_activations_are_what_a_replica_keeps() -> None:
    for checkpointing in ("none", "attention", "full"):
        work = training("single", checkpointing=checkpointing, sizes={
            "layers": 4, "hidden": 128, "seq_length": 128, "vocab": 2000})
        (stage,) = stages_of(work)
        with alone() as place:
            memory = answer_of(work, place)["memory"]
        assert memory["activations_of"].startswith("results of operations, but for copies")
        assert memory["activations"] == pytest.approx(
            predict_stage(work, stage).memory.activations, rel=0.02)


def test_counting_leaves_no_step_and_can_be_left_out() -> None:
    work = training("single")
    with alone() as place:
        answer = answer_of(work, place)
        assert len(answer["phases"]["ns"][0]) == 2
        assert answer["counted"]["missing"] == {} and answer["counted"]["calls"] == {}
        answer = answer_of(replace(work, count_step=False), place)
        assert "counted" not in answer and "activations" not in answer["memory"]


def test_what_cannot_be_counted_has_a_reason() -> None:
    with alone() as place:
        hidden = answer_of(training("data", {"comm_hook": "powersgd"}), place)["counted"]
        silent = answer_of(training("single", communication="off"), place)["counted"]
    assert silent["missing"] == {"calls": "its groups move nothing"}
    assert list(hidden["missing"]) == ["calls"] and "PowerSGD" in hidden["missing"]["calls"]


def answer_of(work: Training, place: Place) -> dict[str, Any]:
    """Return what an operation tells after two steps."""
    operation = TrainingOperation(work, place, validate=False)
    for _ in range(2):
        operation.prepare()
        operation.run()
    answer = operation.answer()
    operation.close()
    return answer
