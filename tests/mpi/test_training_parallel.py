"""Strategies in which ranks have parts of a model, images and adapters, in real jobs: right before
they are timed."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.spec import SCHEDULE_NAMES
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from launcher import MpiLauncher, launcher_for
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

SMALL: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 4, "hidden": 32, "seq_length": 8,
    "vocab": 49, "batch_size": 8, "optimizer": "sgd", "backend": "gloo"}
"""49 words are not divisible among ranks, which is nothing special. Of parts of parameters torch
looks for each operation of an optimizer once how it is divided, which takes longer than all else:
AdamW has a dozen, and is left to a few cases."""
ADAMW = {"optimizer": "adamw"}
SWITCHES = [{"sequence_parallel": True}, {"loss_parallel": True}]
"""Each alone; both and neither are with other models and dimensions."""
TOGETHER = {"sequence_parallel": True, "loss_parallel": True}
ZBV = {"schedule": "ZBVZeroBubble", "microbatches": 2}
FOUR_STAGES = {**SMALL, "name": "four_stages", "layers": 8}
MEASURED = {"warmup": 0, "iterations": 1}


def schedules(ranks: int, **more: Any) -> list[dict[str, Any]]:
    """Return sets of options with every schedule, each with the fewest micro-batches it takes."""
    full = "DualPipeV"
    return [{"schedule": [name for name in SCHEDULE_NAMES if name != full],
             "microbatches": ranks, **more},
            {"schedule": full, "microbatches": 2 * ranks, **more}]


def _both(schedule: dict[str, Any] = ZBV, *, name: str, **more: Any) -> list[dict[str, Any]]:
    """Return tensor and pipeline of a model; one layer has all that a tensor is divided in."""
    return [{**SMALL, **more, "name": f"{name}_tensor", "layers": 1,
             "strategies": {"tensor": TOGETHER}},
            {**SMALL, **more, "name": name, "strategies": {"pipeline": schedule}}]


FIRST = {"schedule": "1F1B", "microbatches": 2}
OF_TWO = [
    {**SMALL, **ADAMW, "name": "tensor", "layers": 1, "strategies": {"tensor": SWITCHES[:1]}},
    {**SMALL, "name": "schedule", "accumulation": 2, "strategies": {"pipeline": FIRST}},
    {**SMALL, "name": "model", "layers": 3, "documents": 3, "strategies": ["model", "tensor"]},
    *_both(name="families", model="llama3-8b", hidden=64),
    {**SMALL, "name": "context", "model": ["llama3-8b", "bert-large"], "layers": 1, "hidden": 64,
     "heads": 4, "kv_heads": 2, "strategies": {
        "context": [{"balance": "none"}, {"attention": "ulysses"}]}}]
MORE_OF_TWO = [
    {**SMALL, **ADAMW, "name": "tensor", "layers": 1, "strategies": {"tensor": SWITCHES[1:]}},
    {**SMALL, "name": "schedules", "accumulation": 2, "strategies": {"pipeline": schedules(2)}},
    {**SMALL, "name": "three_stages", "layers": 6, "strategies": {"pipeline": {
        "schedule": "LoopedBFS", "stages_per_rank": 3, "microbatches": 2}}},
    {**SMALL, **ADAMW, "name": "whole", "strategies": {"pipeline": ZBV}},
    *_both(name="families", model="bert-large", hidden=64),
    *_both(name="fp16", dtype="fp16")[:1],
    *_both({"schedule": "Interleaved1F1B", "microbatches": 2}, name="bf16", dtype="bf16",
           accumulation=2, checkpointing="full")]
SHARDED = {"data": "fsdp"}
EXPERTS = {**SMALL, "model": "moe-tiny", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2}
INTERLEAVED = {"schedule": "Interleaved1F1B", "microbatches": 2}
OF_FOUR = [
    {**SMALL, "name": "pp_tp", "strategies": {"hybrid": {"tp": 2, "pp": 2, **ZBV, **TOGETHER}}},
    {**SMALL, "name": "dp_pp", "layers": 3, "dtype": "fp16", "documents": 2, "accumulation": 2,
     "strategies": {"hybrid": {"pp": 2, "microbatches": 2, **SHARDED}}},
    {**SMALL, "name": "context_of_four", "layers": 1, "strategies": {"context": {}}},
    {**SMALL, "name": "experts_of_four", "model": "moe-tiny", "layers": 2, "heads": 4,
     "kv_heads": 2, "checkpointing": "selective", "strategies": {
         "moe": {"ep": [2, 4], "load": "zipf:1", "dispatch": "fp8"}}},
    {**SMALL, "name": "shared_keys", "layers": 1, "kv_heads": 2, "vocab": 64, "strategies": {
        "tensor": [{}, TOGETHER]}},
    {**SMALL, "name": "cp_tp", "layers": 1, "vocab": 64, "strategies": {"hybrid": [
        {"tp": 2, "cp": 2, **TOGETHER}, {"tp": 2, "cp": 2, "attention": "ulysses", **SHARDED}]}},
    {**SMALL, "name": "dp_cp", "layers": 1, "accumulation": 2, "dtype": "bf16", "strategies": {
        "context": {"cp": 2, "rotate": "alltoall"}}},
    {**EXPERTS, "name": "ep_tp", "strategies": {"hybrid": {
        "tp": 2, "ep": 2, "dispatch": "fp8", **SHARDED}}},
    {**EXPERTS, "name": "ep_pp", "strategies": {"hybrid": {
        "pp": 2, "ep": 2, "microbatches": 2, "load": "lognormal:1"}}}]
MORE_OF_FOUR = [
    {**SMALL, "name": "context", "seq_length": 32, "dtype": ["fp32", "bf16", "fp16"],
     "strategies": {"context": [{"balance": ["zigzag", "none"]}, {"rotate": "alltoall"},
                                {"attention": "ulysses"}, {"cp": 2, "reshard": False}]}},
    {**SMALL, "name": "context_families", "model": "llama3-8b", "hidden": 64, "heads": 8,
     "kv_heads": 4, "checkpointing": ["none", "full"], "loss": "chunked_cross_entropy",
     "strategies": {"context": [{}, {"attention": "ulysses"}]}},
    {**SMALL, "name": "dp_tp", "layers": 1, "accumulation": 2, "strategies": {
        "hybrid": {"tp": 2, "data": ["replicate", "fsdp"], "sync_each_batch": [True, False]}}},
    {**SMALL, "name": "normed_keys", "model": "qwen3-0.6b", "layers": 1, "hidden": 64, "heads": 4,
     "kv_heads": 1, "inner": 64, "checkpointing": ["none", "attention", "full", "operators"],
     "strategies": "tensor"},
    {**SMALL, "name": "cp_pp", "accumulation": 2, "dtype": "bf16", "strategies": {"hybrid": [
        {"pp": 2, "cp": 2, **ZBV, **SHARDED}, {"pp": 2, "cp": 2, "microbatches": 2,
                                               "attention": "ulysses"}]}},
    {**FOUR_STAGES, "layers": 10, "strategies": {"pipeline": {
        "schedule": ["InterleavedZeroBubble", "ZBVZeroBubble"], "microbatches": 4}}},
    {**SMALL, "name": "dp_pp", "strategies": {"hybrid": {"pp": 2, **ZBV}}},
    {**SMALL, **ADAMW, "name": "adamw", "strategies": {
        "hybrid": {"pp": 2, **INTERLEAVED, **SHARDED}}},
    {**EXPERTS, "name": "experts", "accumulation": 2, "dtype": ["bf16", "fp16"],
     "checkpointing": "attention", "strategies": {"hybrid": [
         {"tp": 2, "ep": [1, 2], "data": ["replicate", "fsdp"], "load": "router", **TOGETHER},
         {"tp": 2, "cp": 2, "ep": 2, "load": "zipf:1", "capacity_factor": 1, "dedup": "expert"},
         {"pp": 2, "cp": 2, "ep": 2, "microbatches": 2, "attention": "ulysses", "load": "router"},
         {"tp": 2, "pp": 2, "microbatches": 2}, {"pp": 2, "ep": 1, "microbatches": 2}]}},
    {**EXPERTS, **ADAMW, "name": "experts_zb", "layers": 4, "strategies": {"hybrid": {
        "pp": 2, "ep": 2, **ZBV, **SHARDED, "load": "zipf:1"}}},
    {**SMALL, **ADAMW, "name": "adamw_tp", "layers": 1, "strategies": {
        "hybrid": {"tp": 2, **SHARDED, **TOGETHER}}}]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run all on four ranks, those of two on the first two of them."""
    return _of_both(launcher_for("mpich", tmp_path_factory.mktemp("parallel")), OF_TWO, OF_FOUR)


