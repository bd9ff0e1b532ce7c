"""HB127: what all ranks must end with alike has the same checksum on each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.reduce.checks import Problem
from hpcbench.reduce.stack import Pass
from hpcbench.units import by_value, rank_list

REPLICATED = "replicated"
"""The key of a record's detail for what all ranks must have alike: ``of`` what, ``checksum``."""


def check_replicas(records: Pass) -> Iterator[Problem]:
    """Yield which ranks have another checksum than most of them, or that there is no such most."""
    held = {rank: record.detail[REPLICATED] for rank, record in records.items()
            if REPLICATED in record.detail}
    names = {rank: f"{item['of']} {item['checksum']:08x}" for rank, item in held.items()}
    groups = sorted(by_value(names).values(), key=len)
    if len(groups) > 1:
        yield Problem("HB127", f"{_who_differs(groups, str(held[groups[0][0]]['of']))}: the "
                      "hardware may have changed data (silent data corruption), or the library "
                      "gives ranks different sums; run the case again, and see whether it is the "
                      "same rank", rejects=False)


def _who_differs(groups: Sequence[Sequence[int]], held: str) -> str:
    """Return the ranks that most others contradict; with 2 ranks, say, nothing tells which."""
    others, most = [rank for group in groups[:-1] for rank in group], groups[-1]
    if len(most) <= len(others):
        return (f"rank {rank_list([*others, *most])}: checksums of {held} differ, and no value is "
                "that of most ranks")
    differ = "differs" if len(others) == 1 else "differ"
    return (f"rank {rank_list(others)}: checksum of {held} {differ} from {len(most)} "
            f"other{'s' * (len(most) > 1)}")
