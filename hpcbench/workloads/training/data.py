"""The samples of each step: new in every step, and the same for every layout of the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hpcbench.plan.training.resnet import COLOURS
from hpcbench.plan.workload import Training
from hpcbench.workloads.training.strategies.base import Batch

SEED = 0
"""Of samples and weights: every case and every rank has the same."""
_MEAN, _DEVIATION = 127.5, 73.9
"""Of uniformly random bytes: images are normed by them, as is usual, on the device."""
Numbers = np.ndarray[tuple[int, ...], np.dtype[Any]]


def replica_batch(spec: Training, step: int, replica: int, device: torch.device) -> Batch:
    """Return the samples of one data-parallel replica in one step, on the device.

    Replicas take consecutive parts of the global batch. Tokens are uniformly random; a sample has
    one more than ``seq_length``, and each token is to be predicted from those before it. Models
    that see the tokens behind, too (BERT), are given the same: their work does not differ. Images
    are uniformly random bytes on the host, and classes are random, too.
    """
    first = replica * spec.batch_size
    draws = [_generator(step, index) for index in range(first, first + spec.batch_size)]
    if spec.of_images:
        images = torch.from_numpy(np.stack([_image(spec, draw) for draw in draws])).to(device)
        classes = np.array([draw.integers(0, spec.classes) for draw in draws])
        return (images.float() - _MEAN) / _DEVIATION, torch.from_numpy(classes).to(device)
    tokens = torch.from_numpy(np.stack([
        draw.integers(0, spec.vocab, spec.seq_length + 1, dtype=np.int64) for draw in draws]))
    tokens = tokens.to(device)
    return tokens[:, :-1], tokens[:, 1:]


def _image(spec: Training, draw: np.random.Generator) -> Numbers:
    extents = (COLOURS, spec.image_size, spec.image_size)
    return draw.integers(0, 256, extents, dtype=np.uint8)


def _generator(step: int, index: int) -> np.random.Generator:
    """Return what draws one sample, which depends on seed, step and global index only.

    Philox is a counter hashed with a key (Salmon et al., 2011): each sample has a stretch of 2^128
    of its own, and none needs another to be drawn before.
    """
    return np.random.Generator(np.random.Philox(key=SEED, counter=[0, 0, index, step]))
