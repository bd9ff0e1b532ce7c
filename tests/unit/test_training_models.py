"""Models, shares of samples and the estimate of a training."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.config.load import check_config
from hpcbench.kinds.training.block import CHECKPOINTINGS
from hpcbench.kinds.training.plan.extents import with_extents
from hpcbench.kinds.training.plan.memory import rank_parameters
from hpcbench.kinds.training.plan.models import (
    DEFINITIONS,
    flops,
    is_recomputed,
    parameters,
    recomputed,
)
from hpcbench.kinds.training.plan.predict import crossing_bytes, predict
from hpcbench.kinds.training.plan.step import (
    Stage,
    divide,
    most_share,
    stages_of,
    uneven_shares,
)
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.operations.models import MODELS, ModelShape
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import LAUNCH_S, plan_estimate_s, setup_s
from hpcbench.report.plan_lines import case_tables, plan_document, plan_header
from training_cases import make_training

H100 = 989e12
"""Dense bf16 FLOP/s of an H100 SXM, as those who published the figures below took it."""


@pytest.mark.parametrize(("name", "count"), [
    ("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200), ("mistral-7b", 7_241_732_096), ("llama3-8b", 8_030_261_248),
    ("llama3-70b", 70_553_706_496), ("transformer-small", 124_439_808),
    ("transformer-medium", 354_823_168), ("transformer-large", 1_313_626_112),
    # bert-large-uncased as released has 336,226,108: with the pooler, and the head that tells
    # whether one sentence follows the other.
    ("bert-large", 336_226_108 - (1024 * 1024 + 1024) - (2 * 1024 + 2))])
def test_parameters_are_as_published(name: str, count: int) -> None:
    assert parameters(MODELS[name]) == count


def test_every_model_is_sound() -> None:
    for name, shape in MODELS.items():
        assert shape.family in {"gpt", "llama", "bert"}
        assert shape.head_extent or shape.heads * shape.head_dim == shape.hidden
        assert shape.heads % shape.kv_heads == 0
        assert with_extents(name) == shape


@settings(deadline=None)  # of a busy machine
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 5))
def test_stages_have_the_parameters_of_the_model_and_a_copy_of_a_tied_one(
    name: str, blocks: int,
) -> None:
    shape = MODELS[name]
    blocks = min(blocks, shape.layers)
    stages = (Stage(blocks=tuple(range(blocks)), last=False, alone=True),
              Stage(blocks=tuple(range(blocks, shape.layers)), first=False, alone=True))
    elements = sum(item.elements for stage in stages for item in stage.tensors(shape))
    assert elements == parameters(shape) + shape.tied * shape.vocab * shape.hidden


def test_a_model_is_shrunk_in_proportion() -> None:
    small = with_extents("llama3-8b", layers=2, hidden=512, seq_length=64, vocab=1000)
    assert small == ModelShape("llama", 2, 512, 32, 8, 1792, 1000, 64, 500000.0)


@settings(deadline=None)  # of a busy machine
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 200), st.integers(1, 20_000))
def test_what_has_another_width_is_a_model_or_states_why_not(
    name: str, layers: int, hidden: int,
) -> None:
    whole = MODELS[name]
    found = with_extents(name, layers=layers, hidden=hidden)
    if isinstance(found, str):
        assert hidden % whole.heads or hidden // whole.heads % 2 or (
            whole.inner * hidden % whole.hidden)
        return
    assert (found.heads, found.kv_heads, found.vocab) == (whole.heads, whole.kv_heads, whole.vocab)
    assert whole.latent or found.head_dim == (whole.head_extent or hidden / whole.heads)
    assert found.hidden == hidden
    assert found.inner * whole.hidden == whole.inner * hidden
    as_deep = with_extents(name, hidden=hidden)
    assert isinstance(as_deep, ModelShape)
    assert (parameters(as_deep) < parameters(whole)) == (hidden < whole.hidden)


@pytest.mark.parametrize(("model", "extents", "published"), [
    ("gpt2", {"layers": 48, "hidden": 1600, "heads": 25, "inner": 6400}, "gpt2-xl"),
    ("gpt2", {"layers": 36, "hidden": 1280, "heads": 20}, "gpt2-large"),
    ("gpt2-xl", {"layers": 12, "hidden": 768, "heads": 12}, "gpt2"),
    ("transformer-tiny", {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50257,
                          "seq_length": 1024}, "transformer-large"),
    ("llama3-8b", {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8}, "llama3-70b"),
    ("llama3-70b", {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8}, "llama3-8b"),
])
def test_a_published_model_by_its_extents_alone(
    model: str, extents: dict[str, int], published: str,
) -> None:
    assert with_extents(model, **extents) == MODELS[published]


def test_what_is_not_given_follows_the_model() -> None:
    more = with_extents("llama3-8b", heads=64)
    assert more == replace(MODELS["llama3-8b"], heads=64, kv_heads=16)
    assert with_extents("gpt2", heads=24) == replace(MODELS["gpt2"], heads=24, kv_heads=24)
    assert with_extents("gpt2", kv_heads=3) == replace(MODELS["gpt2"], kv_heads=3)
    assert with_extents("gpt2", inner=5) == replace(MODELS["gpt2"], inner=5)


def test_learned_positions_grow_with_the_sample_and_rotary_ones_need_nothing() -> None:
    for name, grown in (("gpt2", 3072 * 768), ("bert-large", 3584 * 1024), ("mistral-7b", 0)):
        longer = with_extents(name, seq_length=4096)
        assert isinstance(longer, ModelShape)
        assert parameters(longer) - parameters(MODELS[name]) == grown


@pytest.mark.parametrize(("model", "asked", "reason"), [
    ("gpt2", {"hidden": 100}, "hidden=100 cannot be divided among the 12 heads of gpt2"),
    ("gpt2", {"heads": 7}, "hidden=768 cannot be divided among 7 heads"),
    ("gpt2", {"kv_heads": 5}, "kv_heads=5 does not divide 12 heads"),
    ("gpt2", {"vocab": 0}, "vocab=0 is less than 1"),
    ("llama3-8b", {"hidden": 96},
     "hidden=96 cannot be divided among the 32 heads of llama3-8b of an even extent, which rotary "
     "positions need"),
    ("llama3-8b", {"hidden": 3840, "heads": 30},
     "heads=30 is not a multiple of 4, the heads that share keys and values in llama3-8b")])
def test_why_there_is_no_such_model(model: str, asked: dict[str, int], reason: str) -> None:
    assert with_extents(model, **asked) == reason


@pytest.mark.parametrize(("definition", "percent"), [
    ("6n", 32.5), ("megatron", 34.7), ("torchtitan", 39.0), ("palm", 41.2)])
def test_one_published_rate_under_each_definition(definition: str, percent: float) -> None:
    """torchtitan's README: Llama 3 8B, FSDP and compile, 6,667 tokens/s on each of 8 H100."""
    shape = MODELS["llama3-8b"]
    step = dict(flops(shape, 1))[definition]
    assert round(100 * step * 6667 / shape.seq_length / H100, 1) == percent


