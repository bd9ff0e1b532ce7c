"""Which class runs which collective: the one that its row names."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from hpcbench.errors import CaseError
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


def make_operation(spec: Collective, place: Place) -> Operation:
    """Allocate the collective named by ``spec`` on this rank. Raises CaseError if it is not here.

    A module that begins with a dot is one of this package.
    """
    traits = spec.traits
    path = traits.operation if spec.split == "even" else traits.uneven_operation
    if traits.problem:
        raise CaseError(f"{traits.problem}; install its plug-in on every node")
    module, _, name = path.partition(":")
    try:
        operation: type[Operation] = getattr(import_module(module, __package__), name)
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{path} of {spec.collective} cannot be loaded: {error}") from error
    return operation(spec, place)


def other_operation(work: Workload, place: Place) -> Operation:
    """Allocate another collective than is planned: a broadcast, or a barrier instead of one."""
    count = max(work.count, 1) if isinstance(work, Collective) else 1
    stray = Collective(
        collective="broadcast", dtype=work.dtype, op=None, root=0, in_place=True,
        requested_bytes=0, size_bytes=0, count=count)
    if work.name == "broadcast":
        stray = replace(stray, collective="barrier", root=None)
    return make_operation(stray, place)
