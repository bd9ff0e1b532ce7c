"""Weights to begin with: random numbers that follow from a seed and a parameter's name alone.

On a CPU torch draws them, one after another. A GPU draws them itself, or a model of 8 billion
weights would wait minutes for one core. torch's generators of GPUs give other numbers on another
GPU. So here every element is a function of its place, in whole numbers: ranks agree whatever GPU
they have, and so does the reference that they are compared with.
"""

from __future__ import annotations

import hashlib
import math

import torch

ON_DEVICE = frozenset({"cuda"})
"""Devices that draw for themselves."""
_PIECE = 2**22
"""Elements drawn at a time: they need some 40 bytes each meanwhile."""
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014,
with the constants of Vigna's splitmix64.c."""
_SIXTEEN = 2**16


def drawn(
    name: str, extents: tuple[int, ...], deviation: float, seed: int, device: torch.device,
) -> torch.Tensor:
    """Return normal numbers, fp32, that depend on seed and name; weights of norms are about 1.

    They are on ``device`` if that draws for itself (`ON_DEVICE`), else on the CPU.
    """
    mean = 1.0 if len(extents) == 1 and name.endswith(".weight") else 0.0
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    if device.type in ON_DEVICE:
        return counted_normals(key, math.prod(extents), device).mul_(deviation).add_(mean).view(
            extents)
    generator = torch.Generator().manual_seed(key)
    return torch.empty(extents).normal_(mean, deviation, generator=generator)


def counted_normals(key: int, count: int, device: torch.device) -> torch.Tensor:
    """Return (count,) nearly normal numbers of mean 0 and deviation 1, fp32.

    Each is the sum of the four 16-bit parts of a hash of its place: of four uniform numbers, and so
    within 3.5 deviations. All but the last product is in whole numbers: the same on every device.
    """
    found = torch.empty(count, device=device)
    for first in range(0, count, _PIECE):
        piece = found[first:first + _PIECE]
        piece.copy_(_sums(key, first, len(piece), device))
    deviation = math.sqrt(4 * (_SIXTEEN**2 - 1) / 12)
    return found.mul_(1 / deviation)


def _sums(key: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return (count,) sums of four uniform whole numbers, less their mean, from place ``first``."""
    z = torch.arange(first + 1, first + count + 1, device=device)
    z.mul_(_signed(_GAMMA)).add_(_signed(key))
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z.bitwise_xor_(_shifted(z, shift)).mul_(_signed(factor))
    z.bitwise_xor_(_shifted(z, 31))
    total = z & (_SIXTEEN - 1)
    for place in (16, 32, 48):
        total += (z >> place) & (_SIXTEEN - 1)
    return total - 2 * (_SIXTEEN - 1)


def _shifted(z: torch.Tensor, places: int) -> torch.Tensor:
    """Return 64 bits shifted right, filled up with zeros; torch's shift repeats the sign."""
    return (z >> places) & (2 ** (64 - places) - 1)


def _signed(bits: int) -> int:
    """Return 64 bits as the whole number that int64 takes them for."""
    bits %= 2**64
    return bits - 2**64 if bits >= 2**63 else bits
