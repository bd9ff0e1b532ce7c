"""Element-for-element comparison of a collective's output with what it must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

AVG_ULPS = 2  # nccl-tests allows the same for its floating-point avg


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The wrong elements of one output: how many of how many, and the first of them."""

    n_wrong: int
    n_elements: int
    first_index: int
    got: str
    expected: str


def compare(got: torch.Tensor, expected: torch.Tensor, *, ulps: int = 0) -> Mismatch | None:
    """Return the mismatch, or None if every element is right; NaN is never right."""
    if ulps and got.dtype.is_floating_point:
        bound = ulps * torch.finfo(got.dtype).eps * expected.to(torch.float64).abs()
        right = (got.to(torch.float64) - expected.to(torch.float64)).abs() <= bound
    else:
        right = got == expected
    if bool(right.all()):
        return None
    wrong = torch.nonzero(~right.reshape(-1))
    first = int(wrong[0])
    return Mismatch(
        n_wrong=len(wrong), n_elements=got.numel(), first_index=first,
        got=str(got.reshape(-1)[first].item()), expected=str(expected.reshape(-1)[first].item()),
    )
