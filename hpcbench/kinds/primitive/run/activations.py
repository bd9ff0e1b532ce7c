"""Activations between the two products of an MLP, and what they make of an error before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from hpcbench.kinds.primitive.run.expected import Expected
from hpcbench.kinds.primitive.run.operands import DTYPES, accumulated_roundoff, unit_roundoff

Activation = Callable[[torch.Tensor], torch.Tensor]
IN_PLACE: Mapping[str, Activation] = MappingProxyType(
    {"relu": torch.relu_, "gelu": torch.ops.aten.gelu_})
"""gelu is the exact one, x (1 + erf(x / sqrt 2)) / 2: torch.nn.functional.gelu's default."""
_GELU_SLOPE = 1.129  # the largest slope of gelu: Phi(sqrt 2) + sqrt 2 phi(sqrt 2) = 1.12890
_ERF_ROUNDINGS = 4  # at most 1 ulp of erf, its argument's rounding, 1 + erf, and two products


def activated(before: Expected, name: str, dtype: str) -> Expected:
    """Return the activation of a result in fp64, and how far one in the dtype may be off.

    relu is exact, and brings no two numbers further apart. gelu brings them 1.129 times as far
    apart at most. It is computed in fp32 (fp64 for fp64), where 1 + erf is off by a few units
    however small it is: 4 u |x|. Its result is rounded to the dtype: u |gelu|, or, where that is
    too small for a normal number, half the smallest number.
    """
    x, off = before.value, before.bound
    if name == "relu":
        return Expected(x.relu(), off)
    value = torch.nn.functional.gelu(x)
    if off is None:
        off = torch.zeros_like(x, dtype=torch.float32)
    passed = _GELU_SLOPE * off + _ERF_ROUNDINGS * accumulated_roundoff(dtype) * (x.abs() + off)
    rounding = unit_roundoff(dtype) * (
        value.abs() + passed + torch.finfo(DTYPES[dtype]).smallest_normal)
    return Expected(value, (passed + rounding).float())
