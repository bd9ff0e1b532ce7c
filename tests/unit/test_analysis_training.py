from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.kinds.training.derive.rates import (
    Rates,
    hfu,
    mfu,
    rates,
    violations,
)
from hpcbench.kinds.training.plan.workload import Training

WORK = Training(
    strategy="data", options=(), model="transformer-tiny", shrunk=False, family="gpt", layers=2,
    hidden=64, heads=4, kv_heads=4, inner=256, vocab=256, seq_length=32, dtype="bf16", batch_size=8,
    accumulation=2, optimizer="adamw", checkpointing="none", dp=2, tp=1, pp=1, parameters=1000,
    flops=(("megatron", 6_000_000), ("6n", 3_000_000)), calls=("all_reduce",))
TRUE = Rates(step_s=0.5, samples_per_s=32.0, tokens_per_s=1024.0, global_batch=16, seq_length=32,
              utilisations={"mfu": 0.4, "hfu": None})
DEGREES = st.sampled_from((1, 2, 4, 8))


def rates_of(work: Training, step_s: float) -> Rates:
    found = rates(work, step_s)
    assert found is not None
    return found


def test_samples_and_tokens_by_hand() -> None:
    found = rates(WORK, 0.5)
    assert (found.samples_per_s, found.tokens_per_s) == (32.0, 1024.0)
    assert rates(WORK, 0.0) is None


@given(DEGREES, DEGREES, DEGREES, DEGREES, st.integers(1, 16), st.integers(1, 4096),
       st.floats(1e-6, 1e4))
def test_tokens_count_once_whatever_the_ranks(
    dp: int, tp: int, pp: int, parts: int, samples: int, seq_length: int, step_s: float,
) -> None:
    work = replace(WORK, dp=dp, tp=tp, pp=pp, accumulation=parts, batch_size=samples * parts,
                   seq_length=seq_length)
    alone = replace(work, tp=1, pp=1, accumulation=1)
    found = rates(work, step_s)
    assert found == rates(alone, step_s)
    assert found.tokens_per_s == pytest.approx(dp * samples * parts * seq_length / step_s)
    assert not [*violations(rates_of(work, step_s))]


@given(DEGREES, DEGREES, DEGREES, DEGREES, st.sampled_from((2, 3, 8)))
def test_counting_what_several_ranks_see_more_than_once_is_found(
    dp: int, tp: int, pp: int, parts: int, times: int,
) -> None:
    true = rates_of(replace(WORK, dp=dp, tp=tp, pp=pp, accumulation=parts, batch_size=8 * parts),
                     0.25)
    both = replace(true, tokens_per_s=true.tokens_per_s * times,
                   samples_per_s=true.samples_per_s * times)
    assert ["global batch" in line for line in violations(both)] == [True]
    tokens = replace(true, tokens_per_s=true.tokens_per_s * times)
    assert ["samples/s x sequence length" in line for line in violations(tokens)] == [True]
    part = replace(true, global_batch=true.global_batch * times)
    assert ["global batch" in line for line in violations(part)] == [True]


def test_mfu_by_definition_and_hfu() -> None:
    peaks = {"bf16": 1e8}
    assert mfu(WORK, "megatron", 0.1, 2, peaks) == pytest.approx(0.3)
    assert mfu(WORK, "6n", 0.1, 2, peaks) == pytest.approx(0.15)
    assert hfu(WORK, 8_000_000, 0.1, 2, peaks) == pytest.approx(0.4)
    with pytest.raises(KeyError):
        mfu(WORK, "palm", 0.1, 2, peaks)


def test_without_a_declared_peak_or_a_time_there_is_no_utilisation() -> None:
    assert mfu(WORK, "6n", 0.1, 2, {"fp16": 125e12}) is None
    assert mfu(WORK, "6n", 0.0, 2, {"bf16": 1e12}) is None


@pytest.mark.parametrize(("change", "words"), [
    ({"tokens_per_s": 1025.0}, "tokens/s 1025 is not samples/s x sequence length = 1024"),
    ({"step_s": 0.6}, "samples/s x step time = 19.2 is not the global batch 16"),
    ({"utilisations": {"mfu megatron": 1.33}}, "mfu megatron is 133.0%"),
    ({"step_s": 0.0}, "step time is 0: not a positive number"),
    ({"samples_per_s": float("nan")}, "samples/s is nan"),
])
def test_each_violation_is_named(change: dict[str, object], words: str) -> None:
    assert not [*violations(TRUE)]
    (line,) = violations(replace(TRUE, **change))  # type: ignore[arg-type]
    assert words in line


def test_figures_of_others_that_cannot_be_true_are_found() -> None:
    candle = Rates(1 / 156.2, 156.2, 320_204.8, 1, 2048)  # 2049.97 tokens a sample
    assert "sequence length" in next(violations(candle))
    torchscale = Rates(0.220, 1450.0, 1450.0, 512, 1)  # 4 x 128 images in 220 ms are 2327/s
    assert "global batch 512" in next(violations(torchscale))
