"""Which class runs which collective."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.all_gather import AllGather
from hpcbench.kinds.collective.run.all_reduce import AllReduce
from hpcbench.kinds.collective.run.all_to_all import AllToAll
from hpcbench.kinds.collective.run.barrier import Barrier
from hpcbench.kinds.collective.run.broadcast import Broadcast
from hpcbench.kinds.collective.run.gather import Gather
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.kinds.collective.run.reduce import Reduce
from hpcbench.kinds.collective.run.reduce_scatter import ReduceScatter
from hpcbench.kinds.collective.run.scatter import Scatter
from hpcbench.kinds.collective.run.send_recv import SendRecv
from hpcbench.kinds.collective.run.uneven import (
    UnevenAllGather,
    UnevenAllToAll,
    UnevenReduceScatter,
)
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


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
