"""What a collective asks of a library that is called without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a collective works on, on one rank.

    ``source`` is None where the rank gives nothing of its own, or gives what is in ``output``.
    ``root`` is a rank of the group; ``op`` is empty where nothing is reduced.
    """

    source: torch.Tensor | None
    output: torch.Tensor | None
    op: str = ""
    root: int = 0


@runtime_checkable
class Lane(Protocol):
    """A group that makes its own calls of collectives; it is no group of torch's."""

    def prepared(self, collective: str, buffers: Buffers) -> Callable[[], object]:
        """Return the call, ready to be made again and again."""
