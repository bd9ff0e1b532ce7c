"""Random numbers of weights at the start: the same for every layout, rank and device."""

from __future__ import annotations

import hashlib
import math

import torch

_DEVIATION = 0.02


def drawn(name: str, extents: tuple[int, ...], deviation: float, seed: int) -> torch.Tensor:
    """Return normal numbers that depend on seed and name; weights of norms are about 1."""
    mean = 1.0 if len(extents) == 1 and name.endswith(".weight") else 0.0
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(extents).normal_(mean, deviation, generator=generator)


def of_transformer(name: str, extents: tuple[int, ...], seed: int, layers: int) -> torch.Tensor:
    """Return the first value of a whole parameter of a transformer, fp32 on the CPU.

    As GPT-2: normal of deviation 0.02, divided by the root of the number of additions to the
    residual for those that add to it: two in each of ``layers``, which is 0 for others. Other than
    there biases and norms are random, too, about 0 and 1: a layout that adds a bias twice then has
    another loss from the first step on.
    """
    deviation = _DEVIATION / math.sqrt(2 * layers) if layers else _DEVIATION
    return drawn(name, extents, deviation, seed)
