"""Which class runs which collective."""

from __future__ import annotations

from hpcbench.plan.case import Collective
from hpcbench.workloads.collectives.all_gather import AllGather
from hpcbench.workloads.collectives.all_reduce import AllReduce
from hpcbench.workloads.collectives.all_to_all import AllToAll
from hpcbench.workloads.collectives.barrier import Barrier
from hpcbench.workloads.collectives.broadcast import Broadcast
from hpcbench.workloads.collectives.operation import Operation, Place
from hpcbench.workloads.collectives.reduce_scatter import ReduceScatter
from hpcbench.workloads.collectives.send_recv import SendRecv


def make_operation(spec: Collective, place: Place) -> Operation:
    """Allocate the collective named by ``spec`` on this rank."""
    operations: dict[str, type[Operation]] = {
        "all_reduce": AllReduce, "all_gather": AllGather, "reduce_scatter": ReduceScatter,
        "all_to_all": AllToAll, "broadcast": Broadcast, "send_recv": SendRecv, "barrier": Barrier,
    }
    return operations[spec.collective](spec, place)
