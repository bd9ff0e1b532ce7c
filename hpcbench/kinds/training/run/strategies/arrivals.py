"""When each bucket of DistributedDataParallel has its gradients on this rank.

Backward lasts as long on every rank, because all wait for the last. The times of a rank's own
gradients show whether it is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.traffic import buckets
from hpcbench.trace.schema import ARRIVAL

MOST = 32
"""Of more buckets so many are watched, from the first to the last."""


class BucketWatch:
    """Calls a callback with the name of each bucket that has its last gradient.

    torch fills buckets in the order in which the first backward gave gradients. The callback is
    not called before that order is known (`settle`).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_mb: int) -> None:
        """Watch the first backward."""
        self._bucket_mb = bucket_mb
        self._parameters = [one for one in parameters if one.requires_grad]
        self._order: list[nn.Parameter] = []
        self._handles = [one.register_post_accumulate_grad_hook(self._order.append)
                         for one in self._parameters]
        self.on_bucket: Callable[[str], None] = _ignore

    def settle(self) -> None:
        """Watch buckets, now that the first backward has been."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        order = self._order[:len(self._parameters)]  # an accumulation begins again
        given = [Tensor(str(at), tuple(one.shape)) for at, one in enumerate(order)]
        contents = buckets(given[::-1], self._bucket_mb)
        for number in _spread(len(contents)):
            last = order[int(contents[number][-1].name)]
            last.register_post_accumulate_grad_hook(self._callback(f"{ARRIVAL}{number + 1}"))

    def _callback(self, name: str) -> Callable[[nn.Parameter], None]:
        return lambda _: self.on_bucket(name)


def _spread(count: int) -> list[int]:
    """Return up to MOST of so many numbers from 0, the first and the last among them."""
    if count <= MOST:
        return list(range(count))
    return [number * (count - 1) // (MOST - 1) for number in range(MOST)]


def _ignore(_: str) -> None:
    """Do nothing: no callback is set."""
