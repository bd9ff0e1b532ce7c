from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.derive.rates import mfu
from hpcbench.kinds.training.plan import planner
from hpcbench.kinds.training.plan.context import attention_flops, attention_imbalance
from hpcbench.kinds.training.plan.experts import capacity_of, load_of
from hpcbench.kinds.training.plan.memory import (
    Memory,
    activations_on_host,
    moments,
    offloaded_bytes,
)
from hpcbench.kinds.training.plan.models import (
    DEFINITIONS,
    TARGETS,
    document_lengths,
    parameters,
    shape_of,
)
from hpcbench.kinds.training.plan.predict import hardware_flops, predict, predict_stage
from hpcbench.kinds.training.plan.spec import layers_on, strategies
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.operations.collectives import collectives
from hpcbench.operations.models import MODELS
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.prediction.measured import planned_fact
from hpcbench.reduce.kind_facts import StepDemand

BLOCK: dict[str, Any] = {"kind": "training", "model": "transformer-tiny", "strategies": "data"}


def plan_of(*blocks: dict[str, Any], ranks: int = 4, **top: Any) -> Plan:
    whole = [BLOCK | block for block in blocks]
    return make_plan(check_config({"benchmarks": whole} | top, "c.json"), ranks)


def work_of(ranks: int = 4, **block: Any) -> Training:
    (case,) = plan_of(block, ranks=ranks).cases
    assert case.skip is None, case.skip
    return training_of(case)


def reason_of(ranks: int = 4, **block: Any) -> str:
    (case,) = plan_of(block, ranks=ranks).cases
    assert case.skip is not None
    return case.skip


def refusal(**block: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(block)
    return str(caught.value)


def test_lists_are_axes_and_each_set_of_options_is_multiplied_out() -> None:
    plan = plan_of({"batch_size": [4, 8], "dtype": ["fp32", "bf16"], "strategies": {
        "data": [{"bucket_mb": [1, 25]}, {"comm_hook": "bf16"}], "fsdp": {}}})
    found = [(w.batch_size, w.dtype, w.strategy, dict(w.options).get("bucket_mb"),
              dict(w.options).get("comm_hook")) for w in (training_of(case) for case in plan.cases)]
    assert found == [(batch, dtype, *rest) for batch in (4, 8) for dtype in ("fp32", "bf16")
                     for rest in (("data", 1, "none"), ("data", 25, "none"), ("data", 25, "bf16"),
                                  ("fsdp", None, None))]


def test_a_training_is_its_model_and_what_was_asked_instead() -> None:
    whole, small = (training_of(case) for case in plan_of(
        {"model": "gpt2", "seq_length": None}, {"model": "gpt2", "layers": 2, "hidden": 96}).cases)
    assert shape_of(whole) == MODELS["gpt2"]
    assert (whole.shrunk, small.shrunk) == (False, True)
    assert (small.layers, small.hidden, small.heads, small.inner) == (2, 96, 12, 384)
    assert whole.parameters == 124_439_808
    assert small.parameters == parameters(shape_of(small))
    assert [name for name, _ in whole.flops] == list(DEFINITIONS)


def test_larger_models_are_planned_and_named() -> None:
    block = {"model": "gpt2", "layers": 48, "hidden": 1600, "heads": 25, "inner": 6400,
             "loss": "cross_entropy"}
    (case,), work = plan_of(block).cases, work_of(**block)
    published = work_of(model="gpt2-xl", loss="cross_entropy")
    assert (work.changed, work.shrunk, published.changed) == (True, False, False)
    assert case.label == ("gpt2 data gloo cpu fp32 layers=48 hidden=1600 heads=25 seq=1024 batch=8 "
                          "adamw dp=4 balance=static bucket_mb=25 bucket_view=False comm_hook=none "
                          "ranks=4")
    assert work.parameters == published.parameters == 1_557_611_200
    assert work.flops == published.flops
    assert predict(work) == predict(published)


@pytest.mark.parametrize(("block", "label", "shrunk"), [
    ({"hidden": 64}, "layers=8 hidden=64 seq=128", True),
    ({"hidden": 256}, "layers=8 hidden=256 seq=128", False),
    ({"heads": 4}, "layers=8 hidden=128 heads=4 seq=128", False),
    ({"heads": 4, "kv_heads": 2}, "layers=8 hidden=128 heads=4 kv_heads=2 seq=128", False),
    ({"inner": 384}, "layers=8 hidden=128 inner=384 seq=128", True),
    ({"inner": 768, "vocab": 512}, "layers=8 hidden=128 inner=768 seq=128", False),
    ({"vocab": 512}, "layers=8 hidden=128 seq=128", True),
    ({"vocab": 4096, "seq_length": 256}, "layers=8 hidden=128 vocab=4096 seq=256", False),
    ({"heads": 8, "inner": 512, "kv_heads": 8}, "fp32 seq=128", None)])
def test_labels_name_what_does_not_follow(
    block: dict[str, int], label: str, shrunk: bool | None,
) -> None:
    (case,), work = plan_of(block).cases, work_of(**block)
    assert label in case.label
    assert (work.changed, work.shrunk) == (shrunk is not None, bool(shrunk))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan_of(block))))) == plan_of(block)


@pytest.mark.parametrize("strategy", ["data", "fsdp", {"hybrid": {"tp": 2, "pp": 2}}, "lora"])
def test_larger_models_are_predicted_larger(strategy: Any) -> None:
    small = work_of(strategies=strategy)
    for larger in ({"layers": 16}, {"hidden": 256}, {"inner": 1024}, {"vocab": 2048},
                   {"seq_length": 256}):
        work = work_of(strategies=strategy, **larger)
        assert predict(work).memory.total > predict(small).memory.total
        assert dict(work.flops)["counted"] > dict(small.flops)["counted"]


def test_ids_change_with_what_makes_a_training_and_with_nothing_else() -> None:
    one = plan_of({}).cases[0]
    assert one.case_id == plan_of({"name": "other", "timeout_s": 5}).cases[0].case_id
    changes = ({"layers": 2}, {"batch_size": 4}, {"accumulation": 2}, {"optimizer": "sgd"},
               {"checkpointing": "full"}, {"dtype": "fp16"}, {"library": "transformers"},
               {"compile": True}, {"seq_length": 64},
               {"strategies": {"data": {"bucket_mb": 1}}}, {"strategies": "zero1"})
    ids = [one.case_id, *(plan_of(change).cases[0].case_id for change in changes)]
    assert len(set(ids)) == len(ids)


def test_ids_are_those_of_the_time_before_there_were_other_libraries() -> None:
    assert plan_of({}).cases[0].case_id == "c312b38e30bc"
    old = plan_to_json(plan_of({}))
    for name in ("library", "compile"):
        del old["cases"][0]["workload"][name]
    assert plan_from_json(old) == plan_of({})


