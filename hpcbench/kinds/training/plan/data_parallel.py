"""What strategies have in common that give each rank samples of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.layout import Buckets, Groups, Layout
from hpcbench.kinds.training.plan.shares import SPEED_BYTES, is_dynamic
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.traffic import Calls, calls
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

BUCKETS = MappingProxyType({"bucket_mb": Values(25)})
"""torch's default; MiB. A first bucket of 1 MiB, which torch adds, lets exchange begin early."""
BALANCE = MappingProxyType({"balance": Values("static", ("static", "dynamic"))})
"""Not where ranks wait for one another's parameters all the time: they look equally fast then."""
RESHARD = MappingProxyType({"reshard": Values(True, (True, False))})


def replicas(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return as many replicas as ranks: each rank has samples of its own, sharded or not."""
    return Degrees(dp=ranks)


def agreed(work: Training) -> tuple[str, ...]:
    """Return what shards of fp16 call to agree on whether a gradient overflowed."""
    return ("all_reduce",) if work.dtype == "fp16" and work.dp > 1 else ()


def bucketed(work: Training) -> Buckets:
    """Return the buckets of gradients under a training's options."""
    options = dict(work.options)
    return Buckets(int(options["bucket_mb"]),
                   bool(options.get("bucket_view", False)), str(options.get("comm_hook", "none")))


def ddp_layout(work: Training, state_ranks: int = 1) -> Layout:
    """Return the layout of whole models whose gradients are averaged in buckets."""
    return Layout(buckets=bucketed(work), state_ranks=state_ranks,
                  balanced=dict(work.options).get("balance") == "dynamic")


def sharded_groups(work: Training, copies: int = 1) -> Groups:
    """Return how parameters are sharded within each of ``copies`` groups of ranks."""
    return Groups(work.dp // copies, copies, DTYPE_BYTES[work.dtype],
                  reshard=bool(work.option("reshard")), rounds=work.accumulation)


def with_speeds(work: Training, *called: str) -> tuple[str, ...]:
    """Return what a step calls, with the exchange of the ranks' speeds."""
    return (*called, "all_gather") if is_dynamic(work) else called


def speed_calls(work: Training) -> Iterator[Calls]:
    """Yield the exchange of the ranks' speeds, by which samples are divided."""
    if work.dp > 1 and is_dynamic(work):
        yield calls("all_gather", work.dp, [SPEED_BYTES * work.dp])
