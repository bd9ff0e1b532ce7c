"""Every layout of the ranks sees the same global batch, and a new one in each step."""

from __future__ import annotations

import pytest
import torch

from hpcbench.plan.training.spec import Degrees
from hpcbench.workloads.training.data import Loader
from workloads.training_cases import training

CPU = torch.device("cpu")


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_replicas_divide_one_global_batch(dp: int) -> None:
    whole = training("single", batch_size=8)
    part = training("single", batch_size=8 // dp, degrees=Degrees(dp=dp))
    for step in (0, 3):
        parts = [Loader(part, CPU).batch(step, replica * 8 // dp, 8 // dp)
                 for replica in range(dp)]
        for ours, theirs in zip(Loader(whole, CPU).batch(step, 0, 8), zip(*parts, strict=True),
                                strict=True):
            assert torch.equal(ours, torch.cat(theirs))


def test_tokens_are_new_in_every_step_and_sample_and_follow_each_other() -> None:
    spec = training("single", batch_size=16)
    seen = set()
    for step in range(4):
        tokens, targets = Loader(spec, CPU).batch(step, 0, 16)
        assert tokens.shape == targets.shape == (16, spec.seq_length)
        assert tokens.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < spec.vocab
        seen |= {tuple(sample) for sample in tokens.tolist()}
    assert len(seen) == 4 * 16