@pytest.mark.parametrize(("name", "rate", "tera"), [
    ("llama3-8b", 14_451, 744), ("llama3-70b", 1_602, 719)])
def test_published_flops_of_megatron(name: str, rate: int, tera: int) -> None:
    """Megatron-Bridge's performance summary 25.11: tokens/s of an H100, and model TFLOP/s."""
    step = dict(flops(MODELS[name], 1))["megatron"]
    assert round(step * rate / MODELS[name].seq_length / 1e12) == pytest.approx(tera, rel=2e-3)


def test_gpt2_by_hand() -> None:
    """6 for each token and weight: 12 blocks of 12 x 768^2, the head; attention of 12 L h T."""
    shape = MODELS["gpt2"]
    weights, lookups = 12 * 12 * 768**2 + 50257 * 768, 1024 * 768
    attention = 12 * 12 * 768 * 1024
    assert dict(flops(shape, 3)) == {
        "6n": 3 * 1024 * 6 * 124_439_808,
        "palm": 3 * 1024 * (6 * 124_439_808 + attention),
        "torchtitan": 3 * 1024 * (6 * (124_439_808 - lookups) + attention),
        "megatron": 3 * 1024 * (6 * weights + attention // 2),
        "counted": 3 * 1024 * (6 * weights + attention)}


@settings(deadline=None)  # of a busy machine
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 64), st.sampled_from(sorted(DEFINITIONS)))
def test_flops_grow_with_the_samples_and_recomputation_is_less_than_a_forward_pass(
    name: str, samples: int, definition: str,
) -> None:
    shape = MODELS[name]
    step = dict(flops(shape, samples))[definition]
    assert step == samples * dict(flops(shape, 1))[definition]
    none, attention, products, some, full, offload = (
        recomputed(shape, samples, mode, definition) for mode in CHECKPOINTINGS)
    assert none == products == offload == 0 < some < full < step // 3
    assert 0 < attention < full
    unlike = shape.experts is not None and shape.experts.dense_layers
    assert 2 * some == full or shape.layers % 2 or unlike


