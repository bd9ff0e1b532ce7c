"""A step of a case as rank 0 of a world that does not exist: what it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import psutil
import torch

from hpcbench.backends.failures import one_line
from hpcbench.backends.fake_tensors import NeedsValues, fake_tensors
from hpcbench.backends.ledger import Ledger
from hpcbench.backends.rehearsal import open_rehearsal
from hpcbench.errors import CaseError
from hpcbench.measure.garbage import no_garbage_collection
from hpcbench.operations.operation import AnyOperation, close
from hpcbench.operations.place import Place
from hpcbench.plan.case import Case

Opener = Callable[[Place], AnyOperation]
"""What sets the operation of a case up."""


SMALL_BYTES = 2**25
"""What a case may take with memory: so small ones are tried sooner than without."""


class DryStep(NamedTuple):
    """Collective -> how often it was called, and with how many bytes together.

    ``needed``: what could not do without values, so that the case was set up with memory.
    """

    calls: dict[str, tuple[int, int]]
    needed: str = ""


def dry_step(case: Case, opened: Opener) -> DryStep:
    """Set the case up and call it; if it is large, with tensors that have no memory.

    Raises CaseError if it cannot, and rank 0 does not fit the memory that is available.
    """
    needed = case.host_needs("cpu")
    if needed <= SMALL_BYTES:
        return DryStep(_calls_of(case, opened))
    try:
        with fake_tensors(), no_garbage_collection():  # these have no memory, and it takes long
            return DryStep(_calls_of(case, opened))
    except NeedsValues as error:
        missing = one_line(error)
    available = psutil.virtual_memory().available
    if needed > available:
        raise CaseError(f"the case reads values of tensors ({missing}), so it takes memory: "
                        f"rank 0 needs {needed} bytes, {available} are available here")
    return DryStep(_calls_of(case, opened), missing)


def _calls_of(case: Case, opened: Opener) -> dict[str, tuple[int, int]]:
    """Return what rank 0 calls.

    What is counted is the last call: the first of some operations calls more.
    """
    ledger = Ledger()
    world = open_rehearsal(case.world_size, ledger)
    operation = opened(Place(0, case.world_size, world, torch.device("cpu")))
    for _ in range(case.workload.rehearsal_calls()):
        operation.prepare()
        ledger.tally.clear()
        operation.run()
    counted = {name: (len(sizes), sum(sizes)) for name, sizes in ledger.tally.items()}
    close(operation)
    return counted