def test_a_plan_of_trainings_survives_json() -> None:
    plan = plan_of({"strategies": {spec.name: {} for spec in strategies()}, "world_size": [1, 4]})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize(("block", "words"), [
    ({"model": "gpt3"}, 'model: "gpt3" is not known; did you mean "gpt2"?'),
    ({"strategies": "fdsp"}, 'strategies.fdsp: "fdsp" is not known; did you mean "fsdp"?'),
    ({"strategies": {"data": {"buckets": 2}}}, "strategies.data: \"buckets\" is not known"),
    ({"strategies": {"data": {"bucket_mb": 0}}},
     "strategies.data.bucket_mb: 0 must be a whole number from 1"),
    ({"strategies": {"data": {"comm_hook": "int8"}}}, "strategies.data.comm_hook: \"int8\""),
    ({"strategies": {"fsdp": {"reshard": 1}}}, "strategies.fsdp.reshard: 1 is not known"),
    ({"strategies": {"fsdp": {"backend": "glo"}}}, 'did you mean "gloo"?'),
    ({"strategies": {}}, "no strategy is named; give at least one"),
    ({"strategies": [3]}, "3 is not the name of a strategy"),
    ({"dtype": "fp64"}, "allowed: fp32, bf16, fp16"),
    ({"optimizer": "adam"}, 'did you mean "adamw"?'),
    ({"batch_size": 0}, "must be at least 1"),
    ({"size": "1MiB"}, "size: unknown key"),
])
def test_what_is_not_known_is_one_clear_line(block: dict[str, Any], words: str) -> None:
    assert words in refusal(**block)


@pytest.mark.parametrize(("block", "words"), [
    ({"batch_size": 4, "accumulation": 3}, "4 samples (batch_size) cannot be divided evenly"),
    ({"heads": 5}, "hidden=128 cannot be divided among 5 heads"),
    ({"kv_heads": 3}, "kv_heads=3 does not divide 8 heads"),
    ({"strategies": "tensor", "heads": 12, "kv_heads": 6, "hidden": 96},
     "6 key-value heads cannot be divided evenly among 4"),
    ({"strategies": "tensor", "heads": 4, "kv_heads": 1, "hidden": 24, "inner": 96},
     "6 rows of keys cannot be divided evenly among 4"),
    ({"strategies": "tensor", "inner": 510}, "510 columns of the MLP cannot be divided evenly"),
    ({"strategies": "qlora", "inner": 96}, "inner=96 is not a multiple of 64"),
    ({"library": "transformers", "kv_heads": 2}, "library transformers has no transformer-tiny "
     "whose queries share keys and values; library hpcbench has"),
    ({"hidden": 100}, "hidden=100 cannot be divided among the 8 heads"),
    ({"strategies": "single", "world_size": 4}, "single trains on one rank, not on 4"),
    ({"strategies": {"hsdp": {"replicas": 3}}}, "4 ranks cannot be divided evenly into 3"),
    ({"strategies": {"hybrid": {"pp": 2, "data": "hsdp"}}}, "cannot divide dp=2 into 2 copies"),
    ({"strategies": {"hybrid": {"tp": 2, "replicas": 4}}}, "no effect with data=replicate"),
    ({"strategies": {"hybrid": {"tp": 2, "balance": "none"}}}, "no effect with cp=1"),
    ({"strategies": {"hybrid": {"tp": 1, "cp": 2}}}, "or take strategy context"),
    ({"strategies": {"hybrid": {"tp": 2, "cp": 2, "attention": "ulysses"}}, "kv_heads": 2},
     "evenly among 2 ranks (cp) of 2 (tp): take attention=ring"),
    ({"strategies": {"hybrid": {"tp": 2, "cp": 2, "balance": "none", "sequence_parallel": True}},
      "seq_length": 14}, "7 tokens cannot be divided evenly among 2 ranks (tp)"),
    ({"strategies": {"hybrid": {"tp": 2, "sync_each_batch": True}}}, "with accumulation 1"),
    ({"strategies": {"hybrid": {"pp": 2, "sync_each_batch": True}}}, "stages exchange gradients"),
    ({"strategies": {"moe": {"ep": 3}}, "model": "moe-tiny"}, "groups of ep=3; take ep=2 or 4"),
    *(({"strategies": asked}, "has no experts") for asked in (
        "moe", {"hybrid": {"tp": 2, "ep": 2}}, {"hybrid": {"tp": 2, "load": "zipf:1"}})),
    ({"strategies": "fsdp", "model": "mixtral-8x7b"}, "only strategies moe and hybrid"),
    ({"strategies": {"hybrid": {"tp": 2, "ep": 4}}, "model": "moe-tiny"}, "; take ep=2"),
    ({"strategies": {"hybrid": {"tp": 2, "dedup": "expert"}}, "model": "moe-tiny"},
     "dedup=expert has no effect with ep=1"),
    ({"strategies": {"moe": {"load": "matrix"}}, "model": "mixtral-8x7b"}, "load matrix"),
    ({"strategies": "moe", "model": "moe-tiny", "checkpointing": "operators"}, "selective or full"),
    ({"strategies": {"moe": {"load": "max_over_mean:5"}}, "model": "mixtral-8x7b"},
     "at most 4 x the mean"),
    ({"strategies": {"moe": {"load": "router"}}, "model": "moe-tiny", "communication": "off"},
     "load router: ranks that compute or hear nothing"),
    ({"strategies": "moe", "model": "resnet50"}, "resnet50 has no experts"),
    *(({"strategies": name, "model": "deepseek-v3"}, f"attention with latents: {why}") for name, why
      in (("tensor", "heads"), ("context", "ranks"), ("lora", "its products"))),
    ({"strategies": "moe", "model": "mla-tiny", "library": "transformers"}, "has it"),
    ({"strategies": "moe", "model": "mla-tiny", "checkpointing": "operators"}, "take attention"),
    ({"strategies": {"moe": {"ep": 1, "dedup": "expert"}}, "model": "mixtral-8x7b"},
     "no effect with ep=1"),
    ({"strategies": {"moe": {"ep": 1, "dispatch": "fp8"}}, "model": "moe-tiny"}, "dispatch=fp8"),
    ({"library": "transformers", "strategies": "tensor"},
     "the one of library transformers is trained whole, by single, data, zero1, fsdp, hsdp"),
    ({"library": "transformers", "model": "gpt2", "strategies": "qlora"},
     "has weights of gpt2 as (inputs, outputs), which bitsandbytes has no 4 bits for"),
    ({"library": "transformers", "model": "resnet50"}, "resnet50 is hpcbench's own"),
    ({"compile": True, "model": "resnet50"}, "those of resnet50 have other extents"),
    ({"compile": True, "strategies": {"data": {"balance": "dynamic"}}},
     "balance=dynamic changes how many samples a rank has"),
    ({"compile": True, "strategies": {"qlora": {"over": "fsdp"}}},
     "bitsandbytes exchanges the data of gathered 4 bits within a block"),
    ({"checkpointing": "operators", "strategies": {"pipeline": {"schedule": "ZBVZeroBubble"}}},
     "ZBVZeroBubble runs backward in two halves, and torch lets what"),
    ({"checkpointing": "full", "strategies": {"pipeline": {"schedule": "InterleavedZeroBubble"}}},
     "torch computes blocks again for each, and for each group of weights"),
    ({"compile": True, "checkpointing": "full", "strategies": {"hybrid": {"tp": 2}}},
     "torch compiles no block that is divided among ranks and, with checkpointing full"),
    ({"compile": True, "strategies": {"pipeline": {"schedule": "DualPipeV", "microbatches": 8}}},
     "DualPipeV runs backward in two halves, and that of a compiled block is in one piece"),
    ({"strategies": {"context": {"attention": "ulysses"}}, "kv_heads": 2},
     "cannot be divided evenly among 4 ranks (cp): take cp=2, or attention=ring"),
    ({"strategies": "context", "seq_length": 12}, "12 tokens cannot be divided evenly into 8"),
    ({"strategies": "context", "model": "bert-large"}, "has not: balance=none"),
    ({"strategies": "context", "model": "resnet50"}, "have no tokens to share"),
    ({"strategies": {"context": {"cp": 3}}}, "groups of 3 (cp); take cp=2 or 4"),
    ({"strategies": {"hybrid": {"cp": 3, "tp": 2}}}, "cp=3; take cp=2"),
    ({"strategies": {"hsdp": {"replicas": 3}}}, "3 replicas; take replicas=2 or 4"),
    ({"strategies": "context", "world_size": 1}, "give cp=2 or more"),
    ({"strategies": "context", "compile": True}, "compile: torch makes no graph"),
    ({"strategies": "context", "checkpointing": "operators"}, "take selective or full"),
    ({"strategies": {"context": {"attention": "ulysses", "balance": "none"}}},
     "balance=none has no effect with attention=ulysses"),
    ({"strategies": "context", "library": "transformers"}, "divides hpcbench's own model"),
    ({"documents": 129}, "take documents=128 or less"),
    ({"documents": 2, "model": "resnet50"}, "resnet50 takes images"),
    ({"documents": 2, "library": "transformers"}, "take library=hpcbench, or documents=1"),
    ({"documents": 2, "strategies": "context"}, "take documents=1, or another"),
    ({"strategies": {"qlora": {"variant": "dora"}}}, "before these are there to be packed"),
    ({"strategies": {"lora": {"variant": "dora"}}, "compile": True}, "variant=dora: peft looks up"),
    ({"strategies": {"lora": {"variant": "dora"}}, "checkpointing": "operators"},
     "keep each product of A and B"),
    ({"strategies": {"qlora": {"over": "tensor"}}}, "torch divides no weights in 4 bits"),
    ({"strategies": {"lora": {"over": "tensor", "rank": 6}}}, "rank=6 cannot be divided evenly"),
    ({"strategies": {"lora": {"over": "tensor"}}, "model": "mistral-7b", "hidden": 64, "heads": 4,
      "kv_heads": 2}, "adapters of 2 key-value heads are not divided"),
    ({"strategies": {"lora": {"over": "tensor", "variant": "dora"}}}, "norms of whole rows"),
    ({"checkpointing": "offload"}, "has no effect on cpu: activations are in"),
    ({"checkpointing": "offload", "compile": True}, "torch runs no hooks of what blocks keep"),
    ({"checkpointing": "offload", "strategies": "tensor"}, "are not moved here: take full"),
    ({"checkpointing": "offload", "strategies": {"pipeline": {
        "schedule": "ZBVZeroBubble"}}}, "would bring all of a block back"),
    ({"checkpoint_every": 7, "iterations": 4, "warmup": 2}, "take 6 or less"),
    ({"world_size": 8}, "world_size 8 is more than the job's 4 ranks"),
    ({"backend": "nccl", "device": "cpu"}, "nccl does not run on cpu"),
])
def test_what_cannot_run_is_a_skip_with_its_reason(block: dict[str, Any], words: str) -> None:
    assert words in reason_of(**block)


