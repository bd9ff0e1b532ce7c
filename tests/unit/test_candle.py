"""The Candle suite's configurations run as they are; tests/data/candle.json is one of theirs."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.config.load import check_config, load_config
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.interop.dialects import candle as candle_translated
from hpcbench.interop.dialects.candle import CandleFile
from hpcbench.kinds.training.plan.models import parameters
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.operations.models import MODELS
from hpcbench.plan.expand import make_plan

GOLDEN = Path(__file__).parents[1] / "data/candle.json"
RAW: dict[str, Any] = json.loads(GOLDEN.read_text())
ALONE = {"strategy": "data", "data_parallel_size": 1, "model_parallel_size": 1}
GENERATED: dict[str, Any] = {
    "hardware": {"compute_capability": "7.0"},
    "model": {"input_shape": [32, 512], "output_shape": [32, 512, 50257]},
    "training": {"batch_size": 32, "sequence_length": 512, "learning_rate": 1e-4, "num_epochs": 1,
                 "warmup_steps": 100, "gradient_accumulation_steps": 4, "mixed_precision": True,
                 "checkpoint_interval": 1000},
    "parallelization": {"pipeline_parallel_size": 1, "gradient_sync_freq": 1,
                        "communication_backend": "nccl"},
    "benchmark": {"warmup_iterations": 10, "measurement_iterations": 50, "memory_profiling": True,
                  "communication_profiling": True, "power_profiling": False,
                  "output_detailed_logs": False}}
"""The further keys of a file that the suite's own gen-config writes."""


def changed(**sections: Any) -> dict[str, Any]:
    """Return the golden file with these keys of sections instead; ... takes one away."""
    raw = copy.deepcopy(RAW)
    for name, keys in sections.items():
        raw[name] = {**raw.get(name, {}), **keys} if isinstance(keys, dict) else keys
        if isinstance(raw[name], dict):
            raw[name] = {key: value for key, value in raw[name].items() if value is not ...}
    return {name: value for name, value in raw.items() if value is not ...}


def loaded(folder: Path, overrides: list[tuple[str, object]] | None = None, /, **sections: Any
           ) -> Config:
    path = folder / "candle.json"
    path.write_text(json.dumps(changed(**sections)))
    return load_config(path, overrides or [])


def translated(**sections: Any) -> dict[str, Any]:
    return CandleFile.model_validate_json(json.dumps(changed(**sections))).translated()


def block_of(**sections: Any) -> dict[str, Any]:
    (block,) = translated(**sections)["benchmarks"]
    return dict(block)


def test_the_golden_file_is_layers_times_replicas_and_just_too_large_for_its_gpus() -> None:
    """Replicas copy the parameters of their stage once: torch's fully_shard over one rank."""
    config = load_config(GOLDEN)
    plan = make_plan(config, 4)
    (case,) = plan.cases
    work = training_of(case)
    assert (case.world_size, case.backend, case.device) == (4, "nccl", "cuda")
    assert (work.model, work.strategy, work.dp, work.tp, work.pp) == (
        "transformer-large", "hybrid", 2, 1, 2)
    assert (work.layers, work.hidden, work.seq_length, work.batch_size, work.dtype) == (
        24, 2048, 512, 8, "fp32")
    hardware = config.hardware
    assert (hardware.device_type, hardware.num_devices, hardware.memory_per_device_gb,
            hardware.interconnect, hardware.network_bandwidth_gbps) == ("cuda", 4, 16, "nvlink", 25)
    assert 1.1 * 16e9 < case.memory_bytes < 1.11 * 16e9
    assert case.skip is not None and "to fit, as predicted: checkpointing full" in case.skip
    assert (config.name, config.title, config.measure.iterations) == (
        "candle", "Benchmark Results", "auto")
    assert len(config.notes) == 3  # their words are in the golden plans


