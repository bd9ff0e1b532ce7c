"""What tables and charts of all tests have in common."""

from __future__ import annotations

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural
from hpcbench.views.table import Range
from hpcbench.views.words import backend_text, device_type


def where(item: CaseResult) -> str:
    """Return the device, the number of ranks, and the backend with its variables."""
    return f"{device_type(item)}  {plural(item.case.world_size, 'rank')}  {backend_text(item.case)}"


def own_range(record: HardwareRecord | None) -> Range | None:
    """Return the rates of the slowest and of the fastest rank, each in its own times."""
    own = record.rank_rates if record else ()
    return Range(min(own), max(own)) if own else None
