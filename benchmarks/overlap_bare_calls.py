"""What the calls of overlap_bare.py have in common, whatever is done with the product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from overlap_peer import Peer
from overlap_variants import Variants


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (2, m, k) and (2, k, n), of both ranks: integers so small that sums are exact."""
    made = torch.Generator().manual_seed(1)
    columns, weights = (torch.randint(-3, 4, (2, *shape), generator=made).float()
                        for shape in ((m, k), (k, n)))
    return columns, weights


def finish(works: Iterable[Any]) -> None:
    """Wait for what gloo has begun."""
    for work in works:
        work.wait()


class Calls:
    """What is timed, each by its name."""

    by_name: Mapping[str, Callable[[], object]]

    def __init__(
        self, variants: Variants, peer: Peer, leaving: torch.Tensor, arrived: torch.Tensor,
    ) -> None:
        self._variants, self._peer = variants, peer
        self._leaving, self._arrived = leaving, arrived

    def _check(self, buffers: Iterable[torch.Tensor], result: torch.Tensor,
               expected: torch.Tensor) -> None:
        """Overlap in each way once; raise ValueError if a result is wrong."""
        for name in self._variants.with_result:
            for buffer in buffers:
                buffer.fill_(float("nan"))
            self._peer.meet()
            self.by_name[name]()
            if not torch.equal(result, expected):
                raise ValueError(f"the result of '{name}' is wrong")

    def _exchange(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Send and receive all at once, and do something that needs none of it."""
        self._peer.receive([self._arrived])
        self._peer.send(self._leaving)
        if meanwhile is not None:
            meanwhile()
        self._peer.finish_one()
        self._peer.finish_sending(1)