def test_a_file_of_the_suites_generator_is_carried_over(tmp_path: Path) -> None:
    config = loaded(tmp_path, **GENERATED)
    (case,) = make_plan(config, 4).cases
    work = training_of(case)
    assert (work.batch_size, work.global_batch, work.accumulation, work.dtype) == (
        16, 32, 4, "fp16")
    assert (case.warmup, case.iterations, case.is_fixed) == (10, 50, True)
    assert [note.partition(":")[0] for note in config.notes] == [
        "hardware.network_bandwidth_gbps 25", "model.input_shape, output_shape",
        "training.gradient_accumulation_steps 4",
        "training.learning_rate, num_epochs, warmup_steps, checkpoint_interval",
        "benchmark.memory_profiling, communication_profiling"]


@pytest.mark.parametrize(("sizes", "ranks", "strategies"), [
    ({"strategy": "data", "data_parallel_size": 4, "model_parallel_size": 1}, 4, {"data": {}}),
    (ALONE, 1, {"single": {}}),
    ({"strategy": "data-parallel", "data_parallel_size": ..., "model_parallel_size": ...}, "all",
     {"data": {}}),
    ({"strategy": "model", "data_parallel_size": 1, "model_parallel_size": 4}, 4, {"model": {}}),
    ({"strategy": "pipeline", "data_parallel_size": 1, "model_parallel_size": 1,
      "pipeline_parallel_size": 4}, 4, {"pipeline": {}}),
    ({"strategy": "hybrid", "data_parallel_size": 2, "model_parallel_size": 4}, 8,
     {"hybrid": {"pp": 4}}),
    ({"strategy": "hybrid", "data_parallel_size": 1, "model_parallel_size": 4}, 4, {"model": {}}),
    ({"strategy": "hybrid", "data_parallel_size": 4, "model_parallel_size": 1}, 4, {"data": {}}),
    ({"strategy": "hybrid", "data_parallel_size": 1, "model_parallel_size": 1}, 1,
     {"single": {}}),
    ({"data_parallel_size": ...}, "all", {"hybrid": {"pp": 2}}),
    ({"data_parallel_size": 3, "model_parallel_size": ...}, 6, {"hybrid": {"pp": 2}}),
])
def test_sizes_become_ranks_and_degrees(sizes: dict[str, Any], ranks: Any, strategies: Any) -> None:
    block = block_of(parallelization=sizes)
    assert (block["world_size"], block["strategies"]) == (ranks, strategies)


@pytest.mark.parametrize(("device", "expected"), [
    ("cuda", ("nccl", "cuda")), ("cpu", ("gloo", "cpu")), ("metal", ("gloo", "mps"))])
def test_devices_have_their_backend(device: str, expected: tuple[str, str]) -> None:
    block = block_of(hardware={"device_type": device})
    assert (block["backend"], block["device"]) == expected


def test_what_cannot_run_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    (case,) = make_plan(loaded(tmp_path, hardware={"device_type": "metal"}), 4).cases
    assert "mps" in str(case.skip)
    (case,) = make_plan(loaded(tmp_path), 2).cases
    assert "world_size 4 is more than the job's 2 ranks" in str(case.skip)


@pytest.mark.parametrize("device", ["metal", "cuda", "cpu"])
@pytest.mark.parametrize("interconnect", ["unified", "nvlink", "system"])
@pytest.mark.parametrize("strategy", ["data", "model", "pipeline", "hybrid"])
@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_every_combination_is_a_sweep(
    device: str, interconnect: str, strategy: str, size: str,
) -> None:
    raw = translated(
        hardware={"device_type": device, "interconnect": interconnect},
        model={"size": size, "layers": ..., "hidden_size": ..., "parameters": ...},
        parallelization={"strategy": strategy, "data_parallel_size": ...,
                         "model_parallel_size": ...})
    config = check_config(raw, "")
    (case,) = make_plan(config, 4).cases
    work = training_of(case)
    assert (work.model, work.strategy) == (f"transformer-{size}", strategy)
    assert case.skip is None or "mps" in case.skip or "hardware.memory_per_device_gb" in case.skip


