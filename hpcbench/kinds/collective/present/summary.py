"""What summary.json and summary.csv hold of collectives (docs/method.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.collective.derive.record import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.operations.collectives import summary_keys
from hpcbench.reduce.results import CaseResult
from hpcbench.units import to_gb_per_s

COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "op", "in_place", "size_bytes", "split",
    "groups", "n", "median_s", "p95_s", "algbw_gb_per_s", "busbw_gb_per_s", "mode", "fold",
    "ci_low_s", "ci_high_s", "ci_reliable", "device_memory",
)


def row(item: CaseResult, record: CollectiveRecord | None) -> dict[str, Any]:
    """Return what only collectives have, and their rates."""
    rates = record.bandwidth if record else None
    return {
        **asdict(collective_of(item.case)), "busbw_factor": record and record.busbw_factor,
        "algbw_gb_per_s": to_gb_per_s(rates.algbw_bytes_per_s) if rates else None,
        "busbw_gb_per_s": to_gb_per_s(rates.busbw_bytes_per_s) if rates else None}


def sections(
    rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
    derived: Mapping[str, CollectiveRecord],
) -> dict[str, Any]:
    """Return ``communication``: the ok rows under the names that users of other tools look for."""
    return {"communication": {
        name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
               if row["collective"] == collective and row["status"] == "ok"]
        for collective, name in summary_keys().items()
    }}
