"""TorchScale's experiment files run as they are; tests/data/torchscale.yaml is one of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.config.load import check_config, load_config
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.interop.dialects.torchscale import TorchScaleFile
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.expand import make_plan

GOLDEN = Path(__file__).parents[1] / "data/torchscale.yaml"
SMALL: dict[str, Any] = {"experiment_name": "tiny", "models": ["transformer-tiny"],
                         "batch_sizes": [4], "gpu_counts": [1, 2]}


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "torchscale.json"
    path.write_text(json.dumps({name: value for name, value in (SMALL | keys).items()
                                if value is not ...}))
    return path


def loaded(folder: Path, overrides: list[tuple[str, object]] | None = None, /, **keys: Any
           ) -> Config:
    return load_config(written(folder, **keys), overrides or [])


def test_the_golden_file_is_every_combination() -> None:
    plan = make_plan(load_config(GOLDEN), 8)
    found = {(training_of(c).model, training_of(c).batch_size, c.world_size,
              training_of(c).strategy) for c in plan.cases}
    assert found == {(model, batch, ranks, "single" if ranks == 1 else "data")
                     for model in ("resnet50", "bert-large", "gpt2") for batch in (64, 128, 256)
                     for ranks in (1, 2, 4, 8)}
    assert len(plan.cases) == len(found) == 36
    assert {(c.backend, c.device, training_of(c).dtype, c.skip) for c in plan.cases} == {
        ("nccl", "cuda", "fp32", None)}
    assert {training_of(c).global_batch // c.world_size for c in plan.cases} == {64, 128, 256}


def test_the_golden_file_is_profiled_where_ranks_wait() -> None:
    config = load_config(GOLDEN)
    assert (config.name, config.profiling.enabled, config.profiling.tool, config.profiling.trigger
            ) == ("resnet50_scaling_test", True, "nsys", "sync_stalls")
    assert len(config.notes) == 1  # its words are in the golden plans


def test_more_gpus_than_ranks_are_skips_with_the_reason() -> None:
    plan = make_plan(load_config(GOLDEN), 2)
    assert {c.skip for c in plan.cases if c.world_size > 2} == {
        f"world_size {ranks} is more than the job's 2 ranks" for ranks in (4, 8)}


@pytest.mark.parametrize(("counts", "blocks"), [
    (1, [("one_gpu", (1,))]), ([4, 2], [("several_gpus", (4, 2))]),
    ([8, 1], [("one_gpu", (1,)), ("several_gpus", (8,))])])
def test_one_gpu_trains_alone_and_several_exchange_gradients(
    tmp_path: Path, counts: Any, blocks: list[Any],
) -> None:
    config = loaded(tmp_path, gpu_counts=counts)
    assert [(block.name, block.world_size) for block in config.benchmarks] == blocks


@pytest.mark.parametrize(("given", "expected"), [
    (..., (False, "torch", "always")), ({}, (False, "nsys", "sync_stalls")),
    ({"enabled": False, "tool": "nsys"}, (False, "nsys", "sync_stalls")),
    ({"enabled": True, "tool": "pytorch", "trigger": "always"}, (True, "torch", "always"))])
def test_profiling_is_ours_with_the_defaults_of_torchscale(
    tmp_path: Path, given: Any, expected: tuple[bool, str, str],
) -> None:
    section = loaded(tmp_path, profiling=given).profiling
    assert (section.enabled, section.tool, section.trigger) == expected


@pytest.mark.parametrize(("experiment", "name", "noted"), [
    ("resnet50 scaling / v2", "resnet50_scaling_v2", True), ("__..", "torchscale", True),
    ("a" * 80, "a" * 64, True), ("v1.0-x_y", "v1.0-x_y", False),
    (..., "unnamed_experiment", False)])
def test_a_name_that_is_no_folder_is_made_to_fit(
    tmp_path: Path, experiment: Any, name: str, noted: bool,
) -> None:
    config = loaded(tmp_path, experiment_name=experiment)
    assert config.name == name
    assert any(f"the results folder is named {name}" in note for note in config.notes) == noted


@given(st.text(min_size=1, max_size=300).filter(lambda name: "\0" not in name))
def test_every_name_becomes_a_valid_sweep(name: str) -> None:
    file = TorchScaleFile.model_validate({
        "experiment_name": name, "models": "gpt2", "batch_sizes": 1, "gpu_counts": 1})
    check_config(file.translated(), "")


def test_the_command_line_wins_over_the_translated_file(tmp_path: Path) -> None:
    overrides: list[tuple[str, object]] = [
        ("model", ["gpt2"]), ("strategy", ["fsdp"]), ("measure.iterations", 3),
        ("benchmarks.1.backend", "gloo")]
    cases = make_plan(loaded(tmp_path, overrides, gpu_counts=[1, 2]), 2).cases
    assert {(training_of(c).model, training_of(c).strategy, c.iterations) for c in cases} == {
        ("gpt2", "fsdp", 3)}
    assert {c.backend for c in cases if c.world_size == 2} == {"gloo"}


@pytest.mark.parametrize(("keys", "message"), [
    ({"batch_size": 4}, "torchscale.json: batch_size: unknown key of a file of TorchScale; did you "
                        'mean "batch_sizes"? allowed: experiment_name, models, batch_sizes'),
    ({"profiling": {"triger": "always"}},
     'profiling.triger: unknown key of a file of TorchScale; did you mean "trigger"? allowed: '),
    ({"profiling": {"tool": "nsyss"}}, 'tool: "nsyss" is not known; did you mean "nsys"?'),
    ({"profiling": {"trigger": "sync_stall"}}, 'did you mean "sync_stalls"?'),
    ({"profiling": {"enabled": "yes"}}, 'profiling.enabled: must be true or false, not "yes"'),
    ({"profiling": True}, "profiling: must be a mapping of keys, not true"),
    ({"gpu_counts": [1, 0]}, "gpu_counts[1]: must be at least 1, not 0"),
    ({"gpu_counts": []}, "gpu_counts: the list is empty; give at least one value"),
    ({"batch_sizes": []}, "batch_sizes: the list is empty; give at least one value"),
    ({"batch_sizes": [64, 0]}, "batch_sizes[1]: must be at least 1, not 0"),
    ({"batch_sizes": "64"}, 'batch_sizes: must be a whole number, not "64"'),
    ({"batch_sizes": 6.5}, "batch_sizes: must be a whole number, not 6.5"),
    ({"models": []}, "models: the list is empty; give at least one value"),
    ({"models": [50]}, "models[0]: must be text, not 50"),
    ({"models": ...}, "models: the key is missing"),
    ({"gpu_counts": ...}, "gpu_counts: the key is missing; it holds numbers of GPUs: a number or a "
                          "list"),
    ({"experiment_name": 3}, "experiment_name: must be text, not 3"),
    ({"models": ["resnet5"]}, 'model: "resnet5" is not known; did you mean "resnet50"?'),
    ({"benchmarks": []}, "has keys of TorchScale (experiment_name, batch_sizes, gpu_counts) and of "
                         "hpcbench (benchmarks); a file is of one tool"),
    ({"parallelization": {}}, "has keys of TorchScale (experiment_name, batch_sizes, gpu_counts, "
                              "models) and of the Candle suite (parallelization)"),
    ({"benchmark": {"primitive": "tp_columnwise"}}, "has keys of DDLB (benchmark) and of TorchSc"),
])
def test_one_line_states_where_what_and_how(
    tmp_path: Path, keys: dict[str, Any], message: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(loaded(tmp_path, **keys), 4)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slip_in_our_own_files_is_no_file_of_torchscale(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"models": "gpt2", "benchmarks": []}))
    with pytest.raises(ConfigError, match='models: unknown key; did you mean "model"?'):
        load_config(path)
