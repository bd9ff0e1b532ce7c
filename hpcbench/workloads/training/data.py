"""The tokens of each step: new in every step, and the same for every layout of the ranks."""

from __future__ import annotations

import numpy as np
import torch

from hpcbench.plan.workload import Training
from hpcbench.workloads.training.strategies.base import Batch

SEED = 0
"""Of tokens and weights: every case and every rank has the same."""


def replica_batch(spec: Training, step: int, replica: int, device: torch.device) -> Batch:
    """Return the samples of one data-parallel replica in one step, on the device.

    Replicas take consecutive parts of the global batch. Tokens are uniformly random; a sample has
    one more than ``seq_length``, and each token is to be predicted from those before it. Models
    that see the tokens behind, too (BERT), are given the same: their work does not differ.
    """
    first = replica * spec.batch_size
    samples = np.stack([_sample(spec, step, index)
                        for index in range(first, first + spec.batch_size)])
    tokens = torch.from_numpy(samples).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def _sample(spec: Training, step: int, index: int) -> np.ndarray[tuple[int, ...],
                                                                 np.dtype[np.int64]]:
    """Return the tokens of one sample, which depend on seed, step and global index only.

    Philox is a counter hashed with a key (Salmon et al., 2011): each sample has a stretch of 2^128
    of its own, and none needs another to be drawn before.
    """
    generator = np.random.Generator(np.random.Philox(key=SEED, counter=[0, 0, index, step]))
    return generator.integers(0, spec.vocab, spec.seq_length + 1, dtype=np.int64)
