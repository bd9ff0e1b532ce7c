"""The deriver of memory: what the rank with most held, beside what was predicted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.kind import Deriver
from hpcbench.kinds.memory.derive.columns import COLUMNS, column_values
from hpcbench.kinds.memory.derive.largest import (
    Largest,
    largest_of,
    measured_training,
    tries_of,
)
from hpcbench.kinds.memory.plan.least import least_bytes
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.training.plan.memory import Memory
from hpcbench.kinds.training.plan.predict import is_predicted, predict
from hpcbench.reduce.results import CaseResult

PARTS = ("parameters", "gradients", "optimizer_state", "activations", "temporary")
"""What the peak is made of; they add up to it."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """What is derived of one case; None where there is no such number.

    Attributes:
        rank: the rank with the highest peak: all that follows is of it, unless it says otherwise.
        held_bytes: what its peak is made of, by PARTS.
        peak_bytes: the sum of these; the most that it held at once.
        overhead_bytes: what the allocator took beyond the peak.
        peak_of: how the peak was measured.
        predicted_bytes: what the plan says of the rank that needs most, by PARTS.
        predicted_peak_bytes: the sum of these; ``moment`` is that of the step.
        deviation: peak over predicted peak, less 1.
        capacity_bytes, capacity_of: what the rank could have had.
        utilisation: peak over capacity.
        least_bytes: parameters, gradients and states of the whole model, each once.
        used_bytes: the peaks of all ranks together.
        efficiency: least over used.
        largest: of a search what it found; all else is of the largest batch that fitted.
    """

    rank: int | None = None
    held_bytes: Mapping[str, int] | None = None
    peak_bytes: int | None = None
    overhead_bytes: int | None = None
    peak_of: str | None = None
    predicted_bytes: Mapping[str, int] | None = None
    predicted_peak_bytes: int | None = None
    moment: str | None = None
    deviation: float | None = None
    capacity_bytes: int | None = None
    capacity_of: str | None = None
    utilisation: float | None = None
    least_bytes: int | None = None
    used_bytes: int | None = None
    efficiency: float | None = None
    largest: Largest | None = None

    def deviation_of(self, part: str) -> float | None:
        """Return a part over what was predicted of it, less 1; None where that is nothing."""
        predicted = (self.predicted_bytes or {}).get(part)
        return (self.held_bytes or {}).get(part, 0) / predicted - 1 if predicted else None


NOTHING_KNOWN = MemoryRecord()


class MemoryDeriver(Deriver):
    """Derives deviations, utilisation and efficiency."""

    record = MemoryRecord
    version = 2
    columns = COLUMNS
    column_values = staticmethod(column_values)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, MemoryRecord]:
        """Return the record of each case whose ranks told what they held."""
        return {item.case.case_id: record for item in items if (record := _record(item))}


def _record(item: CaseResult) -> MemoryRecord | None:
    told = {int(rank): left for rank, left in item.detail.items() if "held" in left}
    if item.status != "ok" or not told or (work_of(item.case).search and not tries_of(item)):
        return None  # without its tries nobody knows of which batch a search tells
    held = {rank: {part: int(left["held"][part]) for part in PARTS} for rank, left in told.items()}
    peaks = {rank: sum(parts.values()) for rank, parts in held.items()}
    rank = max(peaks, key=lambda one: (peaks[one], -one))
    left, capacity = told[rank], told[rank]["capacity"]
    overhead = left["held"]["overhead"]
    work = measured_training(item)
    known = is_predicted(work)
    memory = predict(work).memory if known else Memory()
    least, used = (least_bytes(work) if known else None), sum(peaks.values())
    complete = len(told) == item.case.world_size
    return MemoryRecord(
        rank=rank, held_bytes=held[rank], peak_bytes=peaks[rank],
        # a process that takes what it had before grows by less than it holds
        overhead_bytes=overhead if overhead is not None and overhead >= 0 else None,
        peak_of=left["held"]["of"],
        predicted_bytes=_by_part(memory) if known else None,
        predicted_peak_bytes=memory.total if known else None,
        moment=memory.moment if known else None,
        deviation=peaks[rank] / memory.total - 1 if memory.total else None,
        capacity_bytes=capacity["bytes"], capacity_of=capacity["of"],
        utilisation=peaks[rank] / capacity["bytes"] if capacity["bytes"] else None,
        least_bytes=least, used_bytes=used if complete else None,
        efficiency=least / used if least and complete and used else None,
        largest=largest_of(item, {rank: left["capacity"]["bytes"] for rank, left in told.items()}))


def _by_part(memory: Memory) -> dict[str, int]:
    """Return a prediction by PARTS: its buffers are what is temporary here."""
    return dict(zip(PARTS, memory.parts().values(), strict=True))
