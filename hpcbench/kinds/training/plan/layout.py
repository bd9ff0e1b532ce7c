"""How a training lies on its ranks, as its strategy defines it.

What a plan predicts of memory and traffic follows from that, and from the degrees of the training.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.schedules import Pipelining


@dataclass(frozen=True, slots=True)
class Groups:
    """How parameters that are handled block by block are spread.

    Attributes:
        shards: ranks that each is divided among.
        copies: groups of shards that have the same.
        element_bytes: bytes of an element that is gathered.
        reshard: whether blocks give up what they gathered between forward and backward.
        rounds: how often in a step all that is needed is gathered.
        exchanges: how often in a step gradients are exchanged.
    """

    shards: int = 1
    copies: int = 1
    element_bytes: int = 4
    reshard: bool = False
    rounds: int = 1
    exchanges: int = 1


@dataclass(frozen=True, slots=True)
class Buckets:
    """How DistributedDataParallel exchanges gradients: in buckets of ``mib`` MiB.

    ``are_views``: gradients lie in the buckets. ``hook``: in what form they travel.
    """

    mib: int
    are_views: bool = False
    hook: str = "none"


@dataclass(frozen=True, slots=True)
class Layout:
    """What is divided, copied and cast, and how gradients are exchanged.

    A strategy states what differs from a rank that trains the whole model by itself.

    Attributes:
        groups: how parameters are spread that are handled block by block: gathered when they are
            needed (FSDP), cast, and their gradients exchanged together; None where they are not.
        buckets: how gradients are exchanged by DDP; None where they are not.
        state_ranks: ranks that the optimizer's states alone are divided among (ZeRO stage 1).
        by_tokens: whether tensor-parallel ranks divide the tokens, too (sequence parallel).
        by_words: whether they divide the logits (loss parallel).
        pipeline: how stages and micro-batches are scheduled; None without a pipeline.
        adapters: what alone is trained; None where the model itself is.
        balanced: whether samples are divided among replicas by their speed.
    """

    groups: Groups | None = None
    buckets: Buckets | None = None
    state_ranks: int = 1
    by_tokens: bool = False
    by_words: bool = False
    pipeline: Pipelining | None = None
    adapters: Adapters | None = None
    balanced: bool = False

    @property
    def shards(self) -> int:
        """Return the ranks that each parameter is divided among by FSDP."""
        return self.groups.shards if self.groups else 1