def test_extents_that_are_not_the_models_own_are_given() -> None:
    given = {"size": "small", "layers": 6, "hidden_size": 512, "attention_heads": 8,
             "intermediate_size": 1024, "vocab_size": 1000, "kv_heads": 4}
    block = block_of(model=given)
    assert {name: block.get(name) for name in (
        "layers", "hidden", "heads", "inner", "vocab", "kv_heads")} == {
        "layers": 6, "hidden": 512, "heads": 8, "inner": 1024, "vocab": 1000, "kv_heads": 4}
    assert not {"layers", "hidden", "heads"} & block_of(model={"attention_heads": 16}).keys()


@pytest.mark.parametrize(("parameters", "noted"), [
    (1_300_000_000, False), (1_250_000_000, False), (1_000_000_000, True), (1_400_000_000, True)])
def test_parameters_are_compared_with_those_of_the_extents(parameters: int, noted: bool) -> None:
    notes = translated(model={"parameters": parameters})["notes"]
    assert any(f"model.parameters {parameters:,}: a large transformer of these extents has "
               "1,312,577,536" in note for note in notes) == noted


@given(layers=st.integers(1, 50), head=st.integers(1, 128), groups=st.integers(1, 8),
       kv_heads=st.integers(1, 8), inner=st.integers(1, 9000), seq=st.integers(1, 3000))
def test_parameters_are_those_of_the_model_that_is_trained(
    layers: int, head: int, groups: int, kv_heads: int, inner: int, seq: int,
) -> None:
    heads = groups * kv_heads
    shape = replace(MODELS["transformer-small"], layers=layers, hidden=head * heads, heads=heads,
                    kv_heads=kv_heads, inner=inner, seq_length=seq)
    assert candle_translated.parameters(shape) == parameters(shape)


@pytest.mark.parametrize(("capability", "mixed", "dtype"), [
    ("7.0", True, "fp16"), ("8.0", True, "bf16"), ("M4", True, "bf16"), (..., True, "bf16"),
    ("7.0", False, "fp32")])
def test_mixed_precision_is_what_the_device_has(capability: Any, mixed: bool, dtype: str) -> None:
    assert block_of(hardware={"compute_capability": capability},
                    training={"mixed_precision": mixed})["dtype"] == dtype


@pytest.mark.parametrize("key", ["measurement_iterations", "iterations", "iters", "max_steps"])
def test_iterations_have_several_spellings(key: str) -> None:
    assert translated(benchmark={key: 30, "warmup": 3})["measure"] == {
        "warmup": 3, "iterations": 30}


def test_keys_of_command_lines_may_stand_in_section_benchmark() -> None:
    block = block_of(benchmark={"batch_size": 8, "seq_length": 256, "lora_rank": 4},
                     parallelization=ALONE | {"data_parallel_size": 2})
    assert (block["batch_size"], block["seq_length"], block["strategies"]) == (
        4, 256, {"lora": {"rank": 4, "over": "data"}})


def test_sections_without_a_meaning_here_are_notes() -> None:
    notes = translated(optimization={"optimizer": "adamw"}, monitoring={"log_interval": 10},
                       parallelization={"gradient_sync_freq": 4})["notes"]
    assert [note for note in notes if note.startswith(("opti", "moni", "parallelization"))] == [
        "parallelization.gradient_sync_freq 4: not used; gradients are exchanged in every step",
        "optimization: not used; docs/training.md has what a block can say",
        "monitoring: not used; docs/training.md has what a block can say"]


def test_the_command_line_wins_over_the_translated_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, [("model", ["gpt2"]), ("strategy", ["fsdp"]),
                               ("measure.iterations", 3)])
    (case,) = make_plan(config, 4).cases
    assert (training_of(case).model, training_of(case).strategy, case.iterations) == (
        "gpt2", "fsdp", 3)