def test_a_skip_for_another_reason_than_memory_names_no_settings_that_save_memory() -> None:
    assert reason_of(checkpoint_every=7, iterations=4, warmup=2).endswith("take 6 or less")


@pytest.mark.parametrize("block", [{"strategies": "pipeline"}, {"communication": "only"}])
def test_slow_samples_are_of_steps_that_a_rank_sees_whole(block: dict[str, Any]) -> None:
    fault = [{"rank": 1, "kind": "slow_samples"}]
    with pytest.raises(ConfigError, match="samples that can take longer"):
        plan_of(block, fault=fault)
    config = check_config({"benchmarks": [BLOCK | block, BLOCK], "fault": fault}, "c.json")
    assert [case.may_have(config.fault[0]) for case in make_plan(config, 4).cases] == [False, True]


@pytest.mark.parametrize(("strategy", "block", "instead"), [
    ("lora", {"hidden": 264, "heads": 8, "kv_heads": 4},
     {"hidden": [256, 272], "heads": [4, 12]}),
    ("qlora", {"hidden": 264, "heads": 8, "kv_heads": 4}, {"hidden": [256, 384]}),
    ("qlora", {"hidden": 272, "heads": 8}, {"hidden": [256, 384]}),
    ("data", {"hidden": 96}, {"hidden": [64, 128], "heads": [24, 48]}),
    ("data", {"hidden": 97}, {"hidden": [64, 128]}),
    ("data", {"hidden": 3840, "heads": 30}, {"heads": [24, 32], "kv_heads": [6, 10]}),
    ("tensor", {"heads": 48, "hidden": 3072, "kv_heads": 6}, {"kv_heads": [4, 8]}),
    ("tensor", {"inner": 510}, {"inner": [508, 512]}),
    ("pipeline", {"layers": 3}, {"layers": [4]}),
    ("pipeline", {"layers": 3, "batch_size": 3}, {})])
def test_values_that_a_skip_names_can_be_planned(
    strategy: str, block: dict[str, int], instead: dict[str, list[int]],
) -> None:
    """An extent may suit the model, and yet not the strategy, or the other way round."""
    block = {"model": "llama3-8b", "layers": 4, "seq_length": 64, "vocab": 1024,
             "strategies": strategy, **block}
    named = {key: [*map(int, values.split(" or "))] for key, values in re.findall(
        r"(\w+)=(\d+(?: or \d+)*)", reason_of(**block).partition("; take ")[2])}
    assert named == instead
    for key, values in named.items():
        for value in values:
            work_of(**{**block, key: value})


def test_values_instead_are_searched_once_a_reason_and_hold_for_each_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []
    trial = planner._tried
    monkeypatch.setattr(planner, "_tried", lambda *of: tried.append(of) or trial(*of))
    plan = plan_of({"model": "gpt2", "strategies": "tensor", "hidden": [760, 776],
                    "layers": [2, 3], "seq_length": list(range(16, 176, 16))})
    reasons = {case.skip for case in plan.cases}
    assert len(plan.cases) == 40 and None not in reasons and len(tried) < 40 * 20


