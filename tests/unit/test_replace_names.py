"""--model and --strategy put their names in place of those in the blocks of a sweep file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import load_config
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan

SMALL: dict[str, Any] = {
    "kind": "training", "model": ["gpt2", "bert-large"], "layers": 2, "hidden": 1536,
    "strategies": {"data": {}, "fsdp": {"reshard": [False]}}, "seq_length": 64}
COMM = {"kind": "collective", "collective": "all_reduce", "size": 8}


def loaded(folder: Path, *overrides: tuple[str, object], **top: Any) -> Config:
    path = folder / "sweep.json"
    path.write_text(json.dumps({"benchmarks": [COMM, SMALL], **top}))
    return load_config(path, overrides)


def planned(config: Config) -> Plan:
    return make_plan(config, 4)


def test_a_model_that_is_named_keeps_its_extents(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["gpt2"]))
    assert {(case.workload.model, case.workload.layers) for case in planned(config).cases} == {
        ("gpt2", 2)}
    assert config.notes == ()


def test_another_model_replaces_it_without_its_extents(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["transformer-large"]))
    works = [case.workload for case in planned(config).cases]
    assert {(work.model, work.layers, work.hidden, work.seq_length) for work in works} == {
        ("transformer-large", 24, 2048, 64)}
    assert config.notes == ("benchmarks[1]: model transformer-large instead of gpt2, bert-large; "
                            "dropped: layers 2, hidden 1536",)


def test_strategies_keep_their_options_where_they_are_named(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("strategy", ["fsdp", "zero1"]), ("model", ["gpt2"]))
    assert {(case.workload.strategy, dict(case.workload.options).get("reshard"))
            for case in planned(config).cases} == {("fsdp", False), ("zero1", None)}
    assert config.notes == ("benchmarks[1]: strategies fsdp, zero1 instead of data, fsdp",)


def test_the_file_may_name_them_and_an_assignment_wins(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("benchmarks.1.layers", 3), model="transformer-small")
    assert {(case.workload.model, case.workload.layers) for case in planned(config).cases} == {
        ("transformer-small", 3)}


def test_a_kept_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["transformer-large"]), ("benchmarks.1.layers", 3))
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(config.plain()))
    assert load_config(kept).plain() == config.plain()


@pytest.mark.parametrize(("overrides", "message"), [
    ([("model", ["gpt3"])], 'benchmarks: training-2: model: "gpt3" is not known; did you mean'),
    ([("strategy", ["fsd"])], 'strategies.fsd: "fsd" is not known; did you mean "fsdp"?'),
    ([("model", 3)], "command line: model: must be text, not 3"),
    ([("model", ["gpt2"]), ("benchmark", "comm")], "model: no case of the sweep has a model"),
])
def test_names_that_are_none_are_refused(
    tmp_path: Path, overrides: list[tuple[str, object]], message: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(loaded(tmp_path, *overrides))
    assert message in str(caught.value)


def test_what_models_of_another_sort_lack_is_left_out(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("model", ["resnet50"]))
    assert planned(config).cases and "seq_length 64" in config.notes[0]
    both = loaded(tmp_path, ("model", ["resnet50", "llama3-8b"]))
    assert both.benchmarks[1].seq_length == (64,)


def test_the_own_block_of_a_kind_takes_any_model(tmp_path: Path) -> None:
    config = loaded(tmp_path, ("benchmark", "memory"), ("model", ["resnet50"]))
    assert {case.workload.training.model for case in planned(config).cases} == {"resnet50"}
