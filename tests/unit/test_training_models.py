from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.kinds.training.block import CHECKPOINTINGS
from hpcbench.kinds.training.plan.models import (
    DEFINITIONS,
    flops,
    is_recomputed,
    parameters,
    recomputed,
    with_extents,
)
from hpcbench.kinds.training.plan.step import Stage
from hpcbench.operations.models import MODELS, ModelShape

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
        assert shape.heads * shape.head_dim == shape.hidden
        assert shape.heads % shape.kv_heads == 0
        assert with_extents(name) == shape


@settings(deadline=None)  # of a busy machine
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 5))
def test_stages_have_the_parameters_of_the_model_and_a_copy_of_a_tied_one(
    name: str, blocks: int,
) -> None:
    shape = MODELS[name]
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
        assert hidden % whole.heads or hidden // whole.heads % 2
        return
    assert (found.heads, found.kv_heads, found.vocab) == (whole.heads, whole.kv_heads, whole.vocab)
    assert found.head_dim * found.heads == found.hidden == hidden
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
    ("gpt2", {"hidden": 100}, "hidden=100 cannot be divided among the 12 heads of gpt2; take a "
                              "multiple of 12, or heads=10 or 20"),
    ("gpt2", {"hidden": 101}, "hidden=101 cannot be divided among the 12 heads of gpt2; take a "
                              "multiple of 12, or heads=1 or 101"),
    ("gpt2", {"heads": 7}, "hidden=768 cannot be divided among 7 heads; take a multiple of 7, or "
                           "heads=6 or 8"),
    ("gpt2", {"heads": 1000}, "hidden=768 cannot be divided among 1000 heads; take a multiple of "
                              "1000, or heads=768"),
    ("gpt2", {"kv_heads": 5}, "kv_heads=5 does not divide 12 heads; take 4 or 6"),
    ("gpt2", {"vocab": 0}, "vocab=0 is less than 1"),
    ("llama3-8b", {"hidden": 96},
     "hidden=96 cannot be divided among the 32 heads of llama3-8b of an even extent, which rotary "
     "positions need; take a multiple of 64, or heads=24 or 48"),
    ("llama3-8b", {"hidden": 97},
     "hidden=97 cannot be divided among the 32 heads of llama3-8b of an even extent, which rotary "
     "positions need; take a multiple of 64"),
    ("llama3-8b", {"hidden": 3840, "heads": 30},
     "heads=30 is not a multiple of 4, the heads that share keys and values in llama3-8b; give "
     "kv_heads, for example 6 or 10"),
    ("llama3-70b", {"hidden": 2, "heads": 1},
     "heads=1 is not a multiple of 8, the heads that share keys and values in llama3-70b; give "
     "kv_heads, for example 1")])
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
    none, some, products, full = (
        recomputed(shape, samples, mode, definition) for mode in CHECKPOINTINGS)
    assert none == products == 0 < some < full < step // 3
    assert 2 * some == full or shape.layers % 2


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