def test_a_strategy_of_one_rank_has_one_where_all_are_asked_for() -> None:
    plan = plan_of({"strategies": {"single": {}, "data": {}}, "world_size": ["all", 1, 2]})
    found = [(training_of(case).strategy, case.world_size, case.skip is None)
             for case in plan.cases]
    assert sorted(found) == [("data", 1, True), ("data", 2, True), ("data", 4, True),
                             ("single", 1, True), ("single", 2, False)]
    assert plan.duplicates == 1  # "all" and 1 are the same to it


def test_a_backend_of_a_set_replaces_those_of_the_block() -> None:
    plan = plan_of({"backend": ["gloo", "nccl"], "strategies": {
        "data": {}, "fsdp": {"backend": "gloo"}}})
    assert {(training_of(c).strategy, c.backend) for c in plan.cases} == {
        ("data", "gloo"), ("data", "nccl"), ("fsdp", "gloo")}


def test_models_and_strategies_are_filters() -> None:
    sweep: list[dict[str, Any]] = [{"kind": "collective", "collective": "barrier"},
                                   BLOCK | {"model": ["gpt2", "bert-large"],
                                            "strategies": ["data", "zero1", "fsdp"]}]

    def kept(**top: Any) -> list[tuple[str, str]]:
        plan = make_plan(check_config({"benchmarks": sweep} | top, "c.json"), 4)
        return [(training_of(case).model, training_of(case).strategy) for case in plan.cases]

    assert kept(model="gpt2", strategy=["fsdp", "data"]) == [("gpt2", "data"), ("gpt2", "fsdp")]
    assert kept(strategy="zero1") == [("gpt2", "zero1"), ("bert-large", "zero1")]
    with pytest.raises(ConfigError, match='strategy: "fsd" is not known; did you mean "fsdp"'):
        kept(strategy="fsd")
    sweep.pop()
    with pytest.raises(ConfigError, match="model: no case of the sweep has a model"):
        kept(model="gpt2")


def test_too_many_points_are_refused_before_they_are_written_out() -> None:
    many = list(range(1, 501))
    assert "batch_size 500 x accumulation 500" in refusal(batch_size=many, accumulation=many)


def test_larger_than_the_declared_memory_is_a_skip() -> None:
    hardware = {"memory_per_device_gb": 16, "device_type": "cpu"}
    (case,) = plan_of({"model": "llama3-8b"}, hardware=hardware).cases
    assert case.skip is not None
    assert "more than the 14.9 GiB of hardware.memory_per_device_gb 16" in case.skip
    (case,) = plan_of({"model": "gpt2", "batch_size": 1}, hardware=hardware).cases
    assert case.skip is None
    assert 4 * 4 * 124_439_808 < case.memory_bytes < 16e9


def test_memory_by_hand() -> None:
    count = 124_439_808

    def updated(ranks: int, **block: Any) -> Memory:
        work = work_of(ranks, model="gpt2", batch_size=1, **block)
        return moments(work, stages_of(work)[0])[-1]

    one = updated(1, strategies="single")
    assert (one.parameters, one.gradients) == (4 * count, 4 * count)
    assert one.optimizer == 8 * count + 4 * 196  # each of 196 tensors counts its steps
    assert one.buffers == one.optimizer // 2  # the roots of the second moments
    sgd = updated(1, strategies="single", optimizer="sgd")
    assert (sgd.optimizer, sgd.buffers) == (0, 0)
    ddp = updated(4)
    assert (ddp.parameters, ddp.optimizer) == (4 * count, one.optimizer)
    assert ddp.buffers == 4 * count + one.buffers
    assert updated(4, strategies={"data": {"bucket_view": True}}).buffers == one.buffers
    fsdp = predict(work_of(4, model="transformer-small", strategies="fsdp")).memory
    assert fsdp.parameters == pytest.approx(count, rel=1e-3)  # a quarter of 4 bytes each
    assert fsdp.parameters >= count


def test_whole_gradients_are_added_up_unless_each_part_exchanges_them() -> None:
    """4 B x P on each rank between two exchanges of FSDP, where shards are 4 B x P / ranks."""
    def at_the_loss(**options: Any) -> int:
        work = work_of(4, model="gpt2", accumulation=2, strategies={"fsdp": options})
        return moments(work, stages_of(work)[0])[0].gradients

    assert at_the_loss() == 4 * 124_439_808
    assert at_the_loss(sync_each_batch=True) == pytest.approx(124_439_808, rel=1e-3)
    work = work_of(4, model="gpt2", accumulation=2, strategies={"fsdp": {"sync_each_batch": True}})
    assert {one.collective: one.count for one in predict(work).of_ranks[0].calls} == {
        "all_gather": 2 * 25, "reduce_scatter": 2 * 13}
    idle = plan_of({"model": "gpt2", "strategies": {"fsdp": {"sync_each_batch": True}}}).cases[0]
    assert idle.skip == ("sync_each_batch=True has no effect with accumulation 1: there is one "
                         "exchange")


