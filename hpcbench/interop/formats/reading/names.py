"""Names in other programs: of collectives, of nccl-tests' programs and element types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.errors import UsageError
from hpcbench.operations.collectives import collectives

PROGRAMS: Mapping[str, str] = MappingProxyType({
    "all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf", "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf", "reduce": "reduce_perf", "gather": "gather_perf",
    "scatter": "scatter_perf", "send_recv": "sendrecv_perf"})
"""Our name of a collective -> its program in nccl-tests."""
TYPES: Mapping[str, str] = MappingProxyType({
    "fp32": "float", "fp64": "double", "fp16": "half", "bf16": "bfloat16", "int32": "int32",
    "int64": "int64", "uint8": "uint8"})
"""Our name of an element type -> nccl-tests'."""
PARTS_IN_OSU = ("all_gather", "all_to_all", "gather", "scatter")
"""Collectives whose size is one rank's part in OSU, and that of all parts here."""
_OTHERS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherbase": "all_gather",
    "allgatherv": "all_gather", "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter", "alltoall": "all_to_all", "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all", "bcast": "broadcast", "sendrecv": "send_recv",
    "hypercube": "hypercube", "allall": "all_to_all",
}


def our_name(theirs: str) -> str:
    """Return our name of a collective; "" if it is none that is known.

    Only letters count: NCCL Inspector's All2All is "allall"."""
    word = re.sub(r"[^a-z]", "", theirs.lower())
    if word in _OTHERS:
        return _OTHERS[word]
    return next((name for name in collectives() if name.replace("_", "") == word), "")


def known_collective(given: str) -> str:
    """Return our name of what a user gave; "" of nothing. Raises UsageError for an unknown one."""
    collective = our_name(given) if given else ""
    if given and not collective:
        raise UsageError(f"--collective {given}: known are {', '.join(collectives())}")
    return collective
