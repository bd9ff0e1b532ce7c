"""Which class runs which collective."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.plan.workload import Collective, Workload
from hpcbench.workloads.collectives.all_gather import AllGather
from hpcbench.workloads.collectives.all_reduce import AllReduce
from hpcbench.workloads.collectives.all_to_all import AllToAll
from hpcbench.workloads.collectives.barrier import Barrier
from hpcbench.workloads.collectives.broadcast import Broadcast
from hpcbench.workloads.collectives.gather import Gather
from hpcbench.workloads.collectives.operation import Operation, Place
from hpcbench.workloads.collectives.reduce import Reduce
from hpcbench.workloads.collectives.reduce_scatter import ReduceScatter
from hpcbench.workloads.collectives.scatter import Scatter
from hpcbench.workloads.collectives.send_recv import SendRecv
from hpcbench.workloads.collectives.uneven import (
    UnevenAllGather,
    UnevenAllToAll,
    UnevenReduceScatter,
)


def make_operation(spec: Collective, place: Place) -> Operation:
    """Allocate the collective named by ``spec`` on this rank."""
    if spec.split != "even":
        uneven: dict[str, type[Operation]] = {
            "all_gather": UnevenAllGather, "reduce_scatter": UnevenReduceScatter,
            "all_to_all": UnevenAllToAll}
        return uneven[spec.collective](spec, place)
    operations: dict[str, type[Operation]] = {
        "all_reduce": AllReduce, "all_gather": AllGather, "reduce_scatter": ReduceScatter,
        "all_to_all": AllToAll, "broadcast": Broadcast, "reduce": Reduce, "gather": Gather,
        "scatter": Scatter, "send_recv": SendRecv, "barrier": Barrier,
    }
    return operations[spec.collective](spec, place)


def other_operation(work: Workload, place: Place) -> Operation:
    """Allocate another collective than is planned: a broadcast, or a barrier instead of one."""
    count = max(work.count, 1) if isinstance(work, Collective) else 1
    stray = Collective(
        collective="broadcast", dtype=work.dtype, op=None, root=0, in_place=True,
        requested_bytes=0, size_bytes=0, count=count)
    if work.name == "broadcast":
        stray = replace(stray, collective="barrier", root=None)
    return make_operation(stray, place)