def test_tensors_and_stages_compute_what_one_process_does(outcome: Outcome) -> None:
    _all_right(outcome, OF_TWO, 2)


def test_several_dimensions_compute_what_one_process_does(outcome: Outcome) -> None:
    """Two of them at once, and parameters that are sharded beside stages."""
    _all_right(outcome, OF_FOUR, 4)


@pytest.mark.soak
def test_every_schedule_type_and_optimizer_computes_what_one_process_does(
    mpirun: MpiLauncher,
) -> None:
    outcome = _of_both(mpirun, MORE_OF_TWO, MORE_OF_FOUR)
    _all_right(outcome, MORE_OF_TWO, 2)
    _all_right(outcome, MORE_OF_FOUR, 4)


@pytest.mark.soak
def test_every_schedule_of_four_ranks_computes_what_one_process_does(mpirun: MpiLauncher) -> None:
    blocks = [
        {**FOUR_STAGES, "strategies": {"pipeline": schedules(4)}},
        {**SMALL, "name": "dp_pp", "strategies": {"hybrid": schedules(2, pp=2, data="fsdp")}},
        {**SMALL, "name": "mixed", "layers": 2, "dtype": "fp16", "accumulation": 2, "strategies": {
            "hybrid": {"tp": 2, "pp": 2, "microbatches": 2, **TOGETHER}}}]
    _all_right(_outcome(mpirun, 4, blocks), blocks, 4)