def test_attention_counts_once_for_each_pair_of_an_encoder() -> None:
    """No mask leaves pairs out there, so Megatron's half does not apply."""
    encoder = MODELS["bert-large"]
    assert dict(flops(encoder, 1))["megatron"] == dict(flops(encoder, 1))["counted"]
    decoder = replace(encoder, family="gpt")
    assert dict(flops(decoder, 1))["megatron"] < dict(flops(decoder, 1))["counted"]


def test_selective_checkpointing_is_every_second_block_of_the_whole_model() -> None:
    assert [is_recomputed("selective", block) for block in range(4)] == [True, False, True, False]


def test_every_definition_states_where_it_is_from() -> None:
    assert all(item.meaning and item.source for item in DEFINITIONS.values())


GPT: dict[str, Any] = {"kind": "training", "model": "gpt2", "strategies": "data",
                       "iterations": 4, "warmup": 0, "backend": "gloo"}


def case_of(**more: Any) -> Case:
    case, = make_plan(check_config({"benchmarks": [GPT | more]}, "test"), 2).cases
    return case


def test_the_counted_step_counts_as_more_than_one() -> None:
    four, eight, plain = (case_of(validate=False, **more).estimate_s for more in (
        {}, {"iterations": 8}, {"count_step": False}))
    step_s = (eight - four) / 4
    assert four - plain == pytest.approx(2.5 * step_s)


@pytest.mark.parametrize(("more", "steps", "least", "most"), [
    ({"layers": 2, "hidden": 256, "heads": 4, "seq_length": 32, "batch_size": 1}, 0, 2, 6),
    ({"layers": 2, "hidden": 384, "heads": 4}, 1, 6, 8),  # too many tokens: a short step of it
    ({}, 1, 1.5, 2.5)],  # too large: a small model, and fingerprints
    ids=["itself", "short step", "small model"])
def test_parity_counts_as_what_is_compared(
    more: dict[str, Any], steps: int, least: float, most: float,
) -> None:
    more = {"count_step": False, **more}
    four, five = (case_of(validate=False, **{**more, "iterations": n}).estimate_s for n in (4, 5))
    added = case_of(**more).estimate_s - four - steps * (five - four)
    assert least <= added <= most


def test_a_small_case_has_its_comparison_and_the_modules_that_it_needs() -> None:
    """Measured on one of two busy cores: 0.35 s of data, 4.5 s of the first qlora case."""
    small = {"layers": 2, "hidden": 128, "vocab": 128, "seq_length": 16, "batch_size": 2,
             "model": "mistral-7b"}
    assert 0.3 < case_of(**small).estimate_s < 1.5
    packed = case_of(**small, strategies={"qlora": {"over": "data"}})
    assert packed.workload.features.needs and 3 < packed.estimate_s < 6


def test_nothing_is_proved_without_communication() -> None:
    off = {"communication": "off"}
    assert case_of(**off).estimate_s == case_of(validate=False, **off).estimate_s


def test_the_estimate_has_the_weights_and_on_gpus_the_workers() -> None:
    """Weights are drawn in each pass; a context and a communicator are new in each."""
    def estimate(device: str, backend: str, passes: int, **more: Any) -> tuple[float, Plan]:
        raw = {"measure": {"passes": passes}, "benchmarks": [
            {"kind": "training", "model": "llama3-8b", "strategies": "fsdp", "device": device,
             "backend": backend, "iterations": 1, "warmup": 0, "validate": False,
             "communication": "only", **more}]}
        plan = make_plan(check_config(raw, "test"), 8)
        return plan_estimate_s(plan), plan

    once, plan = estimate("cuda", "nccl", 1)
    assert once == pytest.approx(plan.cases[0].estimate_s + 4 + LAUNCH_S)
    assert estimate("cuda", "nccl", 3)[0] == pytest.approx(3 * (once - LAUNCH_S) + LAUNCH_S)
    inline = replace(plan, config={**plan.config, "launch": {"inline": True}})
    assert plan_estimate_s(inline) == pytest.approx(once - LAUNCH_S)
    assert plan_estimate_s(replace(plan, launches=11)) == pytest.approx(11 * once)
    work = plan.cases[0].workload
    assert work.features.drawn_numbers == pytest.approx(8.03e9, rel=0.01)
    assert setup_s(work, "cpu") == pytest.approx(200, rel=0.02)
    assert setup_s(work, "cuda") == pytest.approx(16, rel=0.02)
    on_cpu, of_cpu = estimate("cpu", "gloo", 1)
    assert on_cpu == of_cpu.cases[0].estimate_s + LAUNCH_S > 200


