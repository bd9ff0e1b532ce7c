"""Data-parallel strategies, and the twin of each shipped job in real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import read_config
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.schema import ARRIVAL
from jobs import JOBS, twin_words
from launcher import MpiLauncher
from mpi.reading import QUICK, Outcome, read, sweep

pytestmark = pytest.mark.mpi

TINY: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 64, "seq_length": 16,
    "vocab": 96, "batch_size": 4, "backend": "gloo"}
EXACT: dict[str, Any] = {
    "data": {"comm_hook": ["none", "bf16"]}, "zero1": {}, "fsdp": {}, "hsdp": {"replicas": 1}}
MIXED = {"bf16": ["hsdp"], "fp16": ["fsdp"]}
"""A factor of the loss is told to all ranks with fp16: what is sharded differs from the rest."""
EVERY_EXACT: dict[str, Any] = {
    "data": {"comm_hook": ["none", "bf16", "fp16", "powersgd"]}, "zero1": {},
    "fsdp": {"reshard": [True, False]}, "hsdp": {"replicas": [1, 2]}}
EVERY_MIXED = {"bf16": ["data", "hsdp"], "fp16": ["zero1", "fsdp"]}


@pytest.mark.parametrize(("exact", "mixed"), [
    (EXACT, MIXED), pytest.param(EVERY_EXACT, EVERY_MIXED, marks=pytest.mark.soak)],
    ids=["once", "every option"])
def test_every_strategy_computes_what_one_process_does(
    mpirun: MpiLauncher, exact: dict[str, Any], mixed: dict[str, Any],
) -> None:
    config = sweep(measure={"warmup": 1, "iterations": 2}, benchmarks=[
        {**TINY, "name": "alone", "strategies": ["single"], "dtype": "bf16"},
        {**TINY, "name": "exact", "accumulation": 2, "strategies": exact},
        {**TINY, "name": "at_once", "checkpointing": "operators", "strategies": ["zero1"]},
        {**TINY, "name": "view", "optimizer": "sgd", "checkpointing": "full", "strategies": {
            "data": {"bucket_view": True, "bucket_mb": 1}}},
        *({**TINY, "name": dtype, "dtype": dtype, "accumulation": 2, "strategies": strategies,
           "checkpointing": "selective", "optimizer": "sgd"}
          for dtype, strategies in mixed.items()),
        {**TINY, "name": "experts", "model": "moe-tiny", "accumulation": 2, "dtype": "bf16",
         "strategies": {"moe": {"load": "lognormal:1", "dedup": ["rank", "expert"],
                                "capacity_factor": ["none", 1], "dispatch": ["dtype", "fp8"]}}},
        {**TINY, "name": "router", "model": "moe-tiny", "accumulation": 2, "checkpointing": "full",
         "strategies": {"moe": [
            {"load": "router", "dedup": ["rank", "expert"], "capacity_factor": 1.25,
             "dispatch": "fp8"}]}},
        {**TINY, "name": "latents", "model": "mla-tiny", "strategies": {"moe": [
            {"load": "router"}, {"load": "zipf:1", "dispatch": "fp8"}]}},
        {**TINY, "name": "spoilt", "optimizer": "sgd", "strategies": {"data": {}, "fsdp": {}}},
    ], fault=[{"case": "* fsdp * fp32 * sgd *", "rank": 1, "kind": "wrong", "iteration": 1}])
    outcome = read(mpirun.run(2, config=config, timeout=120).check(1).folder)
    mpirun.assert_no_orphans()
    assert len(outcome.results.cases) == (
        1 + (9 if exact == EVERY_EXACT else 5) + 1 + 1 + sum(map(len, mixed.values())) + 10 + 2 + 2)
    for item in outcome.results.cases:
        if item.case.block == "spoilt" and item.case.workload.name == "fsdp":
            assert (item.status, item.blamed_rank, item.n_wrong) == ("wrong", 1, 1)
            assert "the loss is nan" in item.reason
        else:
            assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
            _is_complete(outcome, item)
        if item.case.block in ("experts", "router"):
            for told in item.detail.values():
                assert 0 <= told["measured"]["expert_wait_share"] < 1
                assert told["measured"].keys() == {"expert_wait_share", *({
                    "expert_tokens", "expert_max_over_mean", "received_max_over_mean",
                    "dropped_share"} if item.case.block == "router" else ())}
    assert not [one for one in outcome.results.findings if one.code == "HB157"]
    _sharding_saves_memory(outcome)


def test_models_of_a_library_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    config = sweep(measure={"warmup": 1, "iterations": 2}, benchmarks=[
        {**TINY, "library": "transformers", "checkpointing": "operators",
         "strategies": {"data": {}, "fsdp": {}}}])
    outcome = read(mpirun.run(2, config=config, timeout=120).check().folder)
    assert len(outcome.results.cases) == 2
    for item in outcome.results.cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        _is_complete(outcome, item)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_each_precision_computes_what_one_process_does(mpirun: MpiLauncher, ranks: int) -> None:
    bf16 = {**TINY, "dtype": "bf16"}
    hybrid = {"hybrid": [{"tp": 2, "data": "fsdp"}, {"pp": 2, "microbatches": 2}]} if (
        ranks == 4) else {}
    stages = {**bf16, "world_size": 2, "strategies": {"pipeline": {"microbatches": 2}}}
    config = sweep(measure={"warmup": 1, "iterations": 2}, benchmarks=[
        {**bf16, "accumulation": 2, "precision": ["bf16_master", "fp8_tensorwise", "fp8_rowwise"],
         "strategies": ["data", "hsdp"]},
        {**bf16, "precision": "bf16", "optimizer": ["adamw", "adamw8bit"],
         "strategies": ["zero1", "fsdp"]},
        {**bf16, "name": "divided", "accumulation": 2, "precision": ["bf16", "bf16_master"],
         "strategies": {"tensor": {"sequence_parallel": True}, "context": {}, **hybrid}},
        {**stages, "name": "divided_stages", "precision": ["bf16", "bf16_master", "fp8_rowwise"],
         "accumulation": 2},
        {**bf16, "name": "zero", "precision": "fp8_rowwise", "strategies": "zero1"},
        {**stages, "name": "divided_states", "optimizer": "adamw8bit",
         "precision": ["mixed", "bf16_master"], "strategies": ["tensor", "model"]},
        {**bf16, "name": "experts", "model": "moe-tiny", "strategies": "moe",
         "precision": ["bf16", "bf16_master"], "optimizer": ["adamw", "adamw8bit"]}])
    outcome = read(mpirun.run(ranks, config=config, timeout=240).check().folder)
    assert len(outcome.results.cases) == 26 + 4 * bool(hybrid)
    for item in outcome.results.cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        if not item.case.block.startswith("divided"):
            _is_complete(outcome, item)
    assert not [one for one in outcome.results.findings if one.code == "HB157"]


def _is_complete(outcome: Outcome, item: CaseResult) -> None:
    """See that phases fill the steps of every sample, and what parity came to."""
    samples = outcome.samples[item.case.case_id]
    durations = {name: values for name, values in samples.phases.items()
                 if not name.startswith(ARRIVAL)}
    assert list(durations) == ["data", "forward", "backward", *(
        ["exchange"] if training_of(item.case).dp > 1 else []), "optimizer"]
    exchanges = training_of(item.case).dp > 1
    assert (len(samples.phases) > len(durations)) == exchanges
    steps_ns = samples.end_ns - samples.start_ns
    spent_ns = sum(durations.values())
    assert (spent_ns <= steps_ns).all()
    assert all((values > 0).all() for values in samples.phases.values())
    for told in item.detail.values():
        assert told["parity"]["on"] == "the model"
        assert 0 < told["parity"]["share"] <= 1


def _sharding_saves_memory(outcome: Outcome) -> None:
    """See that two ranks halve what a strategy shards, as sums of what is there."""
    held = {item.case.workload.name: item.memory["0"] for item in outcome.results.cases
            if item.memory and item.case.block == "exact"
            and dict(training_of(item.case).options).get("replicas", 1) == 1}
    whole = 4 * training_of(outcome.results.cases[0].case).parameters
    for name, parts in (("data", 1), ("zero1", 1), ("fsdp", 2), ("hsdp", 2)):
        assert held[name]["parameters"] == held[name]["gradients"] == whole // parts, name
    states = {name: sizes["optimizer_state"] for name, sizes in held.items()}
    assert states["fsdp"] == states["hsdp"] < states["zero1"] * 1.2 < states["data"]


@pytest.mark.parametrize("job", [
    pytest.param(job, id=job.stem, marks=[] if "scaling" in job.stem else pytest.mark.soak)
    for job in JOBS])
def test_the_twin_of_a_job_runs(mpirun: MpiLauncher, job: Path) -> None:
    done = mpirun.run(4, *twin_words(job), *QUICK, config=read_config(job), timeout=240).check(0)
    mpirun.assert_no_orphans()
    results = read(done.folder).results
    assert {item.status for item in results.cases} == {"ok"}, [
        (item.case.label, item.reason) for item in results.cases if item.status != "ok"]
    assert {told["parity"]["on"] for item in results.cases
            for told in item.detail.values()} == {"the model"}
