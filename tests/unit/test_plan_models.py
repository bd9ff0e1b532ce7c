"""Plans of models: ResNets, adapters, parts of models, and keys of other tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, missing_tool, tool_facts, wanted_tools
from hpcbench.config.load import check_config, load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.derive.rates import rates
from hpcbench.kinds.training.derive.slow_ranks import predicted_bubble
from hpcbench.kinds.training.plan.any_model import (
    RESNETS,
    model_of,
    resnet_with_extents,
    stage_flops,
)
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.planner import TrainingPlanner
from hpcbench.kinds.training.plan.predict import hardware_flops, predict, predict_stage
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present.presenter import demand_lines, training_listing
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.units import round_bytes
from hpcbench.views.table import Table
from results_factory import make_results
from training_results import trained

Capture = pytest.CaptureFixture[str]
BLOCK: dict[str, Any] = {"kind": "training", "model": "resnet50", "strategies": "data"}


def plan_of(*blocks: dict[str, Any], ranks: int = 4) -> Plan:
    whole = [BLOCK | block for block in blocks]
    return make_plan(check_config({"benchmarks": whole}, "c.json"), ranks)


def test_a_resnet_is_named_and_shrunk() -> None:
    whole, small = (training_of(case) for case in plan_of(
        {}, {"layers": 5, "width": 16, "classes": 10, "image_size": 64}).cases)
    assert model_of(whole) == RESNETS["resnet50"]
    assert (whole.parameters, whole.shrunk, whole.tokens) == (25_557_032, False, None)
    assert dict(whole.flops) == {"counted": stage_flops(RESNETS["resnet50"], range(16), 32)}
    assert (small.layers, small.width, small.classes, small.image_size, small.shrunk) == (
        5, 16, 10, 64, True)
    assert (small.hidden, small.vocab, small.seq_length) == (0, 0, 0)


@pytest.mark.parametrize(("layers", "blocks"), [
    (4, (1, 1, 1, 1)), (5, (2, 1, 1, 1)), (8, (2, 2, 2, 2)), (13, (3, 4, 3, 3)),
    (14, (3, 4, 4, 3)), (16, (3, 4, 6, 3)), (17, (3, 4, 7, 3)), (33, (3, 4, 23, 3))])
def test_stages_lose_blocks_evenly_and_one_gets_more(layers: int, blocks: tuple[int, ...]) -> None:
    found = resnet_with_extents("resnet50", layers=layers)
    assert not isinstance(found, str)
    assert found.blocks == blocks


def test_larger_resnets_are_planned_and_named() -> None:
    """44,549,160: resnet101 of torchvision."""
    deep, wide = plan_of({"layers": 33}, {"width": 128, "classes": 2000, "image_size": 448}).cases
    assert training_of(deep).parameters == 44_549_160
    assert "layers=33 width=64 image=224" in deep.label
    assert "layers=16 width=128 classes=2000 image=448" in wide.label
    for case in (deep, wide):
        assert (training_of(case).changed, training_of(case).shrunk) == (True, False)
        assert predict(training_of(case)).memory.total > 4 * 4 * training_of(case).parameters


def test_extents_of_one_kind_are_no_axes_of_the_other() -> None:
    cases = plan_of({"model": ["resnet50", "bert-large"], "seq_length": [64, 128, 256],
                     "image_size": [64, 96], "batch_size": 2}).cases
    assert [(training_of(case).model, training_of(case).image_size or training_of(case).seq_length)
            for case in cases] == [("resnet50", 64), ("resnet50", 96), ("bert-large", 64),
                                   ("bert-large", 128), ("bert-large", 256)]
    with pytest.raises(ConfigError, match="seq_length: resnet50 has no such extent; take away"):
        plan_of({"seq_length": 64})
    with pytest.raises(ConfigError, match="classes: gpt2 and bert-large has no such extent"):
        plan_of({"model": ["gpt2", "bert-large"], "classes": 10})


@pytest.mark.parametrize(("block", "words"), [
    ({"layers": 3}, "layers=3 is less than 4, one block for each stage"),
    ({"strategies": "tensor"}, "resnet50 is made of convolutions, for which no strategy"),
    ({"strategies": {"hybrid": {"tp": 2}}}, "resnet50 is made of convolutions"),
    ({"checkpointing": "full"}, "twice in the running statistics of its batch norms"),
    ({"image_size": 32, "batch_size": 2, "accumulation": 2}, "a batch norm of one pixel"),
    ({"batch_size": 4, "accumulation": 3}, "4 samples (batch_size) cannot be divided evenly"),
    ({"layers": 5, "strategies": {"pipeline": {"schedule": "ZBVZeroBubble"}}},
     "5 layers are fewer than 8 stages"),
])
def test_what_cannot_run_is_a_skip_with_its_reason(block: dict[str, Any], words: str) -> None:
    (case,) = plan_of(block).cases
    assert case.skip is not None
    assert words in case.skip


def test_plans_of_images_survive_json_and_old_ones_load() -> None:
    plan = plan_of({"strategies": ["data", "pipeline"]})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    old = plan_to_json(plan_of({"model": "gpt2"}))
    for case in old["cases"]:
        for name in ("width", "classes", "image_size"):
            del case["workload"][name]
    assert plan_from_json(old) == plan_of({"model": "gpt2"})


def test_memory_by_hand() -> None:
    work = training_of(
        plan_of({"batch_size": 64, "world_size": 1, "strategies": "single"}).cases[0])
    memory, updated = predict(work).memory, moments(work, stages_of(work)[0])[-1]
    count = 25_557_032
    assert (updated.parameters, updated.gradients) == (4 * count, 4 * count)
    assert memory.optimizer == 8 * count + 4 * 161
    norms = 26_560  # channels of the 53 batch norms
    assert memory.buffers == 8 * norms + 8 * 53
    # Convolutions return 11.1 million numbers of an image (Radosavovic et al., arXiv:2003.13678,
    # table 4). Each is kept in 4 bytes, and about as much of what is behind norms and ReLUs.
    assert 80e6 < memory.activations / 64 < 95e6
    half = predict(replace(work, dtype="bf16")).memory
    assert half.activations == pytest.approx(memory.activations / 2, rel=0.02)


def test_stages_have_all_of_it() -> None:
    work = training_of(plan_of({"batch_size": 16, "strategies": {"pipeline": {"microbatches": 8}}},
                   ).cases[0])
    stages = stages_of(work)
    shape = model_of(work)
    names = [item.name for stage in stages for item in stage.tensors(shape)]
    assert len(names) == len(set(names)) == 161
    found = [predict_stage(work, stage) for stage in stages]
    assert sum(one.memory.parameters for one in found) == 4 * work.parameters
    assert sum(one.hardware_flops for one in found) == dict(work.flops)["counted"]
    sent = [one.calls[0].size_bytes for one in found]
    # behind 4, 8 and 12 blocks: 512 x 28^2, 1024 x 14^2 twice
    ahead = [16 * 4 * elements for elements in (512 * 28**2, 1024 * 14**2, 1024 * 14**2)]
    assert sent == [ahead[0], ahead[0] + ahead[1], ahead[1] + ahead[2], ahead[2]]


def test_images_have_no_tokens(tmp_path: Any, capsys: Capture) -> None:
    case = plan_of({"layers": 4, "width": 8, "image_size": 64, "world_size": 2}).cases[0]
    assert rates(training_of(case), 0.5) == (32, None)
    print_results(make_results((trained(case, 0.5),)), tmp_path)
    text = capsys.readouterr().out
    assert "resnet50 (4 layers, width 8, images of 64 pixels, shrunk)" in text
    header = next(line for line in text.splitlines() if line.startswith("strategy"))
    assert "samples/s" in header
    assert "tokens/s" not in header


def test_plans_and_lists_name_both_kinds(capsys: Capture) -> None:
    print_plan(plan_of({"model": ["resnet50", "gpt2"], "batch_size": list(range(1, 41))}))
    text = capsys.readouterr().out
    assert "224 pixels" in text
    assert "1024 tokens" in text
    print_plan(plan_of({"image_size": 96}))
    (header,) = [line for line in capsys.readouterr().out.splitlines() if "strategy" in line]
    assert " width " in header
    assert " hidden " not in header
    rows = [row.cells for table in training_listing() if isinstance(table, Table)
            for row in table.rows]
    assert ("resnet50", 16, 64, 1000, 224, "25,557,032") in rows


MISTRAL: dict[str, Any] = {"kind": "training", "model": "mistral-7b", "seq_length": 512,
                           "dtype": "bf16", "checkpointing": "full", "strategies": "qlora"}
WEIGHTS = 7_241_732_096
BLOCKS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
"""Elements of the matrices of all blocks."""
TABLE = 32000 * 4096
NORMS = 65 * 4096


def mistral_plan(ranks: int = 4, **block: Any) -> Plan:
    return make_plan(check_config({"benchmarks": [MISTRAL | block]}, "c.json"), ranks)


def work_of(ranks: int = 4, **block: Any) -> Training:
    (case,) = mistral_plan(ranks, **block).cases
    assert case.skip is None, case.skip
    return training_of(case)


def work_with(strategy: str, ranks: int = 4, **options: Any) -> Training:
    return work_of(ranks, strategies={strategy: options})


@pytest.mark.parametrize(("targets", "count"), [("attention", 13_631_488), ("all", 41_943_040)])
def test_adapters_of_mistral_are_those_that_are_published(targets: str, count: int) -> None:
    work = work_with("lora", rank=16, targets=targets)
    assert (work.adapters, work.parameters) == (count, WEIGHTS)
    assert work_with("lora", rank=64, targets=targets).adapters == 4 * count
    assert f"{count:,} parameters of adapters" in next(demand_lines(work))


def test_a_dry_run_has_the_bytes_that_plan_has_on_gloo_where_it_sends_more() -> None:
    for strategy in ("fsdp", "data"):
        work = work_with(strategy)
        plain, on_gloo = (round_bytes(predict(work).carried_on(library)) for library in (
            "nccl", "gloo"))
        (line,) = (line for line in demand_lines(work) if "busbw" in line)
        assert plain in line and (on_gloo in line, "gloo" in line, plain != on_gloo) == (
            True, strategy == "fsdp", strategy == "fsdp")


def test_memory_of_adapters_by_hand() -> None:
    for strategy, blocks in (("lora", 2 * BLOCKS), ("qlora", BLOCKS // 2)):
        work = work_with(strategy, 1, over="single")
        memory = moments(work, stages_of(work)[0])[-1]
        # logits are narrow, the embedding and norms are not
        plain = blocks + 2 * TABLE + 4 * TABLE + 4 * NORMS + 4 * 41_943_040
        scales = BLOCKS // 64 + 4 * BLOCKS // (64 * 256) + 32 * 7 * (4 + 4 * 16 + 4 * 256)
        assert memory.parameters == plain + (scales if strategy == "qlora" else 0)
        assert memory.gradients == 4 * 41_943_040
        assert memory.optimizer == 8 * 41_943_040 + 4 * 2 * 7 * 32
    assert 0.127 < scales * 8 / BLOCKS < 0.129  # bits a weight; QLoRA, section 3: 0.127


def test_only_adapters_are_exchanged_and_frozen_weights_are_gathered_as_they_are_held() -> None:
    (data,) = predict(work_with("qlora", over="data")).of_ranks[0].calls
    assert (data.collective, data.size_bytes) == ("all_reduce", 4 * 41_943_040)
    for strategy, blocks in (("lora", 2 * BLOCKS), ("qlora", BLOCKS // 2)):
        gathers, scatters = predict(
            work_with(strategy, over="fsdp", reshard=False)).of_ranks[0].calls
        norms = 2 * 4096 * 32
        assert gathers.size_bytes == (
            blocks + 2 * (41_943_040 + norms) + 2 * (2 * TABLE + 4096))
        assert (scatters.count, scatters.size_bytes) == (32, 4 * 41_943_040)
        assert predict(work_with(strategy, over="fsdp")).of_ranks[0].calls[0].count == 2 * 32 + 1


def test_frozen_weights_save_a_third_of_the_flops() -> None:
    frozen = work_of(1, strategies={"lora": {"over": "single"}}, loss="cross_entropy")
    whole = work_of(1, strategies="single", loss="cross_entropy")
    assert [name for name, _ in frozen.flops] == ["megatron", "counted"]
    tokens, first = 8 * 512, 4096 * (4096 + 2 * 1024)
    attention = 32 * 3 * 4 * 512 * 512 * 4096 * 8
    products = 4 * (BLOCKS + TABLE) + 6 * 41_943_040 - 2 * (first + 3 * 16 * 4096)
    assert dict(frozen.flops)["counted"] == tokens * products + attention
    assert dict(frozen.flops)["megatron"] == tokens * products + attention // 2
    assert 0.66 < dict(frozen.flops)["counted"] / dict(whole.flops)["counted"] < 0.69
    assert predict(frozen).hardware_flops == hardware_flops(frozen)
    again = hardware_flops(frozen) - dict(frozen.flops)["counted"]
    last = 32 * 16 * 4096  # B of the last product is not run again
    assert again == tokens * 2 * (BLOCKS + 41_943_040 - last) + attention // 3


def reasons(**strategies: Any) -> list[str | None]:
    return [case.skip for case in mistral_plan(strategies=strategies).cases]


def test_what_has_no_effect_is_a_skip_and_is_not_recorded() -> None:
    assert reasons(lora={"over": "fsdp", "bucket_mb": [1, 25]}) == [
        "bucket_mb=1 has no effect with over=fsdp", None]
    assert reasons(qlora={"over": "data", "reshard": [True, False]}) == [
        None, "reshard=False has no effect with over=data"]
    assert dict(work_with("lora", over="fsdp").options) == {
        "alpha": 32, "over": "fsdp", "rank": 16, "reshard": True, "targets": "all",
        "variant": "lora"}


def test_adapters_over_single_are_on_one_rank_where_all_are_asked_for() -> None:
    plan = mistral_plan(strategies={"lora": {"over": ["single", "data"]}}, world_size=["all", 4])
    found = {(training_of(case).option("over"), case.world_size): case.skip for case in plan.cases}
    assert found == {
        ("single", 1): None, ("data", 4): None,
        ("single", 4): "over=single trains on one rank, not on 4: give world_size 1"}


def test_rows_that_are_no_whole_blocks_are_not_packed() -> None:
    (case,) = mistral_plan(hidden=64).cases
    assert case.skip == ("inner=224 is not a multiple of 64: the rows of weights must be whole "
                         "blocks of NF4; take hidden=128, or inner=192 or 256")
    assert mistral_plan(hidden=128).cases[0].skip is None
    assert mistral_plan(hidden=64, strategies="lora").cases[0].skip is None


def test_modules_that_are_missing_are_reported_before_anything_starts() -> None:
    (lora,), (qlora,) = mistral_plan(strategies="lora").cases, mistral_plan().cases
    assert lora.needs[-1:] == ("peft",)
    assert wanted_tools([lora, qlora]) == ["bitsandbytes", "peft"]
    missing = tool_facts(["no_such_module"])["no_such_module"].replace("no_such_module", "peft")
    said = {"peft": None, "bitsandbytes": "the Python module bitsandbytes is not installed"}

    def reason(case: Case, tools: dict[str, str | None]) -> str | None:
        return missing_tool(case, "cuda", [RankFacts(0, "here", 0, {
            "tools": tools, "cuda": {"uuids": [], "visible": None}})])

    assert reason(lora, said) is None
    assert reason(qlora, said) == "qlora: the Python module bitsandbytes is not installed"
    assert reason(lora, {**said, "peft": missing}) == f"lora: {missing}"


def test_trainings_of_older_results_are_read() -> None:
    from dataclasses import asdict

    data = asdict(work_of(strategies="data"))
    del data["adapters"], data["modules"]
    assert TrainingPlanner().workload_from_json(data) == work_of(strategies="data")


def test_ids_change_with_what_makes_adapters() -> None:
    sets = [{}, {"rank": 8}, {"alpha": 8}, {"targets": "attention"}, {"over": "fsdp"},
            {"over": "fsdp", "reshard": False}, {"bucket_mb": 1}]
    ids = [case.case_id for case in mistral_plan(strategies={"lora": sets, "qlora": sets}).cases]
    assert len(set(ids)) == len(ids) == 14


TINY: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "batch_size": 8, "backend": "gloo"}


def _case(ranks: int, strategies: Any, **options: Any) -> Case:
    config = {"benchmarks": [{**TINY, "strategies": strategies, **options}]}
    case, = make_plan(check_config(config, "test"), ranks).cases
    return case


@pytest.mark.parametrize(("ranks", "strategies", "degrees"), [
    (4, ["tensor"], (1, 4, 1)),
    (4, ["model"], (1, 1, 4)),
    (4, ["pipeline"], (1, 1, 4)),
    (8, {"hybrid": {"tp": 2}}, (4, 2, 1)),
    (8, {"hybrid": {"pp": 2, "data": "fsdp"}}, (4, 1, 2)),
    (8, {"hybrid": {"tp": 2, "pp": 4}}, (1, 2, 4)),
    (16, {"hybrid": {"tp": 2, "pp": 2}}, (4, 2, 2)),
    (8, ["hybrid"], (4, 1, 2)),
    (4, {"hybrid": {"data": "fsdp", "microbatches": 2}}, (2, 1, 2)),
])
def test_ranks_are_divided(ranks: int, strategies: Any, degrees: tuple[int, int, int]) -> None:
    case = _case(ranks, strategies)
    work = training_of(case)
    assert (case.skip, work.dp, work.tp, work.pp) == (None, *degrees)
    assert (work.global_batch, work.tokens) == (8 * work.dp, 8 * work.dp * 128)


@pytest.mark.parametrize(("ranks", "strategies", "options", "reason"), [
    (1, ["tensor"], {}, "one rank has no other to share a layer with"),
    (1, ["pipeline"], {}, "one rank is no pipeline"),
    (16, ["tensor"], {}, "8 attention heads cannot be divided evenly among 16 ranks (tp)"),
    (4, {"tensor": {"sequence_parallel": True}}, {"seq_length": 126},
     "126 tokens cannot be divided evenly among 4 ranks (tp)"),
    (4, {"pipeline": {"microbatches": 3}}, {},
     "1F1B needs as many micro-batches as stages: 3 micro-batches are fewer than 4 stages"),
    (4, {"pipeline": {"microbatches": 4}}, {"batch_size": 6},
     "6 samples (batch_size / accumulation) cannot be divided evenly into 4 micro-batches"),
    (4, {"pipeline": {"schedule": "LoopedBFS", "stages_per_rank": 3}}, {},
     "8 layers are fewer than 12 stages"),
    (2, {"hybrid": {"tp": 2}}, {}, "dp=1 x tp=2 x pp=1 has not two dimensions"),
    (2, ["hybrid"], {}, "dp=1 x tp=1 x pp=2 has not two dimensions"),
    (3, ["hybrid"], {}, "3 ranks cannot be divided evenly into replicas of tp=1 x pp=2"),
    (4, {"hybrid": {"tp": 1}}, {}, "dp=4 x tp=1 x pp=1 has not two dimensions"),
    (6, {"hybrid": {"tp": 2, "pp": 2}}, {},
     "6 ranks cannot be divided evenly into replicas of tp=2 x pp=2"),
    (4, {"hybrid": {"tp": 2, "schedule": "GPipe"}}, {}, "schedule=GPipe has no effect with pp=1"),
    (4, {"hybrid": {"pp": 2, "loss_parallel": True}}, {},
     "loss_parallel=True has no effect with tp=1"),
    (4, {"hybrid": {"tp": 2, "pp": 2, "data": "fsdp"}}, {}, "data=fsdp has no effect with dp=1"),
])
def test_what_does_not_fit_has_a_reason(
    ranks: int, strategies: Any, options: dict[str, Any], reason: str,
) -> None:
    case = _case(ranks, strategies, **options)
    assert reason in str(case.skip)


def test_a_hybrid_without_degrees_is_layers_times_replicas() -> None:
    """Degrees that are given keep their ids: the others have their defaults as before."""
    assert _case(4, ["hybrid"]).case_id == _case(4, {"hybrid": {"tp": 1, "pp": 2}}).case_id
    assert _case(4, {"hybrid": {"tp": 2}}).case_id == _case(4, {"hybrid": {"tp": 2, "pp": 1}}
                                                            ).case_id


def test_calls_are_those_of_the_dimensions() -> None:
    assert training_of(_case(4, ["tensor"])).calls == ("all_reduce", "all_gather")
    together = {"sequence_parallel": True, "loss_parallel": True}
    assert training_of(_case(4, {"tensor": together})).calls == (
        "all_reduce", "reduce_scatter", "all_gather")
    assert training_of(_case(4, ["model"])).calls == ("send_recv",)
    assert training_of(_case(8, {"hybrid": {"tp": 2, "pp": 2}})).calls == (
        "all_reduce", "all_gather", "send_recv")


def test_the_bubble_is_known_before_anything_runs() -> None:
    assert predicted_bubble(training_of(_case(4, ["tensor"]))) is None
    assert predicted_bubble(training_of(_case(4, ["model"]))) == pytest.approx(3 / 4)
    assert predicted_bubble(training_of(_case(4, ["pipeline"]))) == pytest.approx(3 / 7)
    zero = {"hybrid": {"pp": 2, "schedule": "ZBVZeroBubble", "microbatches": 8}}
    assert predicted_bubble(training_of(_case(4, zero))) == pytest.approx(1 / 49)
    # 2 and 1 layers: the first has F F at 0 to 4, B B at 5 to 13, when the second is done with one
    uneven = _case(2, {"pipeline": {"microbatches": 2}}, layers=3)
    assert predicted_bubble(training_of(uneven)) == pytest.approx(1 - (12 + 6) / (2 * 13))


ON_DATA: dict[str, Any] = {"kind": "training", "model": "transformer-tiny", "strategies": "data"}


def cases(**block: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [ON_DATA | block]}, "c.json"), 2).cases


def complaint(**block: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        cases(**block)
    return str(caught.value)


def ranks(**block: Any) -> list[tuple[str, Any]]:
    return [(training_of(case).strategy, dict(training_of(case).options).get("rank"))
            for case in cases(**block)]


def test_max_steps_are_the_timed_iterations() -> None:
    assert [(case.iterations, case.is_fixed) for case in cases(max_steps=[7, 9])] == [
        (7, True), (9, True)]
    assert [case.case_id for case in cases(max_steps=7)] == [
        case.case_id for case in cases(iterations=7)]
    assert [case.iterations for case in cases(max_steps=7, iterations=7)] == [7]


def test_iterations_of_the_command_line_win_over_max_steps(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"benchmarks": [ON_DATA | {"max_steps": 100}]}))
    (case,) = make_plan(load_config(path, [("measure.iterations", 3)]), 2).cases
    assert case.iterations == 3


def test_lora_rank_is_the_rank_of_strategies_that_have_one() -> None:
    assert ranks(strategies=["data", "lora", "qlora"], lora_rank=4) == [
        ("data", None), ("lora", 4), ("qlora", 4)]
    assert ranks(strategies="lora", lora_rank=[4, 8]) == [("lora", 4), ("lora", 8)]
    assert ranks(strategies={"lora": [{"rank": 4}, {}]}, lora_rank=4) == [("lora", 4)]
    assert ranks(strategies="lora") == [("lora", 16)]


def test_a_strategy_of_the_command_line_takes_its_rank_away(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"benchmarks": [ON_DATA | {"strategies": "lora", "lora_rank": 4}]}))
    config = load_config(path, [("strategy", ["fsdp"])])
    assert [training_of(case).strategy for case in make_plan(config, 2).cases] == ["fsdp"]
    assert config.notes == ("benchmarks[0]: strategies fsdp instead of lora; dropped: "
                            "lora_rank 4",)


def test_blocks_without_these_keys_have_the_plan_of_before() -> None:
    before = make_plan(check_config({"benchmarks": [ON_DATA]}, "c.json"), 2)
    given = make_plan(check_config({"benchmarks": [ON_DATA | {"max_steps": None}]}, "c.json"), 2)
    assert given.plan_hash == before.plan_hash


@pytest.mark.parametrize(("block", "message"), [
    ({"max_steps": 5, "iterations": 7}, "benchmarks[0]: max_steps 5 and iterations 7 are the same "
                                        "key and contradict each other; keep one"),
    ({"max_steps": 5, "iterations": "auto"}, "max_steps 5 and iterations auto are the same key"),
    ({"max_steps": 0}, "benchmarks[0].max_steps: must be at least 1, not 0"),
    ({"max_steps": "auto"}, 'max_steps: must be a whole number, not "auto"'),
    ({"max_step": 5}, 'max_step: unknown key; did you mean "max_steps"?'),
    ({"lora_rank": 8}, "lora_rank: data trains no adapters; take lora_rank away, or name lora or "
                       "qlora"),
    ({"lora_rank": 8, "strategies": {"lora": {"rank": 4}}},
     "lora_rank: 8 contradicts strategies.lora.rank 4; keep one"),
    ({"lora_rank": 0}, "benchmarks[0].lora_rank: must be at least 1, not 0"),
])
def test_one_line_states_what_is_wrong(block: dict[str, Any], message: str) -> None:
    said = complaint(**block)
    assert message in said and "\n" not in said
