from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.kinds.training.derive.rates import hfu, mfu, rates
from hpcbench.kinds.training.plan.workload import Training

WORK = Training(
    strategy="data", options=(), model="transformer-tiny", shrunk=False, family="gpt", layers=2,
    hidden=64, heads=4, kv_heads=4, inner=256, vocab=256, seq_length=32, dtype="bf16", batch_size=8,
    accumulation=2, optimizer="adamw", checkpointing="none", dp=2, tp=1, pp=1, parameters=1000,
    flops=(("megatron", 6_000_000), ("6n", 3_000_000)), calls=("all_reduce",))
DEGREES = st.sampled_from((1, 2, 4, 8))


def test_samples_and_tokens_by_hand() -> None:
    assert rates(WORK, 0.5) == (32.0, 1024.0)
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
    assert found[1] == pytest.approx(dp * samples * parts * seq_length / step_s)


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