def test_workers_of_gpus_that_may_not_be_there_are_apart() -> None:
    raw = {"measure": {"passes": 1}, "benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "size": 64, "backend": name,
         "validate": False} for name in ("gloo", "nccl")]}
    text = "\n".join(line.plain for line in plan_header(make_plan(check_config(raw, "test"), 2)))
    assert "estimate 37.1 s (19 s of that only if all needs are met)" in text  # 15 s a case, and 4


@pytest.mark.parametrize(("hardware", "step_s"), [
    ({"peak_flops": {"bf16": 1e12}}, 1.0), ({"peak_flops": {"fp32": 1e12}}, None), ({}, None),
    ({"network_bandwidth_gbps": 8e-3, "num_devices": 1}, 2.0),
    ({"network_bandwidth_gbps": 8e-3, "num_devices": 2}, None),  # both are on one node
    ({"peak_flops": {"bf16": 1e11}, "network_bandwidth_gbps": 8, "num_devices": 1}, 10.0),
    ({"peak_flops": {"bf16": 1e12}, "device_type": "cuda"}, None)])
def test_a_plan_has_the_least_step_and_its_cost_at_the_declared_rates(
    hardware: dict[str, Any], step_s: float | None,
) -> None:
    """The units of the parameters are 1 TFLOP and 1 MB of the network."""
    config = check_config({"hardware": {**hardware, "price_per_device_hour": 3.6}, "benchmarks": [
        GPT | {"dtype": "bf16", "batch_size": 5}]}, "test")
    plan = make_plan(config, 2)
    table, = case_tables(plan, full=True)
    names = [column.name for column in table.columns]
    (cost,) = (column for column in table.columns if column.name == "least_cost_per_1000_samples")
    assert (cost.title, cost.unit) == ("least cost", "units/1K samples")
    row = dict(zip(names, table.groups[0].rows[0].cells, strict=True))
    (document,) = plan_document(plan)["cases"]
    assert all(document[name] == row.get(name) for name in (
        "least_step_s", "least_cost_per_1000_samples"))
    expected = predict(training_of(plan.cases[0]))
    unit = expected.hardware_flops / 1e12 if "peak_flops" in hardware else (
        expected.carried_on(plan.cases[0].library) / 2e6)
    named = "device_type" if "device_type" in hardware else "peak_flops"
    assert [f"hardware.{named}" in line.text for line in table.notes] == [True] * (step_s is None)
    if step_s is None:
        assert row.get("least_step_s") is None and row.get("least_cost_per_1000_samples") is None
    else:
        assert row["least_step_s"] == pytest.approx(step_s * unit)
        assert row["least_cost_per_1000_samples"] == pytest.approx(
            step_s * unit * 2 * 3.6 / 3600 / 10 * 1000)


KEPT = {"fsdp": {"reshard": False}}


@pytest.mark.parametrize(("strategy", "on_node", "share"), [
    ("data", 1, 2 * 3 / 4), ("data", 2, 2 * 1 / 2), ("data", 4, 0),
    ("data", 3, 2 * 1 / 2),  # nodes of 3 ranks and of 1
    (KEPT, 1, 2 * 3 / 4), (KEPT, 2, 2 * 1 / 2),  # gathered and scattered once
    ("zero1", 2, 2 * 1 / 2 + 1 / 2)])  # each rank broadcasts what it has updated
def test_the_ranks_of_a_node_share_its_link(strategy: Any, on_node: int, share: float) -> None:
    """Of S bytes of fp32 gradients on 4 ranks; of an all_reduce 2 (nodes - 1) / nodes must pass."""
    (case,) = make_plan(check_config({"benchmarks": [
        GPT | {"strategies": strategy, "dtype": "fp32"}]}, "test"), 4).cases
    work = training_of(case)
    assert crossing_bytes(work, on_node, "nccl") == pytest.approx(
        share * 4 * work.parameters, rel=2e-3)  # FSDP pads to equal shards


