"""Plans of adapters: how many are trained, and what they and frozen weights need, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, missing_tool, tool_facts, wanted_tools
from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.planner import TrainingPlanner
from hpcbench.kinds.training.plan.predict import hardware_flops, predict
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present.presenter import demand_lines
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan

MISTRAL: dict[str, Any] = {"kind": "training", "model": "mistral-7b", "seq_length": 512,
                           "dtype": "bf16", "checkpointing": "full", "strategies": "qlora"}
WEIGHTS = 7_241_732_096
BLOCKS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
"""Elements of the matrices of all blocks."""
TABLE = 32000 * 4096
NORMS = 65 * 4096


def plan_of(ranks: int = 4, **block: Any) -> Plan:
    return make_plan(check_config({"benchmarks": [MISTRAL | block]}, "c.json"), ranks)


def work_of(ranks: int = 4, **block: Any) -> Training:
    (case,) = plan_of(ranks, **block).cases
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


def test_memory_by_hand() -> None:
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
    frozen, whole = work_with("lora", 1, over="single"), work_of(1, strategies="single")
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
    return [case.skip for case in plan_of(strategies=strategies).cases]


def test_what_has_no_effect_is_a_skip_and_is_not_recorded() -> None:
    assert reasons(lora={"over": "fsdp", "bucket_mb": [1, 25]}) == [
        "bucket_mb=1 has no effect with over=fsdp", None]
    assert reasons(qlora={"over": "data", "reshard": [True, False]}) == [
        None, "reshard=False has no effect with over=data"]
    assert dict(work_with("lora", over="fsdp").options) == {
        "alpha": 32, "over": "fsdp", "rank": 16, "reshard": True, "targets": "all"}


def test_adapters_over_single_are_on_one_rank_where_all_are_asked_for() -> None:
    plan = plan_of(strategies={"lora": {"over": ["single", "data"]}}, world_size=["all", 4])
    found = {(training_of(case).option("over"), case.world_size): case.skip for case in plan.cases}
    assert found == {
        ("single", 1): None, ("data", 4): None,
        ("single", 4): "over=single trains on one rank, not on 4: give world_size 1"}


def test_rows_that_are_no_whole_blocks_are_not_packed() -> None:
    (case,) = plan_of(hidden=64).cases
    assert case.skip == ("inner=224 is not a multiple of 64: the rows of weights must be whole "
                         "blocks of NF4")
    assert plan_of(hidden=128).cases[0].skip is None
    assert plan_of(hidden=64, strategies="lora").cases[0].skip is None


def test_modules_that_are_missing_are_reported_before_anything_starts() -> None:
    (lora,), (qlora,) = plan_of(strategies="lora").cases, plan_of().cases
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
    ids = [case.case_id for case in plan_of(strategies={"lora": sets, "qlora": sets}).cases]
    assert len(set(ids)) == len(ids) == 14
