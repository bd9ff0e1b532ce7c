"""Names of collectives in other programs -> ours."""

from __future__ import annotations

import re

from hpcbench.errors import UsageError
from hpcbench.operations.collectives import collectives

_OTHERS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherbase": "all_gather",
    "allgatherv": "all_gather", "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter", "alltoall": "all_to_all", "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all", "bcast": "broadcast", "sendrecv": "send_recv",
    "hypercube": "hypercube",
}


def our_name(theirs: str) -> str:
    """Return our name of a collective; "" if it is none that is known."""
    word = re.sub(r"[^a-z]", "", theirs.lower())
    if word in _OTHERS:
        return _OTHERS[word]
    return next((name for name in collectives() if name.replace("_", "") == word), "")


def known_collective(given: str) -> str:
    """Return our name of what a user gave; "" of nothing. Raises UsageError for an unknown one."""
    found = our_name(given) if given else ""
    if given and not found:
        raise UsageError(f"--collective {given}: known are {', '.join(collectives())}")
    return found