def test_a_chunked_loss_needs_an_eighth_of_the_logits_and_makes_them_again() -> None:
    def planned(loss: str) -> Training:
        return work_of(4, model="gpt2", strategies="fsdp", loss=loss)

    whole, chunked = planned("cross_entropy"), planned("chunked_cross_entropy")
    assert chunked == planned("auto") == work_of(4, model="gpt2", strategies="fsdp")
    assert planned("auto").global_batch == 32 and work_of(
        4, model="gpt2", strategies="fsdp", accumulation=8) == work_of(
        4, model="gpt2", strategies="fsdp", accumulation=8, loss="cross_entropy")  # 196 MiB each
    for undivided in ("tensor", {"pipeline": {"microbatches": 4}}):
        assert work_of(4, model="gpt2", strategies=undivided).loss == "cross_entropy"
    tokens, logits = 8 * 1024, 8 * 1024 * 50257
    fused = planned("linear_cross_entropy")
    less = [moments(work, stages_of(work)[0])[0].activations for work in (whole, chunked, fused)]
    assert less[0] - less[1] == 12 * logits - tokens * -(-12 * 50257 // 8)
    assert less[0] - less[2] == 12 * logits - tokens * 4 * 768  # its inputs' gradient
    assert hardware_flops(fused) == hardware_flops(whole)
    assert predict(fused).hardware_flops == predict(whole).hardware_flops
    assert hardware_flops(chunked) - hardware_flops(whole) == 4 * 2 * logits * 768
    assert predict(chunked).hardware_flops * 4 == hardware_flops(chunked)


@pytest.mark.parametrize("loss", ["chunked_cross_entropy", "linear_cross_entropy"])
@pytest.mark.parametrize(("block", "words"), [
    ({"strategies": {"pipeline": {}}}, "pipelines compute the loss of what the last stage"),
    ({"strategies": {"tensor": {}}}, "have loss_parallel instead"),
    ({"library": "transformers"}, "return all logits at once"),
    ({"compile": True}, "leave one of the two out"),
    ({"model": "resnet50"}, "resnet50 takes images, of few logits")])
def test_what_takes_no_loss_in_parts_is_a_skip(
    block: dict[str, Any], words: str, loss: str,
) -> None:
    (case,) = plan_of({"model": "gpt2", "loss": loss, **block}).cases
    assert case.skip is not None and case.skip.startswith(
        "" if block.get("model") else f"loss {loss}: ") and words in case.skip


def test_activations_by_hand() -> None:
    """s b h x 34 bytes of Korthikanti et al. (2022), less 2 for dropout, in fp32 twice as much."""
    def kept(layers: int, **more: Any) -> int:
        return predict(work_of(1, model="gpt2", layers=layers, strategies="single", batch_size=2,
                               loss="cross_entropy", **more)).memory.activations

    tokens, hidden, heads = 2 * 1024, 768, 12
    rest = tokens * (2 * 8 + 4 * heads)  # statistics of two norms, log-sum-exp of each head
    assert kept(4) - kept(3) == tokens * hidden * 32 * 2 + rest
    # autocast: inputs of the norms in fp32 (8 instead of 4), one more copy each for k and v (4)
    assert kept(4, dtype="bf16") - kept(3, dtype="bf16") == tokens * hidden * 40 + rest
    assert kept(4, checkpointing="full") - kept(3, checkpointing="full") == tokens * hidden * 4
    assert kept(4, checkpointing="selective") == pytest.approx(
        (kept(4) + kept(4, checkpointing="full")) / 2, rel=0.2)
    assert kept(4, accumulation=2) == kept(4) // 2


def test_attention_follows_the_lengths_of_documents() -> None:
    lengths = document_lengths(128, 5)
    assert sum(lengths) == 128 and len(lengths) == 5 and min(lengths) > 0
    whole, packed = work_of(), work_of(documents=5)
    pairs = 128**2 - sum(length**2 for length in lengths)
    for definition, halves in (("counted", 2), ("megatron", 1), ("6n", 0)):
        assert dict(whole.flops)[definition] - dict(packed.flops)[definition] == (
            3 * packed.layers * 32 * pairs * 2 * 128 * halves)
    assert document_lengths(16, 16) == (1,) * 16


@pytest.mark.parametrize("variant", ["lora", "dora"])
@pytest.mark.parametrize("targets", TARGETS)
def test_only_adapters_are_exchanged(targets: str, variant: str) -> None:
    options = {"targets": targets, "variant": variant}
    copies, shards = (work_of(model="mistral-7b", strategies={"lora": {"over": over, **options}})
                      for over in ("data", "fsdp"))
    (summed,) = predict(copies).of_ranks[0].calls
    assert (summed.collective, summed.size_bytes) == ("all_reduce", 4 * copies.adapters)
    scattered = {one.collective: one for one in predict(shards).of_ranks[0].calls}["reduce_scatter"]
    assert scattered.size_bytes == 4 * shards.adapters < shards.parameters / 10
    by_hand = {"qv": 16 * (3 * 4096 + 1024), "attention": 16 * (6 * 4096 + 2 * 1024),
               "mlp": 16 * 3 * (4096 + 14336)}
    if variant == "lora" and targets in by_hand:
        assert copies.adapters == 32 * by_hand[targets]
    if (targets, variant) == ("qv", "dora"):
        assert copies.adapters == 32 * (by_hand[targets] + 4096 + 1024)


def test_what_is_offloaded_is_on_the_host_and_one_block_on_the_device() -> None:
    cuda = {"model": "gpt2", "backend": "nccl", "strategies": "fsdp", "dtype": "bf16"}
    kept, full, moved = (work_of(checkpointing=value, **cuda)
                         for value in ("none", "full", "offload"))
    (stage,) = stages_of(moved)
    of_blocks = activations_on_host(moved, stage)
    least = predict(moved).memory.activations
    assert predict(kept).memory.activations - least == of_blocks
    assert least == predict(full).memory.activations - 8 * 1024 * 768 * 2 * 12
    assert predict(moved).hardware_flops == predict(kept).hardware_flops
    (case,) = plan_of(cuda | {"checkpointing": "offload"}).cases
    assert case.host_bytes == of_blocks


def test_traffic_by_hand() -> None:
    count = 124_439_808

    def calls(**block: Any) -> dict[str, tuple[int, int, int]]:
        return {one.collective: (one.count, one.size_bytes, one.wire_bytes)
                for one in predict(work_of(4, model="gpt2", **block)).of_ranks[0].calls}

    (number, size, wire) = calls()["all_reduce"]
    assert (size, wire) == (4 * count, 4 * count * 2 * 3 // 4)
    assert 12 <= number <= 4 * count // (25 * 2**20)
    assert calls(strategies={"data": {"comm_hook": "bf16"}})["all_reduce"][1] == 2 * count
    powersgd = calls(strategies={"data": {"comm_hook": "powersgd"}})["all_reduce"]
    assert powersgd[0] == 3 * number
    assert powersgd[1] < size / 100
    zero1 = calls(strategies="zero1")
    assert zero1["all_reduce"] == (number, size, wire)
    assert zero1["broadcast"] == (196, 4 * count, 4 * count)
    fsdp = calls(strategies="fsdp", accumulation=2)
    assert (fsdp["all_gather"][0], fsdp["reduce_scatter"][0]) == (2 * (2 * 12 + 1), 12 + 1)
    hsdp = calls(strategies={"hsdp": {"reshard": False}})
    assert {name: number for name, (number, *_) in hsdp.items()} == {
        "all_gather": 13, "reduce_scatter": 13, "all_reduce": 13}
    assert hsdp["all_reduce"][1] == hsdp["reduce_scatter"][1] // 2


def test_gloo_sends_an_all_reduce_for_a_reduce_scatter() -> None:
    rank = predict(work_of(4, strategies="fsdp")).of_ranks[0]
    scattered = next(one for one in rank.calls if one.collective == "reduce_scatter")
    assert scattered.wire_bytes == scattered.size_bytes * 3 // 4
    assert rank.carried_on("gloo") - rank.carried_on("nccl") == scattered.wire_bytes > 0


def test_one_rank_talks_to_nobody() -> None:
    assert predict(work_of(1)).carried_on("gloo") == 0
    assert predict(work_of(1, strategies="fsdp")).carried_on("gloo") == 0


def test_recomputation_costs_flops() -> None:
    none, full = (work_of(model="gpt2", checkpointing=each, loss="cross_entropy")
                  for each in ("none", "full"))
    assert hardware_flops(none) == dict(none.flops)["counted"]
    for work in (none, full, work_of(model="gpt2", checkpointing="selective",
                                     strategies={"pipeline": {"microbatches": 8}})):
        shares = sum(predict_stage(work, stage).hardware_flops for stage in stages_of(work))
        assert shares * work.dp * work.tp == hardware_flops(work)
    assert 1.1 < hardware_flops(full) / hardware_flops(none) < 4 / 3


def test_nominal_flops_are_those_of_the_published_formula() -> None:
    """Narayanan et al., arXiv:2104.04473: 96 B s l h^2 (1 + s / 6h + V / 16lh) for GPT."""
    single = {"model": "gpt2-xl", "strategies": "single", "loss": "cross_entropy"}
    work = work_of(1, batch_size=2, checkpointing="full", **single)
    h, s, l_, v = work.hidden, work.seq_length, work.layers, work.vocab
    published = 96 * 2 * s * l_ * h * h * (1 + s / (6 * h) + v / (16 * l_ * h))
    assert hardware_flops(work, nominal=True) == pytest.approx(published, rel=1e-12)
    for checkpointing in ("none", "operators"):
        same = work_of(1, checkpointing=checkpointing, **single)
        assert hardware_flops(same, nominal=True) == hardware_flops(same)


def test_every_nth_block_or_attention_is_computed_again() -> None:
    """Korthikanti et al., section 5: attention again costs its products and scores."""
    def planned(checkpointing: str) -> Training:
        return work_of(1, model="gpt2", layers=12, strategies="single", batch_size=2,
                       checkpointing=checkpointing, loss="cross_entropy")

    none, third, attention = map(planned, ("none", "selective:3", "attention"))
    assert planned("selective:1") == planned("full")
    assert planned("selective:02") == planned("selective")
    again = {work.checkpointing: hardware_flops(work) - hardware_flops(none)
             for work in (third, planned("full"), attention)}
    assert again["selective:3"] * 3 == again["full"]
    tokens, hidden = 2 * 1024, 768  # q, k, v; scores and values; not the last product
    assert again["attention"] == 12 * 2 * tokens * (3 * hidden**2 + 2 * 1024 * hidden)
    kept = [predict(work).memory.activations for work in (none, attention)]
    assert kept[0] - kept[1] == 12 * tokens * (4 * 4 * hidden + 4 * 12)  # q, k, v, the result
    with pytest.raises(ConfigError, match="selective:0"):
        planned("selective:0")


BOTH = [False, True]
SETS: dict[str, Any] = {
    "data": {"comm_hook": ["none", "powersgd"]}, "fsdp": {"reshard": BOTH}, "hsdp": {},
    "single": {}, "zero1": {}, "model": {}, "pipeline": {"schedule": ["1F1B", "GPipe"]},
    "tensor": {"sequence_parallel": BOTH, "loss_parallel": BOTH},
    "hybrid": [{"tp": 2, "data": ["fsdp", "replicate"], "sequence_parallel": BOTH},
               {"pp": 2, "data": ["fsdp", "replicate"]}, {"tp": 2, "pp": 2},
               {"tp": 2, "cp": 2, "rotate": ["allgather", "alltoall"]},
               {"pp": 2, "cp": 2, "data": "fsdp", "attention": "ulysses"}],
    "lora": {"over": ["data", "fsdp"]}, "qlora": {"over": ["data", "fsdp"]},
    "context": [{"cp": [0, 2], "rotate": ["allgather", "alltoall"]}, {"attention": "ulysses"}],
}
OF_EXPERTS: dict[str, Any] = {
    "moe": [{"ep": [1, 2, 4]}, {"dispatch": "fp8"}],
    "hybrid": [{"tp": 2, "ep": 2, "data": ["fsdp", "replicate"], "load": "zipf:1"},
               {"pp": 2, "ep": [1, 2], "data": ["fsdp", "replicate"]}, {"tp": 2, "pp": 2},
               {"pp": 2, "cp": 2, "ep": 2, "attention": "ulysses"}]}


@pytest.mark.parametrize("spec", strategies(), ids=lambda spec: spec.name)
def test_what_is_predicted_is_what_the_strategy_declares_it_calls(spec: Any) -> None:
    of_models = (({}, SETS), ({"model": "moe-tiny"}, OF_EXPERTS))
    for case in (case for model, sets in of_models if spec.name in sets for case in plan_of({
            "strategies": {spec.name: sets[spec.name]}, "batch_size": 16, **model}).cases):
        assert case.skip is None, case.skip
        work = training_of(case)
        assert set(work.calls) <= set(collectives())
        called = {one.collective for stage in stages_of(work)
                  for one in predict_stage(work, stage).calls}
        assert called == set(work.calls), case.label


def test_the_ranks_of_a_pipeline_have_all_parts_and_keep_less_towards_its_end() -> None:
    for schedule, stages in (("1F1B", 1), ("GPipe", 1), ("Interleaved1F1B", 2),
                             ("ZBVZeroBubble", 2), ("DualPipeV", 2)):
        work = work_of(4, batch_size=16, strategies={
            "pipeline": {"schedule": schedule, "microbatches": 8}})
        found = stages_of(work)
        assert sorted(number for stage in found for number in stage.blocks) == list(range(8))
        assert [sum(stage.first for stage in found), sum(stage.last for stage in found)] == [1, 1]
        crossings = 3 if stages == 1 else 7 if schedule == "Interleaved1F1B" else 6
        assert sum(len(stage.ahead) for stage in found) == crossings
        assert sum(len(stage.behind) for stage in found) == crossings
    one = [stage.in_flight for stage in stages_of(work_of(
        4, batch_size=16, strategies={"pipeline": {"microbatches": 8}}))]
    assert one == [4, 3, 2, 1]


@pytest.mark.parametrize(("layers", "stages", "of_each"), [
    (126, 16, [7, *[8] * 14, 7]),  # Llama 3 405B
    (9, 4, [2, 3, 2, 2]), (7, 4, [2, 2, 2, 1]), (3, 2, [2, 1]), (8, 4, [2] * 4)])
def test_layers_that_are_left_over_are_not_in_the_first_and_the_last_stage(
    layers: int, stages: int, of_each: list[int],
) -> None:
    parts = [layers_on(layers, stages, stage) for stage in range(stages)]
    assert [len(part) for part in parts] == of_each
    assert [number for part in parts for number in part] == list(range(layers))
    work = work_of(stages, layers=layers, batch_size=stages,
                   strategies={"pipeline": {"microbatches": stages}})
    assert [len(stage.blocks) for stage in stages_of(work)] == of_each
    of_layer = [one.hardware_flops // count for one, count in zip(
        predict(work).of_ranks[:-1], of_each[:-1], strict=True)]
    assert set(of_layer) == {of_layer[0]}  # the last has the head, too


def test_each_number_of_a_plan_is_the_most_of_any_rank() -> None:
    """The last stage has most FLOPs, with any schedule; the first often has most memory."""
    plans = {schedule: predict(work_of(4, model="llama3-8b", batch_size=8, strategies={
        "pipeline": {"schedule": schedule, "microbatches": 8}})) for schedule in ("GPipe", "1F1B")}
    for demands in plans.values():
        ranks = demands.of_ranks
        assert len(ranks) == 4 and ranks[1].collectives > ranks[3].collectives
        assert demands.hardware_flops == ranks[3].hardware_flops > ranks[0].hardware_flops
        assert demands.carried_on("gloo") == ranks[1].carried_on("gloo")
        assert demands.collectives == ranks[1].collectives
        assert demands.memory == max((one.memory for one in ranks), key=lambda one: one.total)
    assert plans["1F1B"].memory == plans["1F1B"].of_ranks[0].memory
    assert plans["GPipe"].hardware_flops == plans["1F1B"].hardware_flops


def test_the_estimate_of_a_pipeline_does_not_depend_on_who_has_most_memory() -> None:
    one, other = (plan_of({"model": "llama3-8b", "batch_size": 8, "strategies": {"pipeline": {
        "schedule": schedule, "microbatches": 8}}}).cases[0] for schedule in ("GPipe", "1F1B"))
    assert one.estimate_s == other.estimate_s
    assert one.memory_bytes > other.memory_bytes


def test_what_tensor_parallel_ranks_send_by_hand() -> None:
    def wire(**options: Any) -> dict[str, int]:
        work = work_of(4, model="transformer-small", layers=6, batch_size=2, seq_length=512,
                       strategies={"tensor": options})
        return {one.collective: one.wire_bytes for one in predict(work).of_ranks[0].calls}

    hidden = 2 * 512 * 768 * 4
    rounds = 4 * 6 + 2  # of each block's halves forward and backward; embedding, head
    plain = wire(loss_parallel=True)["all_reduce"]
    assert plain == pytest.approx(rounds * hidden * 2 * 3 / 4, rel=1e-3)
    divided = wire(loss_parallel=True, sequence_parallel=True)
    assert divided["reduce_scatter"] == rounds * hidden * 3 // 4
    assert divided["all_gather"] == pytest.approx(rounds * hidden * 3 / 4, rel=0.02)
    assert wire()["all_gather"] == 2 * 512 * 50260 * 4 * 3 // 4  # 50257 words on 4 ranks


LONG: dict[str, Any] = {"model": "llama3-8b", "seq_length": 131072, "batch_size": 1,
                        "dtype": "bf16", "checkpointing": "full", "loss": "chunked_cross_entropy"}


@pytest.mark.parametrize(("options", "imbalance", "executed"), [
    ({"balance": "zigzag"}, 1, 17 / 512), ({"balance": "none"}, 31 / 16, 1 / 16),
    ({"cp": 8, "attention": "ulysses"}, 1, 1 / 8)])
def test_ranks_of_a_long_sample_share_its_attention(
    options: dict[str, Any], imbalance: float, executed: float,
) -> None:
    """Of 16 ranks in order the last attends to 15 parts and half of its own, the mean to 8."""
    work = work_of(512, **LONG, strategies={"context": {"cp": 16, **options}})
    alone = work_of(1, **LONG, strategies="single")
    pairs, flops = 131072**2, attention_flops(work)
    assert attention_imbalance(work) == pytest.approx(imbalance)
    assert sum(flops) == 3 * 32 * 2 * pairs * 4096
    rest = hardware_flops(alone) - 4 * 32 * 4 * pairs * 4096  # again in each block
    of_rank = predict(work).hardware_flops - rest / work.cp
    assert of_rank == pytest.approx(4 * 32 * 4 * pairs * 4096 * executed)
    assert work.dp * work.cp == 512 and work.tokens == 131072 * work.dp
    assert predict(work).memory.total < 20e9 < predict(alone).memory.activations


def test_what_a_ring_and_heads_send_by_hand() -> None:
    def wire(**options: Any) -> dict[str, int]:
        work = work_of(4, model="llama3-8b", layers=2, seq_length=512, batch_size=1, dtype="bf16",
                       strategies={"context": options})
        (stage,) = stages_of(work)
        return {one.collective: one.wire_bytes for one in predict_stage(work, stage).calls}

    pair, heads = 128 * 2 * 1024, 128 * 4096  # elements of keys and values, and of queries
    gradients, layers = 4 * pair * 4, 2
    gathered, sent = wire(), wire(rotate="alltoall")
    assert gathered["send_recv"] == layers * gradients
    assert sent["send_recv"] == layers * (gradients + 2 * 3 * pair * 2)
    assert gathered["all_gather"] - sent["all_gather"] == layers * 2 * 3 * pair * 2
    assert wire(attention="ulysses")["all_to_all"] == layers * 2 * (2 * heads + pair) * 2 * 3 // 4


def test_larger_degrees_need_less_memory_on_a_rank() -> None:
    def total(**strategies: Any) -> int:
        return predict(work_of(8, model="transformer-large", batch_size=8,
                               strategies=strategies)).memory.total

    data, zero1, hsdp, fsdp = (total(**{name: {}}) for name in ("data", "zero1", "hsdp", "fsdp"))
    assert data > zero1 > hsdp > fsdp
    assert fsdp > total(tensor={"sequence_parallel": True, "loss_parallel": True})


def test_a_load_written_in_two_ways_is_one() -> None:
    ids = {case.case_id for load in ("zipf:1", "zipf:1.0", "zipf:1,seed=0")
           for factor in (1.25, "1.250", "1.25")
           for case in plan_of({"model": "moe-tiny", "strategies": {
               "moe": {"load": load, "capacity_factor": factor}}}).cases}
    assert len(ids) == 1
    assert dict(work_of(2, model="moe-tiny", strategies={"moe": {
        "capacity_factor": 1.123457}}).options)["capacity_factor"] == "1.123457"
    with pytest.raises(ConfigError, match="none for no limit"):
        plan_of({"model": "moe-tiny", "strategies": {"moe": {"capacity_factor": 0}}})


@pytest.mark.parametrize(("strategies", "extra", "part"), [
    ({"hybrid": {"tp": 2, "data": "hsdp", "replicas": 1}}, {}, "replicas"),
    ("data", {"communication": "only", "optimizer": "adamw8bit"}, "optimizer adamw8bit"),
    ("data", {"communication": "only", "dtype": "bf16", "precision": "fp8_rowwise"}, "precision")])
def test_options_without_effect_are_refused(
    strategies: Any, extra: dict[str, Any], part: str,
) -> None:
    block = {"model": "transformer-tiny", "strategies": strategies, **extra}
    try:
        reasons = [case.skip for case in plan_of(block).cases]
    except ConfigError as error:
        reasons = [str(error)]
    assert all(reason and part in reason for reason in reasons)


def test_a_device_that_may_be_a_gpu_can_have_its_activations_on_the_host() -> None:
    for backend, device, skipped in (("ucc", "auto", False), ("gloo", "cpu", True)):
        cases = plan_of({"model": "transformer-tiny", "strategies": "data", "backend": backend,
                         "device": device, "checkpointing": "offload"}).cases
        assert [bool(case.skip and "no effect" in case.skip) for case in cases] == [skipped]


def test_a_skip_of_experts_names_the_nearest_groups_of_ranks_that_work() -> None:
    for ranks, ep, others in ((32, 16, "ep=8"), (24, 3, "ep=1")):  # 3 ranks divide no extent
        assert reason_of(ranks, model="moe-tiny", strategies={"moe": {"ep": ep}}).endswith(
            f"cannot be divided evenly among {ep} ranks (ep); take {others}")


def test_experts_of_a_capacity_by_hand() -> None:
    """Of 512 tokens a rank each has 2 of 8 experts: the mean expert has 128 of a rank."""
    def work(factor: object) -> Training:
        return work_of(4, model="moe-tiny", seq_length=64, strategies={"moe": {
            "ep": 4, "load": "zipf:1", "capacity_factor": factor}})

    free, bound, none = (load_of(work(factor)) for factor in ("none", 1.25, 8))
    assert capacity_of(work(1.25)) == 160 and (free.dropped, none.dropped) == (None, 0)
    assert free[:2] == none[:2] and max(free.of_experts) > max(bound.of_experts) == 4 * 160
    assert bound.dropped == 1 - sum(bound.of_experts) / 4096 > 0.1
    assert sum(share.own_pairs for share in bound.shares) == sum(bound.of_experts)
    flops, wire = zip(*((one.hardware_flops, one.carried_on("")) for one in map(
        predict, (work("none"), work(1.25)))), strict=True)
    assert flops[1] < flops[0] and wire[1] < wire[0]


@pytest.mark.parametrize(("strategy", "more"), [
    ("data", {}), ("fsdp", {}), ("hsdp", {"accumulation": 2})])
def test_what_is_held_in_bf16_is_half_and_travels_so(strategy: str, more: dict[str, Any]) -> None:
    def made(**block: Any) -> tuple[Memory, dict[str, int]]:
        work = work_of(strategies=strategy, dtype="bf16", batch_size=8, **more, **block)
        (stage,) = stages_of(work)
        return moments(work, stage)[-1], {
            one.collective: one.wire_bytes for one in predict_stage(work, stage).calls}

    (mixed, wire), (bf16, half), (master, _) = (
        made(precision=name) for name in ("mixed", "bf16", "bf16_master"))
    count = mixed.parameters // 4
    for held in (bf16, master):
        assert held.parameters == held.gradients == 2 * count
    steps = mixed.optimizer - 8 * count
    assert bf16.optimizer == 4 * count + steps
    assert master.optimizer == 12 * count + steps
    assert 2 * count < made(optimizer="adamw8bit")[0].optimizer < 2.1 * count
    for collective, size in half.items():  # parameters are gathered in bf16 whichever
        assert size == wire[collective] // (1 if collective == "all_gather" else 2)


@pytest.mark.parametrize(("block", "words"), [
    ({"precision": "bf16", "dtype": "fp32"}, "give dtype bf16"),
    *(({"precision": "fp8_rowwise", "strategies": name}, "take bf16") for name in (
        "tensor", "context")),
    ({"precision": "fp8_rowwise", "strategies": "moe", "model": "moe-tiny"}, "take bf16"),
    ({"precision": "fp8_rowwise", "strategies": {"pipeline": {"schedule": "ZBVZeroBubble"}}},
     "that of a product in 8 bits is in one piece"),
    ({"optimizer": "adamw8bit", "strategies": "lora"}, "leave it out"),
    ({"precision": "bf16", "strategies": {"data": {"comm_hook": "bf16"}}}, "comm_hook"),
    ({"precision": "bf16", "library": "transformers"}, "own transformers"),
    ({"precision": "bf16_master", "checkpoint_every": 2}, "checkpoint_every"),
    ({"precision": "fp8_rowwise", "compile": True}, "compile"),
    ({"precision": "fp8_rowwise", "hidden": 200, "heads": 4}, "hidden 200"),
    ({"precision": "fp8_tensorwise", "seq_length": 17, "batch_size": 1}, "17"),
    ({"offload_state": True}, "no effect on cpu")])
def test_where_numbers_cannot_be_held_otherwise(block: dict[str, Any], words: str) -> None:
    assert words in reason_of(**{"strategies": "data", "dtype": "bf16", "backend": "gloo", **block})


def test_states_on_the_host_take_none_of_the_gpu() -> None:
    block = {"strategies": "fsdp", "dtype": "bf16", "backend": "nccl", "device": "cuda",
             "model": "llama3-8b"}
    plain, apart = (plan_of(block | {"offload_state": wanted}).cases[0] for wanted in BOTH)
    assert plain.skip is apart.skip is None
    assert plain.memory_bytes > apart.memory_bytes
    work = training_of(apart)
    assert predict(work).memory.optimizer == 0
    assert offloaded_bytes(work) > 4 * predict(work).memory.parameters - 1
    assert work.features.dry_run_workload is None


def test_the_peak_of_products_in_8_bits_is_not_that_of_bf16() -> None:
    work = work_of(strategies="single", world_size=1, dtype="bf16", precision="fp8_rowwise")
    assert work.peak_type == "fp8" and work.features.least_capability == (8, 9)
    assert mfu(work, "megatron", 1.0, 1, {"bf16": 1e12}) is None
    assert mfu(work, "megatron", 1.0, 1, {"fp8": 1e12}) == dict(work.flops)["megatron"] / 1e12


@pytest.mark.parametrize(("ranks", "block", "skips"), [
    (2, {"strategies": {"moe": [{"ep": 2}, {"ep": 3}], "fsdp": {}, "hybrid": {"tp": 4, "pp": 1}}},
     [None, "take ep=2", "moe", "evenly"]),
    (4, {"strategies": {"hybrid": {"tp": 2, "ep": 2, "data": "hsdp", "replicas": 4}}},
     ["replicas"]),
    (2, {"strategies": {"moe": {"ep": 2}}, "library": "transformers"}, ["no experts"]),
    (4, {"strategies": {"moe": {"ep": 2}, "hybrid": {"tp": 2, "ep": 2, "data": "fsdp"}},
         "dtype": "bf16", "backend": "nccl", "device": "cuda", "offload_state": True},
     [None, None])])
def test_skips_of_experts_say_why_and_cost_no_report(
    ranks: int, block: dict[str, Any], skips: list[str | None],
) -> None:
    """A run has facts of each case, of skipped ones none."""
    cases = plan_of({**BLOCK, "model": "moe-tiny", **block}, ranks=ranks).cases
    assert len(cases) == len(skips)
    for case, part in zip(cases, skips, strict=True):
        assert (case.skip is None) == (part is None)
        assert part is None or part in case.skip
        assert (planned_fact(case, StepDemand) is None) == (part is not None)
