"""max_steps and lora_rank: what users of other tools type as keys of a block of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import check_config, load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan

BLOCK: dict[str, Any] = {"kind": "training", "model": "transformer-tiny", "strategies": "data"}


def cases(**block: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [BLOCK | block]}, "c.json"), 2).cases


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
    path.write_text(json.dumps({"benchmarks": [BLOCK | {"max_steps": 100}]}))
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
    path.write_text(json.dumps({"benchmarks": [BLOCK | {"strategies": "lora", "lora_rank": 4}]}))
    config = load_config(path, [("strategy", ["fsdp"])])
    assert [training_of(case).strategy for case in make_plan(config, 2).cases] == ["fsdp"]
    assert config.notes == ("benchmarks[0]: strategies fsdp instead of lora; dropped: "
                            "lora_rank 4",)


def test_blocks_without_these_keys_have_the_plan_of_before() -> None:
    before = make_plan(check_config({"benchmarks": [BLOCK]}, "c.json"), 2)
    given = make_plan(check_config({"benchmarks": [BLOCK | {"max_steps": None}]}, "c.json"), 2)
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
