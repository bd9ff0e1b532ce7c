"""Element-for-element comparison of a collective's output with what it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_PIECE = 2**18  # elements compared at a time
AVG_ULPS = 2  # nccl-tests allows the same for its floating-point avg


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The wrong elements of one output: how many of how many, and the first of them."""

    n_wrong: int
    n_elements: int
    first_index: int
    got: str
    expected: str

    @property
    def words(self) -> str:
        """Return it for people."""
        return (f"{self.n_wrong} of {self.n_elements} elements, first index {self.first_index}: "
                f"got {self.got}, expected {self.expected}")


def compare(got: torch.Tensor, expected: torch.Tensor, *, ulps: int = 0) -> Mismatch | None:
    """Return the mismatch, or None if every element is right; NaN is never right.

    Equal pieces are not looked at again: checks stand between samples, whose caches they empty.
    """
    ours, theirs = got.reshape(-1), expected.reshape(-1)
    if ours.dtype == theirs.dtype and all(
            torch.equal(ours[start:start + _PIECE], theirs[start:start + _PIECE])
            for start in range(0, len(ours), _PIECE)):
        return None
    return mismatch(ours, theirs, lambda piece: _right(ours[piece], theirs[piece], ulps))


def mismatch(
    ours: torch.Tensor, theirs: torch.Tensor, right: Callable[[slice], torch.Tensor],
) -> Mismatch | None:
    """Return the mismatch of flat tensors, or None; ``right`` tells which of some elements are.

    Compared piece by piece: a case needs no more memory for its check than for its buffers.
    """
    n_wrong, first = 0, -1
    for start in range(0, len(ours), _PIECE):
        wrong = torch.nonzero(~right(slice(start, start + _PIECE)))
        if first < 0 and len(wrong):
            first = start + int(wrong[0])
        n_wrong += len(wrong)
    if not n_wrong:
        return None
    return Mismatch(n_wrong, len(ours), first, str(ours[first].item()), str(theirs[first].item()))


def _right(got: torch.Tensor, expected: torch.Tensor, ulps: int) -> torch.Tensor:
    if not ulps or not got.dtype.is_floating_point:
        return got == expected
    exact = expected.to(torch.float64)
    bound = ulps * torch.finfo(got.dtype).eps * exact.abs()
    return (got.to(torch.float64) - exact).abs() <= bound