def test_groups_within_a_node_send_nothing_over_its_link() -> None:
    def planned(strategies: Any) -> Training:
        (case,) = make_plan(check_config({"benchmarks": [
            GPT | {"strategies": strategies, "dtype": "fp32"}]}, "test"), 4).cases
        return training_of(case)

    two_by_two, of_layers = planned({"hybrid": {"tp": 2}}), planned({"pipeline": {}})
    local = rank_parameters(two_by_two, stages_of(two_by_two)[0]).local.trained
    # both ranks of a node average their part of the gradients with the other node: 2 x 2 x 1 / 2
    assert crossing_bytes(two_by_two, 2, "nccl") == 2 * 4 * local.elements
    assert crossing_bytes(planned("tensor"), 4, "nccl") == 0
    assert crossing_bytes(of_layers, 1, "nccl") == predict(of_layers).carried_on("nccl") > 0
    assert crossing_bytes(planned({"hsdp": {"replicas": 2}}), 2, "nccl") == pytest.approx(
        4 * two_by_two.parameters, rel=2e-3)  # both average a half: 2 x 2 x 1 / 2 / 2


DYNAMIC = (("balance", "dynamic"),)


def works() -> list[Training]:
    return [make_training(dp=dp, batch_size=batch, accumulation=parts, options=DYNAMIC)
            for dp, batch, parts in product((2, 3, 5), (2, 4, 7), (1, 2))
            if batch > parts and dp * batch <= 16]


@pytest.mark.parametrize("work", works(), ids=lambda work: f"{work.dp}x{work.batch_size}")
def test_shares_are_the_global_batch_within_bounds(work: Training) -> None:
    for costs in product((0.1, 1.0, 7.0), repeat=work.dp):
        shares = divide(work, costs)
        assert sum(shares) == work.global_batch
        assert work.accumulation <= min(shares) <= max(shares) <= most_share(work)
    assert divide(work, [3.0] * work.dp) == (work.batch_size,) * work.dp
    assert len(set(uneven_shares(work))) > 1


def test_no_other_division_has_a_shorter_step() -> None:
    work = make_training(dp=3, batch_size=4, options=DYNAMIC)
    for costs in ((1.0, 2.0, 3.0), (1.0, 1.0, 9.0), (5.0, 4.0, 3.9)):
        longest = [max(count * cost for count, cost in zip(shares, costs, strict=True))
                   for shares in product(range(1, 9), repeat=3) if sum(shares) == 12]
        found = divide(work, costs)
        assert max(n * cost for n, cost in zip(found, costs, strict=True)) == min(longest)


def test_half_as_fast_is_half_as_much() -> None:
    work = make_training(dp=2, batch_size=12, options=DYNAMIC)
    assert divide(work, (1.0, 2.0)) == (16, 8)
    assert divide(work, (1.0, 1e9)) == (23, 1)
    wide = make_training(dp=4, batch_size=8, accumulation=2, options=DYNAMIC)
    assert divide(wide, (1.0, 1e9, 1e9, 1e9)) == (16, 6, 5, 5)  # not more than twice its share


def planned(options: dict[str, Any], strategy: str = "data", **block: Any) -> Any:
    block = {"kind": "training", "model": "transformer-tiny", "strategies": {strategy: options},
             **block}
    (case,) = make_plan(check_config({"benchmarks": [block]}, "c.json"), 4).cases
    return case


@pytest.mark.parametrize(("block", "words"), [
    ({"world_size": 1}, "moves samples between replicas, of which there is one"),
    ({"batch_size": 2, "accumulation": 2}, "has nothing to move: each of 2 parts")])
@pytest.mark.parametrize("strategy", ["data", "zero1"])
def test_where_nothing_can_be_moved_is_a_skip(
    strategy: str, block: dict[str, Any], words: str,
) -> None:
    assert words in planned({"balance": "dynamic"}, strategy, **block).skip
    assert planned({"balance": "static"}, strategy, **block).skip is None


def test_speeds_are_exchanged_and_memory_is_that_of_the_largest_share() -> None:
    even, moved = (predict(training_of(planned({"balance": name}))).of_ranks[0]
                   for name in ("static", "dynamic"))
    assert [one.collective for one in moved.calls] == ["all_reduce", "all_gather"]
    assert (moved.calls[1].count, moved.calls[1].size_bytes) == (1, 8 * 4)
    assert moved.memory.activations == 2 * even.memory.activations