@pytest.mark.parametrize(("sections", "message"), [
    ({"hardware": {"devices": 4}}, "candle.json: hardware.devices: unknown key of a file of the "
                                   'Candle suite; did you mean "num_devices"? allowed: '),
    ({"model": {"hidden": 3}}, "model.hidden: unknown key of a file of the Candle suite; did you "
                               'mean "hidden_size"?'),
    ({"benchmark": {"warmup_iteration": 3}}, 'did you mean "warmup_iterations"?'),
    ({"paralelization": {}}, 'did you mean "parallelization"?'),
    ({"hardware": {"device_type": "gpu"}}, 'hardware.device_type: "gpu" is not known; '),
    ({"hardware": {"interconnect": "nvlnk"}}, 'did you mean "nvlink"?'),
    ({"hardware": {"num_devices": 0}}, "hardware.num_devices: must be at least 1, not 0"),
    ({"hardware": {"network_bandwidth_gbps": -1}}, "must be greater than 0, not -1"),
    ({"hardware": {"memory_per_device_gb": "16"}}, 'must be a number, not "16"'),
    ({"hardware": ...}, "hardware: the key is missing; it holds the machine"),
    ({"model": ...}, "model: the key is missing"),
    ({"model": {"model_type": "cnn"}}, 'model_type: "cnn" is not known; allowed: transformer'),
    ({"model": {"size": "huge"}}, 'model.size: "huge" is not known; '),
    ({"model": {"layers": 0}}, "model.layers: must be at least 1, not 0"),
    ({"model": {"heads": 4, "attention_heads": 4}},
     "model: attention_heads and heads mean the same; keep one of them"),
    ({"model": "transformer"}, "model: must be a mapping of keys"),
    ({"parallelization": {"strategy": "hybird"}}, 'did you mean "hybrid"?'),
    ({"parallelization": {"data_parallel_size": 0}}, "data_parallel_size: must be at least 1"),
    ({"parallelization": {"strategy": "data"}}, "parallelization: strategy data divides no "
     "model, but 2 devices share one; write model_parallel_size 1, or strategy hybrid"),
    ({"parallelization": {"strategy": "model"}}, "parallelization: strategy model has one "
     "replica, not 2; write data_parallel_size 1, or strategy hybrid"),
    ({"parallelization": {"pipeline_parallel_size": 2}}, "both divide the layers; write 1 for"),
    ({"training": {"batch_size": 3}}, "candle.json: batch_size 3 cannot be divided evenly among "
                                      "parallelization.data_parallel_size 2; write a multiple"),
    ({"training": {"batch_size": 4}, "parallelization": {"data_parallel_size": ...}},
     "batch_size 4 is of all replicas together: give parallelization.data_parallel_size, too"),
    ({"training": {"batch_size": 4}, "benchmark": {"batch_size": 8}},
     "training.batch_size 4 and benchmark.batch_size 8 contradict each other; keep one"),
    ({"benchmark": {"iterations": 4, "max_steps": 8}}, "benchmark: iterations and max_steps mean "),
    ({"benchmark": {"lora_rank": 8}}, "benchmark.lora_rank: adapters are trained by replicas of "
                                      "the whole model; write strategy data, not hybrid"),
    ({"benchmark": {"lora_rank": 0}}, "benchmark.lora_rank: must be at least 1, not 0"),
    ({"benchmark": []}, "benchmark: must be a mapping of keys, not []"),
    ({"benchmarks": []}, "has keys of the Candle suite (parallelization, model) and of hpcbench"),
    ({"benchmark": {"primitive": "tp_columnwise"}}, "has keys of DDLB (benchmark) and of the Cand"),
])
def test_one_line_states_where_what_and_how(
    tmp_path: Path, sections: dict[str, Any], message: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, **sections)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
