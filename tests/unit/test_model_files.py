"""Models of Hugging Face's config.json, and the commands ``model`` and ``mfu``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bad_input_process import hpcbench
from hpcbench.config.load import check_config, load_config
from hpcbench.errors import ConfigError, UsageError
from hpcbench.kinds.training.plan.any_model import flops_of
from hpcbench.kinds.training.plan.model_file import _READERS, shape_in, whole_shape
from hpcbench.kinds.training.plan.models import (
    active_parameters,
    parameters,
    shape_of,
)
from hpcbench.kinds.training.plan.planner import TrainingPlanner
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.operations.models import HUB, MODELS
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.units import parse_flop_per_s
from launcher import ROOT

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests/data/models.json").read_text())["models"]
"""Fields of the published files, and how many parameters there are."""


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_has_its_parameters_to_the_digit(name: str, tmp_path: Path) -> None:
    facts = PUBLISHED[name]
    shape = shape_in(written(tmp_path, facts["config"]))
    assert parameters(shape) == facts["parameters"]
    assert facts.get("published_bytes", 2 * parameters(shape)) == 2 * parameters(shape)
    assert (active_parameters(shape) < parameters(shape)) == (shape.experts is not None)
    if name in HUB:
        extended = {"seq_length": shape.seq_length, "rotary_scaling": shape.rotary_scaling,
                    "unlike": shape.unlike, "window": shape.window}  # made longer in the end
        assert replace(MODELS[HUB[name]], **extended) == shape


def test_the_published_files_are_of_every_sort() -> None:
    shapes = [whole_shape(HUB[name]) for name in PUBLISHED if name in HUB]
    assert len(PUBLISHED) >= 20
    assert {shape.tied for shape in shapes} == {shape.qk_norm for shape in shapes} == {True, False}
    assert any(shape.latent and shape.experts for shape in shapes)
    kinds = {facts["config"]["model_type"] for facts in PUBLISHED.values()}
    assert kinds >= {"llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3", "gpt_neox",
                     "mpt", "gpt2", "bert", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"}


@pytest.mark.parametrize(("name", "active"), [  # as their papers round them
    ("mixtral-8x7b", 12.9), ("deepseek-v2-lite", 2.7), ("deepseek-v3", 37.6)])
def test_parameters_that_a_token_meets(name: str, active: float) -> None:
    assert round(active_parameters(MODELS[name]) / 1e9, 1) == active
    tokens = MODELS[name].seq_length
    assert dict(flops_of(MODELS[name], 1))["6n"] == 6 * tokens * active_parameters(MODELS[name])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([0, 1, -1, 2**31, 10**400, 1e300, "yarn", "llama3", "gelu", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                max_size=3), max_leaves=5)


def is_answered(path: Path) -> None:
    """Require a shape that can be counted, or an error of one line."""
    try:
        shape = shape_in(path)
    except UsageError as error:
        assert len(str(error).splitlines()) == 1, str(error)
        return
    assert active_parameters(shape) <= parameters(shape)
    assert all(count > 0 for _, count in flops_of(shape, 1))


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(PUBLISHED)), st.data())
def test_a_changed_file_is_a_shape_or_one_line(
    tmp_path: Path, name: str, data: st.DataObject,
) -> None:
    config = dict(PUBLISHED[name]["config"])
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*sorted(config), "rope_parameters", "head_dim"]))
        if data.draw(st.booleans()):
            config[key] = data.draw(VALUES)
        else:
            config.pop(key, None)
    is_answered(written(tmp_path, config))


@settings(max_examples=100, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b"1" * 10_000) | st.just(
    b" " * 2**21))
def test_any_bytes_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    is_answered(tmp_path / "config.json")


@pytest.mark.parametrize(("changes", "field"), [
    ({"model_type": "mamba"}, "model_type"), ({"num_hidden_layers": None}, "num_hidden_layers"),
    ({"num_hidden_layers": 4.5}, "num_hidden_layers"), ({"hidden_size": True}, "hidden_size"),
    ({"attention_bias": True}, "attention_bias"), ({"rope_scaling": 4}, "rope_scaling"),
    ({"num_key_value_heads": 5}, "key-value heads"), ({"head_dim": 3}, "pairs"),
    ({"vocab_size": 10**30}, "vocab_size"), ({"rms_norm_eps": -1}, "rms_norm_eps"),
    ({"architectures": ["Qwen3ForSequenceClassification"]}, "architectures"),
    ({"architectures": ["Qwen3ForCausalLM", "Qwen3ForTokenClassification"]}, "architectures"),
    ({"architectures": "Qwen3Model"}, "architectures"), ({"architectures": [3]}, "architectures"),
    ({"architectures": False}, "architectures"),
    ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 64}}, "factor"),
    ({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}}, "rope_theta")])
def test_the_field_that_is_wrong_is_named(
    changes: dict[str, Any], field: str, tmp_path: Path,
) -> None:
    path = written(tmp_path, {**PUBLISHED["Qwen/Qwen3-0.6B"]["config"], **changes})
    with pytest.raises(ConfigError, match=field):
        shape_in(path)
    done = hpcbench("model", str(path))
    assert done.returncode == 2
    assert field in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("changes", "word"), [
    ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False}}, "truncate"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": None}}, "truncate null"),
    ({"hidden_act": "relu2"}, "relu2"), ({"partial_rotary_factor": 0.5}, "partial_rotary_factor")])
def test_what_no_block_has_is_counted_but_not_trained(
    changes: dict[str, Any], word: str, tmp_path: Path,
) -> None:
    name = "Qwen/Qwen3-0.6B"
    path = written(tmp_path, {**PUBLISHED[name]["config"], **changes})
    assert parameters(shape_in(path)) == PUBLISHED[name]["parameters"]
    (case,) = cases({"model": str(path)})
    assert case.skip is not None and word in case.skip


@pytest.mark.parametrize(("kind", "field", "value"), [
    ("bert", "tie_word_embeddings", False), ("bert", "add_cross_attention", True),
    ("phi", "tie_word_embeddings", True), ("gpt_neox", "attention_bias", False)])
def test_a_field_that_gives_other_parameters_is_refused(
    kind: str, field: str, value: bool, tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=field):
        shape_in(written(tmp_path, EXTENTS | {"model_type": kind, field: value}))


def test_a_factor_of_null_is_the_ratio_of_positions(tmp_path: Path) -> None:
    first = {"type": "yarn", "original_max_position_embeddings": 2048}
    one, other = (shape_in(written(tmp_path, EXTENTS | {
        "model_type": "llama", "rope_scaling": first | {"factor": factor}}))
        for factor in (None, 4))
    assert one == other


def test_yarn_in_a_file_of_phi3_is_longrope(tmp_path: Path) -> None:
    assert shape_in(written(tmp_path, EXTENTS | {"model_type": "phi3", "rope_scaling": {
        "type": "yarn", "short_factor": [1.0], "long_factor": [2.0]}})).unlike == (
            'rope_type "longrope"')


EXTENTS: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 32, "vocab_size": 60000,
    "intermediate_size": 512, "max_position_embeddings": 8192}
OLD_EXTENTS = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 512, "vocab_size": 60000}
OF_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
              "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
LEAST: dict[str, dict[str, Any]] = {
    "gpt2": OLD_EXTENTS, "mixtral": EXTENTS | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "mpt": {"n_layers": 4, "d_model": 256, "n_heads": 4, "max_seq_len": 512, "vocab_size": 60000},
    "qwen3_moe": EXTENTS | OF_EXPERTS | {"num_experts": 8},
    "deepseek_v2": EXTENTS | OF_EXPERTS, "deepseek_v3": EXTENTS | OF_EXPERTS}
"""Fields that a file must have."""


@pytest.mark.parametrize("kind", _READERS)
def test_a_field_that_is_missing_is_what_transformers_takes(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    least = LEAST.get(kind, EXTENTS)
    config = transformers.CONFIG_MAPPING[kind](**least)
    written(tmp_path, {"model_type": kind} | least)
    shape = shape_in(tmp_path / "config.json")
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    assert shape_in(written(tmp_path, whole)) == shape
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert parameters(shape) == sum(one.numel() for one in model.parameters())


def test_a_window_that_is_shorter_than_a_sample_is_a_skip(tmp_path: Path) -> None:
    path = str(written(tmp_path, EXTENTS | {
        "model_type": "mistral", "sliding_window": 128, "num_key_value_heads": None}))
    fits, too_long = (cases({"model": path, "seq_length": length})[0] for length in (128, 129))
    assert fits.skip is None and training_of(fits).kv_heads == 32
    assert too_long.skip is not None and "seq_length=128 or less" in too_long.skip


def cases(block: dict[str, Any], ranks: int = 2) -> tuple[Case, ...]:
    whole = {"kind": "training", "strategies": "data", "batch_size": 2, **block}
    return make_plan(check_config({"benchmarks": [whole]}, "test"), ranks).cases


def test_a_file_is_found_beside_the_sweep_and_is_what_the_workers_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine").mkdir()
    path = written(tmp_path / "mine", PUBLISHED["Qwen/Qwen3-0.6B"]["config"])
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"benchmarks": [{
        "kind": "training", "model": ["mine/config.json", "Qwen/Qwen3-0.6B"], "layers": 2,
        "seq_length": 64, "strategies": "data"}]}))
    monkeypatch.chdir("/")
    of_file, of_name = sorted(make_plan(load_config(sweep), 2).cases, key=lambda case: case.index)
    work, named = training_of(of_file), training_of(of_name)
    assert (work.model, named.model) == ("mine/config.json", "qwen3-0.6b")
    assert shape_of(work) == shape_of(named) == replace(
        shape_in(path), layers=2, seq_length=64)
    assert (work.parameters, work.flops) == (named.parameters, named.flops)
    assert of_file.memory_bytes == of_name.memory_bytes > 0
    assert of_file.case_id != of_name.case_id
    path.unlink()  # the plan has it all, and so have results
    again = TrainingPlanner().workload_from_json(json.loads(json.dumps(work.to_json())))
    assert again == work


@pytest.mark.parametrize(("name", "hint"), [
    ("meta-llama/llama-3.1-8b", "meta-llama/Llama-3.1-8B"), ("Llama-2-7b-hf",
                                                            "meta-llama/Llama-2-7b-hf"),
    ("llama-3-8b", "llama3-8b"), ("meta-llama/Llama-3.1-9B", "meta-llama/Llama-3.1-8B"),
    ("openai-community/gpt2x", "openai-community/gpt2")])
def test_a_near_name_is_hinted(name: str, hint: str) -> None:
    done = hpcbench("model", name)
    assert done.returncode == 2
    assert f'did you mean "{hint}"?' in done.stderr


@pytest.mark.parametrize(("flag", "value", "told"), [
    ("--strategy", "ddp", ' "ddp" is not known; did you mean "data"?'),
    ("--dtype", "int8", ' "int8" is not known'), ("--memory", "0", "")])
def test_what_is_wrong_is_told_by_its_flag(flag: str, value: str, told: str) -> None:
    done = hpcbench("model", "gpt2", flag, value)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hpcbench: {flag}:{told}")


@pytest.mark.parametrize("name", HUB)
def test_names_of_the_hub_are_of_shipped_shapes(name: str) -> None:
    assert HUB[name] in MODELS


def asked(*words: str) -> dict[str, Any]:
    done = hpcbench(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_model_is_described_as_it_is_planned() -> None:
    found = asked("model", "meta-llama/Llama-3.1-8B", "--devices", "64", "--memory", "80GB")
    assert found["parameters"] == found["active_parameters"] == 8_030_261_248
    by_name = {row["definition"]: row for row in found["flops"]}
    assert by_name["6n"]["own"] == by_name["6n"]["full"] == 6 * 8_030_261_248
    weights = 8_030_261_248 - 128256 * 4096 - 65 * 4096  # no lookups, no norms
    assert by_name["megatron"]["full"] == by_name["counted"]["own"] == (
        6 * weights + 12 * 32 * 4096 * 8192)
    assert by_name["megatron"]["own"] == by_name["counted"]["causal"] == (
        6 * weights + 6 * 32 * 4096 * 8192)
    strategies = {row["strategy"]: row for row in found["strategies"]}
    (planned,) = cases({"model": "llama3-8b", "dtype": "bf16", "strategies": "fsdp",
                        "batch_size": 1}, 64)
    assert strategies["fsdp"] == {"strategy": "fsdp", "runs": True, "reason": None,
                                  "memory_bytes": planned.memory_bytes}
    assert not strategies["data"]["runs"]
    assert strategies["data"]["memory_bytes"] > 80e9


def test_what_a_prediction_cannot_tell_may_fit() -> None:
    """A plan skips what needs a tenth more than there is."""
    needed = asked("model", "gpt2", "--strategy", "data")["strategies"][0]["memory_bytes"]
    for share, fits in ((1.01, "yes"), (0.95, "perhaps"), (0.8, "no")):
        done = hpcbench("model", "gpt2", "--strategy", "data", "--memory", str(int(needed * share)))
        assert f" {fits} " in f"{done.stdout.splitlines()[-1]} "


def test_a_model_of_experts_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path, PUBLISHED["deepseek-ai/DeepSeek-V3"]["config"])
    for name in (str(path), "deepseek-ai/DeepSeek-V3"):
        found = asked("model", name, "--devices", "8", "--seq-length", "4096")
        assert found["parameters"] == 671_026_404_352
        assert found["active_parameters"] == 37_552_282_624
        assert [row["strategy"] for row in found["strategies"] if row["runs"]] == ["moe"]


def test_the_mfu_of_one_throughput_by_every_definition() -> None:
    """6,667 tokens/s on an H100: 32.5 to 41.2 %, as their authors' formulas give it."""
    found = asked("mfu", "--model", "llama3-8b", "--tokens-per-s", str(8 * 6667), "--devices", "8",
                  "--peak", "989T")
    shares = {row["definition"]: round(100 * row["own"], 1) for row in found["mfu"]}
    assert shares == {"6n": 32.5, "palm": 41.2, "torchtitan": 39.0, "megatron": 34.7,
                      "counted": 39.0}
    half = asked("mfu", "--model", "llama3-8b", "--tokens-per-s", "6667", "--devices", "2",
                 "--peak", "989e12")
    assert [2 * row["own"] for row in half["mfu"]] == [row["own"] for row in found["mfu"]]
    assert hpcbench("mfu", "--model", "llama3-8b", "--tokens-per-s", "1e6", "--peak",
                    "989T").stdout.count("above 100 %") == 1


