"""Sweeps of Candle, DDLB and TorchScale run as they are; each is one that its users have."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.load import check_config, load_config
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.interop.dialects import candle as candle_translated
from hpcbench.interop.dialects.candle import CandleFile
from hpcbench.interop.dialects.torchscale import TorchScaleFile
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.kinds.training.plan.models import parameters
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.operations.models import MODELS
from hpcbench.plan.case import Plan
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


DDLB = Path(__file__).parents[1] / "data/ddlb.json"
SMALL: dict[str, Any] = {
    "primitive": "tp_columnwise", "m": 64, "n": 32, "k": 16, "dtype": "float32",
    "implementations": {"pytorch": [{}]}}


def plan_of(
    folder: Path, overrides: list[tuple[str, object]] | None = None, /, **keys: Any,
) -> Plan:
    return make_plan(load_config(written(folder, **keys), overrides or []), 4)


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "ddlb.json"
    path.write_text(json.dumps({"benchmark": SMALL | keys}))
    return path


def refusal(folder: Path, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(folder, **keys)
    return str(caught.value)


def test_the_golden_file_is_every_combination_on_its_backends() -> None:
    plan = make_plan(load_config(DDLB), 4)
    found = {(primitive_of(c).implementation, primitive_of(c).order, c.backend) for c in plan.cases}
    assert found == {("compute_only", "AG_after", "nccl")} | {
        ("torch", order, backend) for order in ("AG_before", "AG_after")
        for backend in ("nccl", "ucc/tl/nccl", "ucc/tl/cuda")}
    assert len(plan.cases) == 7 and plan.duplicates == 0
    assert {(work.m, work.n, work.k, work.dtype) for work in map(primitive_of, plan.cases)} \
        == {(65536, 1024, 1024, "fp32")}
    assert {primitive_of(c).option("weight") for c in plan.cases} == {"replicated"}
    assert {(c.mode, c.warmup, c.iterations, c.is_fixed, c.validate) for c in plan.cases} == {
        ("barrier_start", 5, 50, True, True)}
    assert plan.name == "ddlb" and plan.passes == 3 and plan.config["notes"] == []
    assert all(c.skip is None and c.needs for c in plan.cases)


def test_flops_are_those_that_ddlb_computes() -> None:
    """Each rank of AG_before computes all of C; of AG_after its rows; unsharded: all of C."""
    plan = make_plan(load_config(DDLB), 4)
    whole = 2 * 65536 * 1024 * 1024
    by_order = {primitive_of(c).order: primitive_of(c).flops for c in plan.cases
                if primitive_of(c).implementation == "torch"}
    assert by_order == {"AG_before": whole, "AG_after": whole // 4}
    assert [primitive_of(c).flops for c in plan.cases
            if primitive_of(c).implementation == "compute_only"] == [whole]


def test_compute_only_sharded_is_the_rows_of_a_rank_times_the_whole_weight(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, implementations={"compute_only": [{"size": ["sharded", "unsharded"]}]})
    assert [(primitive_of(c).order, primitive_of(c).flops) for c in plan.cases] == [
        ("AG_after", 2 * 16 * 32 * 16), ("AG_after", 2 * 64 * 32 * 16)]


def test_the_command_line_wins_over_ddlb_s(tmp_path: Path) -> None:
    overrides: list[tuple[str, object]] = [
        ("measure.warmup", 1), ("measure.iterations", 3), ("measure.mode", "isolated"),
        ("measure.passes", 1), ("benchmark", "primitive"), ("benchmarks.0.m", [32, 64]),
        ("benchmarks.0.implementations.pytorch.0.backend", "gloo")]
    plan = plan_of(tmp_path, overrides)
    assert [(primitive_of(c).m, c.backend, c.warmup, c.iterations, c.mode) for c in plan.cases] == [
        (32, "gloo", 1, 3, "isolated"), (64, "gloo", 1, 3, "isolated")]
    assert plan.passes == 1


def test_what_is_done_otherwise_is_a_note_that_the_plan_prints(tmp_path: Path) -> None:
    path = written(tmp_path, output_csv="out_{timestamp}.csv", barrier_at_each_iteration=False,
                   time_measurement_backend="cuda_event")
    told = CliRunner().invoke(app, ["plan", "-c", str(path), "--benchmark", "primitive"]).output
    assert "note: output_csv out_{timestamp}.csv: not written" in told
    assert "note: time_measurement_backend cuda_event: no choice here" in told
    assert "note: barrier_at_each_iteration false: a sample is num_iterations = 50 calls" in told


@pytest.mark.parametrize(("warmups", "samples"), [(0, 0), (5, 1), (20, 1), (21, 2)])
def test_without_barriers_a_sample_is_all_iterations(
    tmp_path: Path, warmups: int, samples: int,
) -> None:
    plan = plan_of(tmp_path, num_iterations=20, num_warmups=warmups, validate=False,
                   barrier_at_each_iteration=False)
    (case,) = plan.cases
    assert (case.mode, case.batch, case.warmup) == ("pipelined", 20, samples)
    assert not case.is_fixed and not case.validate


def test_implementations_that_only_plug_ins_have_are_skips(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, implementations={
        "fuser": [{"algorithm": ["default"], "backend": ["nccl", "cuda"]},
                  {"algorithm": ["coll_pipeline"], "s": [2, 8], "backend": ["ucc/tl/nccl"]}],
        "transformer_engine": [{}], "jax": [{}]})
    assert [(primitive_of(c).implementation, c.backend,
             dict(primitive_of(c).options).get("communicator")) for c in plan.cases] == [
        ("fuser", "nccl", "group"), ("fuser", "nccl", "cuda"),
        ("transformer_engine", "nccl", None), ("jax", "nccl", None),
        ("fuser", "ucc/tl/nccl", "group"), ("fuser", "ucc/tl/nccl", "group")]
    packages = ["nvfuser", "nvfuser", "transformer-engine", "jax", "nvfuser", "nvfuser"]
    for case, package in zip(plan.cases, packages, strict=True):
        assert case.skip and f"pip install ./plugins/hpcbench-{package} in a" in case.skip


def test_implementations_of_ours_can_be_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, primitive="tp_rowwise", m=[64, 128], implementations={
        "pytorch": [{"backend": "nccl"}], "chunked_pipeline": [{"chunks": [2, 4]}]})
    assert len(plan.cases) == 6 and {primitive_of(c).order for c in plan.cases} == {"RS_after"}


@pytest.mark.parametrize(("keys", "message"), [
    ({"implementations": {"pytorch": [{"oder": "AG_before"}]}},
     'implementations.pytorch: "oder" is not known; did you mean "order"?'),
    ({"implementations": {"pytorch": [{"order": "AG_befor"}]}}, 'did you mean "AG_before"?'),
    ({"implementations": {"pytorch": [{"backend": "cuda"}]}}, 'backend: "cuda" is not known'),
    ({"implementations": {"fuser": [{"algorithm": "ring"}]}}, 'algorithm: "ring" is not known'),
    ({"implementations": {"fuser": [{"s": 0}]}}, "fuser.s: 0 must be a whole number from 1"),
    ({"implementations": {"compute_only": [{"size": "half"}]}}, 'size: "half" is not known'),
    ({"implementations": {"torchrun": [{}]}}, '"torchrun" is not known; did you mean "torch"?'),
    ({"primitive": "tp_rowwise", "implementations": {"pytorch": [{"order": "AG_before"}]}},
     '"AG_before" is not known'),
    ({"primitive": "sp_tp_rowwise"}, 'did you mean "tp_rowwise"?'),
    ({"m": [64, 0]}, "ddlb.json: benchmark.m[1]: must be at least 1, not 0"),
    ({"num_iteration": 3}, "ddlb.json: benchmark.num_iteration: unknown key of a file of DDLB; did "
                           'you mean "num_iterations"?'),
    ({"num_iterations": 0}, "benchmark.num_iterations: must be at least 1, not 0"),
    ({"dtype": "float8"}, "benchmark.dtype: "),
    ({"time_measurement_backend": "tsc"}, "allowed: cpu_clock, cuda_event"),
    ({"validate": "yes"}, 'benchmark.validate: must be true or false, not "yes"'),
])
def test_one_error_states_where_what_and_how(
    tmp_path: Path, keys: dict[str, Any], message: str,
) -> None:
    assert message in refusal(tmp_path, **keys)


@pytest.mark.parametrize(("raw", "message"), [
    ({"benchmark": {}}, "benchmark.primitive: the key is missing"),
    ({"benchmark": SMALL, "measure": {}}, "measure: unknown key of a file of DDLB; allowed: benc"),
    ({"benchmark": "primitive"}, "benchmarks: the key is missing; it holds the sweeps, in order"),
])
def test_a_file_that_is_not_whole(tmp_path: Path, raw: dict[str, Any], message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)


TORCHSCALE = Path(__file__).parents[1] / "data/torchscale.yaml"
TINY: dict[str, Any] = {"experiment_name": "tiny", "models": ["transformer-tiny"],
                         "batch_sizes": [4], "gpu_counts": [1, 2]}


def written_yaml(folder: Path, **keys: Any) -> Path:
    path = folder / "torchscale.json"
    path.write_text(json.dumps({name: value for name, value in (TINY | keys).items()
                                if value is not ...}))
    return path


def loaded_yaml(folder: Path, overrides: list[tuple[str, object]] | None = None, /, **keys: Any
           ) -> Config:
    return load_config(written_yaml(folder, **keys), overrides or [])


def test_the_golden_file_is_every_combination() -> None:
    plan = make_plan(load_config(TORCHSCALE), 8)
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
    config = load_config(TORCHSCALE)
    assert (config.name, config.profiling.enabled, config.profiling.tool, config.profiling.trigger
            ) == ("resnet50_scaling_test", True, "nsys", "sync_stalls")
    assert len(config.notes) == 1  # its words are in the golden plans


def test_more_gpus_than_ranks_are_skips_with_the_reason() -> None:
    plan = make_plan(load_config(TORCHSCALE), 2)
    assert {c.skip for c in plan.cases if c.world_size > 2} == {
        f"world_size {ranks} is more than the job's 2 ranks" for ranks in (4, 8)}


@pytest.mark.parametrize(("counts", "blocks"), [
    (1, [("one_gpu", (1,))]), ([4, 2], [("several_gpus", (4, 2))]),
    ([8, 1], [("one_gpu", (1,)), ("several_gpus", (8,))])])
def test_one_gpu_trains_alone_and_several_exchange_gradients(
    tmp_path: Path, counts: Any, blocks: list[Any],
) -> None:
    config = loaded_yaml(tmp_path, gpu_counts=counts)
    assert [(block.name, block.world_size) for block in config.benchmarks] == blocks


@pytest.mark.parametrize(("given", "expected"), [
    (..., (False, "torch", "always")), ({}, (False, "nsys", "sync_stalls")),
    ({"enabled": False, "tool": "nsys"}, (False, "nsys", "sync_stalls")),
    ({"enabled": True, "tool": "pytorch", "trigger": "always"}, (True, "torch", "always"))])
def test_profiling_is_ours_with_the_defaults_of_torchscale(
    tmp_path: Path, given: Any, expected: tuple[bool, str, str],
) -> None:
    section = loaded_yaml(tmp_path, profiling=given).profiling
    assert (section.enabled, section.tool, section.trigger) == expected


@pytest.mark.parametrize(("experiment", "name", "noted"), [
    ("resnet50 scaling / v2", "resnet50_scaling_v2", True), ("__..", "torchscale", True),
    ("a" * 80, "a" * 64, True), ("v1.0-x_y", "v1.0-x_y", False),
    (..., "unnamed_experiment", False)])
def test_a_name_that_is_no_folder_is_made_to_fit(
    tmp_path: Path, experiment: Any, name: str, noted: bool,
) -> None:
    config = loaded_yaml(tmp_path, experiment_name=experiment)
    assert config.name == name
    assert any(f"the results folder is named {name}" in note for note in config.notes) == noted


@given(st.text(min_size=1, max_size=300).filter(lambda name: "\0" not in name))
def test_every_name_becomes_a_valid_sweep(name: str) -> None:
    file = TorchScaleFile.model_validate({
        "experiment_name": name, "models": "gpt2", "batch_sizes": 1, "gpu_counts": 1})
    check_config(file.translated(), "")


def test_the_command_line_wins_over_torchscale_s(tmp_path: Path) -> None:
    overrides: list[tuple[str, object]] = [
        ("model", ["gpt2"]), ("strategy", ["fsdp"]), ("measure.iterations", 3),
        ("benchmarks.1.backend", "gloo")]
    cases = make_plan(loaded_yaml(tmp_path, overrides, gpu_counts=[1, 2]), 2).cases
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
def test_one_line_states_what_torchscale_s_file_lacks(
    tmp_path: Path, keys: dict[str, Any], message: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(loaded_yaml(tmp_path, **keys), 4)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slip_in_our_own_files_is_no_file_of_torchscale(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"models": "gpt2", "benchmarks": []}))
    with pytest.raises(ConfigError, match='models: unknown key; did you mean "model"?'):
        load_config(path)