@pytest.mark.soak  # most of it is eight processes that import torch; dry runs count its calls
def test_three_dimensions_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    blocks = [{**SMALL, "name": "three", "layers": 2, "accumulation": 2, "strategies": {"hybrid": [
        {"tp": 2, "pp": 2, "microbatches": 2, **TOGETHER},
        {"tp": 2, "data": "hsdp", "sync_each_batch": [True, False]},
        {"pp": 2, "data": "hsdp", "microbatches": 2}]}},
        {**EXPERTS, "name": "experts", "strategies": {"hybrid": [
            {"tp": 2, "pp": 2, "ep": 2, "microbatches": 2, "load": "zipf:1", **SHARDED},
            {"tp": 2, "ep": 2, "data": "hsdp", "load": "zipf:1"}]}}]
    _all_right(_outcome(mpirun, 8, blocks), blocks, 8)


IMAGES: dict[str, Any] = {
    "kind": "training", "model": "resnet50", "layers": 4, "width": 8, "classes": 10,
    "image_size": 32, "batch_size": 64, "backend": "gloo"}
OF_IMAGES = [
    {**IMAGES, "name": "exact", "batch_size": 32, "accumulation": 2,
     "strategies": {"data": {}, "zero1": {}, "fsdp": {}}},
    {**IMAGES, "name": "mixed", "batch_size": 32, "dtype": "bf16", "optimizer": "sgd",
     "strategies": {"data": {}, "fsdp": {}}},
    {**IMAGES, "name": "stages", "strategies": {
        "pipeline": {"schedule": ["1F1B", "ZBVZeroBubble"]}}}]
IMAGES_OF_FOUR = [
    {**IMAGES, "name": "several", "optimizer": "sgd", "strategies": {
        "hybrid": {"pp": 2, "data": "fsdp"}}}]


