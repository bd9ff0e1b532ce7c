"""Strategy ``zero1``: DDP whose optimizer states are divided among the ranks (ZeRO stage 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from hpcbench.kinds.training.plan.data_parallel import (
    BALANCE,
    BUCKETS,
    ddp_layout,
    replicas,
    speed_calls,
    with_speeds,
)
from hpcbench.kinds.training.plan.shares import unfit_to_balance
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.traffic import Calls, calls
from hpcbench.kinds.training.plan.workload import Training


def _traffic(work: Training, held: Sequence[Tensor]) -> Iterator[Calls]:
    """Yield a broadcast of each parameter by the rank that has updated it."""
    if work.dp > 1:
        yield calls("broadcast", work.dp, [4 * item.elements for item in held])
    yield from speed_calls(work)


SPEC = StrategySpec(
    name="zero1",
    meaning="DDP whose optimizer states are divided among the ranks (ZeRO stage 1)",
    runner="hpcbench.kinds.training.run.strategies.zero1:Zero1", order=30,
    degrees=replicas, unfit=unfit_to_balance,
    layout=lambda work: ddp_layout(work, state_ranks=work.dp),
    calls=lambda work: with_speeds(work, "all_reduce", "broadcast"), traffic=_traffic,
    options=MappingProxyType({**BUCKETS, **BALANCE}), later_options=("balance",))