@pytest.mark.parametrize("words", [
    ("mfu", "--model", "gpt2", "--tokens-per-s", "nan", "--peak", "1T"),
    ("mfu", "--model", "gpt2", "--tokens-per-s", "-3", "--peak", "1T"),
    ("mfu", "--model", "gpt2", "--tokens-per-s", "1", "--peak", "fast"),
    ("mfu", "--model", "resnet50", "--tokens-per-s", "1", "--peak", "1T"),
    ("mfu", "--model", "gpt2", "--tokens-per-s", "1"),
    ("model", "gpt2", "--memory", "80 apples"), ("model", "gpt2", "--strategy", "fsdpp"),
    ("model", "resnet50", "--seq-length", "5"), ("model", "nowhere/config.json"),
    ("model", "/proc/self/mem.json"), ("model", "a\x00.json"), ("model", "gpt2", "--dtype", "int"),
    ("mfu", "--model", "gpt2", "--tokens-per-s", "5000", "--peak", "989")])
def test_what_is_wrong_is_one_line_and_exit_code_2(words: tuple[str, ...]) -> None:
    done = hpcbench(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "rate"), [
    ("989T", 989e12), ("989 TFLOP/s", 989e12), ("1.5P", 1.5e15), ("312e12", 312e12),
    ("20GFLOPS", 20e9)])
def test_rates_of_flops_are_read(text: str, rate: float) -> None:
    assert parse_flop_per_s(text) == pytest.approx(rate, rel=1e-15)


@given(st.text(max_size=20))
def test_any_text_is_a_rate_or_an_error(text: str) -> None:
    try:
        assert 1e9 <= parse_flop_per_s(text) < 1e30
    except ValueError as error:
        assert len(str(error).splitlines()) == 1


