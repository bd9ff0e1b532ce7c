"""HB127: what all ranks must end with alike has the same checksum on each of them."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.grouping import by_value
from hpcbench.reduce.checks import Problem
from hpcbench.reduce.stack import Pass
from hpcbench.units import rank_list

REPLICATED = "replicated"
"""The key of a record's detail for what all ranks must have alike: ``of`` what, ``checksum``."""


def check_replicas(records: Pass) -> Iterator[Problem]:
    """Yield which ranks have another checksum than most; of no rank, where none says one."""
    held = {rank: record.detail[REPLICATED] for rank, record in records.items()
            if REPLICATED in record.detail}
    names = {rank: f"{item['of']} {item['checksum']:08x}" for rank, item in held.items()}
    groups = sorted(by_value(names).values(), key=len)
    if len(groups) > 1:
        others, most = groups[:-1], groups[-1]
        ranks = [rank for group in others for rank in group]
        differ = "differs" if len(ranks) == 1 else "differ"
        yield Problem("HB127", f"rank {rank_list(ranks)}: checksum of {held[ranks[0]]['of']} "
                      f"{differ} from {len(most)} other{'s' * (len(most) > 1)}: the hardware may "
                      "have changed data (silent data corruption), or the library gives ranks "
                      "different sums; run the case again, and see whether it is the same rank",
                      rejects=False)
