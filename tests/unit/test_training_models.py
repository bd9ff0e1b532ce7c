from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.kinds.training.plan.block import CHECKPOINTINGS
from hpcbench.kinds.training.plan.flops import DEFINITIONS, flops, recomputed
from hpcbench.kinds.training.plan.models import is_recomputed, parameters, shrink
from hpcbench.kinds.training.plan.stages import Stage
from hpcbench.operations.models import FAMILIES, MODELS, ModelShape

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
        assert shape.family in FAMILIES
        assert shape.heads * shape.head_dim == shape.hidden
        assert shape.heads % shape.kv_heads == 0
        assert shrink(name) == shape


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
    small = shrink("llama3-8b", layers=2, hidden=512, seq_length=64, vocab=1000)
    assert small == ModelShape("llama", 2, 512, 32, 8, 1792, 1000, 64, 500000.0)


@settings(deadline=None)  # of a busy machine
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 40), st.integers(1, 100))
def test_what_is_shrunk_is_a_model_or_says_why_not(name: str, layers: int, hidden: int) -> None:
    whole = MODELS[name]
    found = shrink(name, layers=layers, hidden=hidden)
    if isinstance(found, str):
        assert layers > whole.layers or hidden % whole.heads or hidden // whole.heads % 2
        return
    assert (found.heads, found.kv_heads, found.vocab) == (whole.heads, whole.kv_heads, whole.vocab)
    assert found.head_dim * found.heads == found.hidden == hidden
    assert found.inner * whole.hidden == whole.inner * hidden
    assert parameters(found) < parameters(whole)


@pytest.mark.parametrize(("asked", "reason"), [
    ({"hidden": 100}, "hidden=100 cannot be divided among the 12 heads of gpt2; take a multiple "
                      "of 12"),
    ({"layers": 13}, "layers=13 is not within 1 to 12, what gpt2 has"),
    ({"seq_length": 2048}, "seq_length=2048 is not within 1 to 1024, what gpt2 has"),
    ({"vocab": 0}, "vocab=0 is not within 1 to 50257, what gpt2 has")])
def test_why_a_model_cannot_be_shrunk(asked: dict[str, int], reason: str) -> None:
    assert shrink("gpt2", **asked) == reason


def test_a_head_with_rotary_positions_has_pairs() -> None:
    assert shrink("llama3-8b", hidden=96) == (
        "hidden=96 cannot be divided among the 32 heads of llama3-8b; take a multiple of 64")


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


def test_every_definition_says_where_it_is_from() -> None:
    assert all(item.meaning and item.source for item in DEFINITIONS.values())