def test_batch_norms_of_every_layout_see_the_images_that_they_see_alone(
    mpirun: MpiLauncher,
) -> None:
    skipped = {**IMAGES, "name": "skipped", "strategies": {"tensor": {}, "data": {}},
               "checkpointing": "full"}
    outcome = _of_both(mpirun, OF_IMAGES, [*IMAGES_OF_FOUR, skipped])
    _all_right(outcome, OF_IMAGES, 2)
    _all_right(outcome, IMAGES_OF_FOUR, 4)
    tensor, checkpointed = (item.reason for item in outcome.results.cases if item.case.skip)
    assert "made of convolutions" in tensor and "running statistics" in checkpointed


TINY = {**SMALL, **ADAMW, "layers": 2, "hidden": 64, "seq_length": 16, "vocab": 96,
        "batch_size": 4}
ADAPTERS = {"over": ["data", "fsdp"], "rank": 4}
OF_ADAPTERS = [
    {**TINY, "name": "exact", "accumulation": 2,
     "strategies": {"lora": ADAPTERS, "qlora": ADAPTERS}},
    {**TINY, "name": "gated", "model": "mistral-7b", "hidden": 128, "dtype": "bf16",
     "checkpointing": "full", "strategies": {"lora": {"over": "fsdp"}, "qlora": [
         {"over": "data", "targets": "attention"}, {"over": "fsdp", "reshard": False}]}},
    {**TINY, "name": "norms", "strategies": {"lora": {**ADAPTERS, "variant": "dora"}}},
    {**TINY, "name": "divided", "model": "mistral-7b", "heads": 4, "kv_heads": 2,
     "dtype": ["fp32", "bf16"], "strategies": {
         "lora": {"over": "tensor", "rank": 4, "targets": ["all", "qv"]}}},
    {**TINY, "name": "packed", "documents": 3,
     "strategies": {"lora": {"over": ["data", "tensor"]}}}]


def test_adapters_of_copies_and_of_shards_are_what_one_process_makes(mpirun: MpiLauncher) -> None:
    outcome = _outcome(mpirun, 2, OF_ADAPTERS)
    _all_right(outcome, OF_ADAPTERS, 2)
    assert len(outcome.results.cases) == 4 + 3 + 2 + 4 + 2
    for item in outcome.results.cases:
        work = training_of(item.case)
        memory, held = moments(work, stages_of(work)[0])[-1], (item.memory or {})["0"]
        assert held["parameters"] == memory.parameters, item.case.label
        assert held["gradients"] == memory.gradients < memory.parameters
        assert held["optimizer_state"] == memory.optimizer


def _of_both(
    mpirun: MpiLauncher, of_two: list[dict[str, Any]], of_four: list[dict[str, Any]],
) -> Outcome:
    blocks = [*({**block, "world_size": 2} for block in of_two), *of_four]
    return _outcome(mpirun, 4, blocks)


def _outcome(mpirun: MpiLauncher, ranks: int, blocks: list[dict[str, Any]]) -> Outcome:
    config = sweep(measure=MEASURED, benchmarks=blocks)
    outcome = read(mpirun.run(ranks, config=config, timeout=200).check().folder)
    mpirun.assert_no_orphans()
    return outcome


def _all_right(outcome: Outcome, blocks: list[dict[str, Any]], ranks: int) -> None:
    """See that each of these blocks ran on so many ranks, and computed what it has to."""
    ran = {block["name"]: 0 for block in blocks}
    for item in outcome.results.cases:
        if item.case.block in ran:
            assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
            assert item.case.world_size == ranks
            _was_compared(item)
            ran[item.case.block] += 1
    assert all(ran.values()), ran


def _was_compared(item: CaseResult) -> None:
    """See that every rank compared all of the model, and that nothing is off by nothing."""
    found = [told["parity"] for told in item.detail.values()]
    assert len(found) == item.case.world_size
    assert {told["on"] for told in found} == {"the model"}
    assert all(0 < told["share"] <= 1 for told in found), found
