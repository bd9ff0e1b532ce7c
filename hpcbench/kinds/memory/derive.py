"""The deriver of memory: the use of the rank with most, beside the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.memory import plan as workload
from hpcbench.kinds.memory.plan import PARTS
from hpcbench.kinds.training.derive.deriver import OF_TRAINING, training_values
from hpcbench.kinds.training.plan.memory import Memory
from hpcbench.kinds.training.plan.predict import is_predicted, predict
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.workload import TRIES
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CaseColumn, ColumnValues, Deriver, Fact, ReadSamples
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.columns import PURE, TEXT


@dataclass(frozen=True, slots=True)
class Largest:
    """The result of a search; None where there is no such number. Batches are a replica's samples.

    ``too_large_batch``: the fewest that did not fit; None: all tried did. ``limit_bytes``: the
    least of all ranks. ``predicted_largest_batch``: 0: none. ``batch_deviation``: largest over
    predicted, less 1.
    """

    largest_batch: int
    too_large_batch: int | None = None
    too_large_ended: str | None = None
    too_large_reason: str = ""
    tries: int = 0
    limit_bytes: int | None = None
    predicted_largest_batch: int | None = None
    batch_deviation: float | None = None


def tries_of(item: CaseResult) -> list[Mapping[str, Any]]:
    tries: list[Mapping[str, Any]] = item.detail.get("0", {}).get(TRIES, [])
    return tries


def measured_training(item: CaseResult) -> Training:
    """Return the training that the numbers of a case describe; a search gives the one it found."""
    work = workload.work_of(item.case)
    fits = workload.bracket_of(tries_of(item))[0] if work.search else 0
    return workload.with_batch(work.training, fits) if fits else work.training


def largest_of(item: CaseResult, limits: Mapping[int, int]) -> Largest | None:
    work, tries = workload.work_of(item.case), tries_of(item)
    if work.search is None or not tries:
        return None
    limit_bytes, (fits, failed) = min(limits.values()), workload.bracket_of(tries)
    expected = workload.predicted_largest(work.training, work.search.unit, limit_bytes)
    failed = failed or {}
    return Largest(
        largest_batch=fits, too_large_batch=failed.get("batch"),
        too_large_ended=failed.get("ended"), too_large_reason=failed.get("reason", ""),
        tries=len(tries), limit_bytes=limit_bytes, predicted_largest_batch=expected,
        batch_deviation=fits / expected - 1 if expected else None)


_BYTES = {
    **dict.fromkeys((f"{name}_bytes" for name in PARTS), "part of the peak"),
    "overhead_bytes": "taken by the allocator beyond the peak",
    "peak_bytes": "most that the rank with most held at once",
    "predicted_peak_bytes": "predicted of the rank that needs most",
    "capacity_bytes": "memory that this rank could have had",
    "least_bytes": "parameters, gradients and states of the model, each once",
    "used_bytes": "peaks of all ranks together"}
_SHARES = {"deviation": "peak_bytes / predicted_peak_bytes - 1",
           "utilisation": "peak_bytes / capacity_bytes", "efficiency": "least_bytes / used_bytes"}
_SEARCHED = {
    "largest_batch": "search: most samples of a replica that fitted on every rank",
    "too_large_batch": "search: the fewest tried that did not fit",
    "predicted_largest_batch": "search: predicted to be the most that fit",
    "tries": "search: batches that were tried"}
_SEARCH = (
    *(CaseColumn(name, PURE, text, int) for name, text in _SEARCHED.items()),
    CaseColumn("limit_bytes", "bytes", "search: what the training may take on a rank; the least "
               "of all ranks", int),
    CaseColumn("too_large_ended", TEXT, "search: how too_large_batch ended: out of memory, died",
               str),
    CaseColumn("batch_deviation", PURE, "largest_batch / predicted_largest_batch - 1"))
COLUMNS = (*OF_TRAINING,
           *(CaseColumn(name, "bytes", text, int) for name, text in _BYTES.items()),
           *(CaseColumn(name, PURE, text) for name, text in _SHARES.items()), *_SEARCH)


def column_values(item: CaseResult, record: MemoryRecord | None) -> dict[str, Any]:
    values = training_values(replace(item, case=replace(
        item.case, workload=measured_training(item))))
    if record is None:
        return values
    by_part = record.held_bytes or {}
    found = record.largest
    searched = {column.name: getattr(found, column.name) for column in _SEARCH} if found else {}
    return {**values, **searched, **{f"{name}_bytes": by_part.get(name) for name in PARTS},
            **{name: getattr(record, name) for name in (*_BYTES, *_SHARES)
               if name.removesuffix("_bytes") not in PARTS}}


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The numbers of the rank with the highest peak; None where there is no such number.

    ``held_bytes`` and ``predicted_bytes`` are by PARTS and add up to the peaks; predictions are of
    the rank that needs most, at ``moment`` of the step. ``least_bytes``: parameters, gradients and
    states of the model, each once; ``efficiency``: that over the peaks of all ranks
    (``used_bytes``). ``largest``: a search's result; all else is then of the largest batch that
    fitted.
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
        predicted = (self.predicted_bytes or {}).get(part)
        return (self.held_bytes or {}).get(part, 0) / predicted - 1 if predicted else None


NOTHING_KNOWN = MemoryRecord()


class MemoryDeriver(Deriver):
    """Derives deviations, utilisation and efficiency."""

    record = MemoryRecord
    version = 2
    columns = COLUMNS

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, MemoryRecord]:
        return {item.case.case_id: record for item in items if (record := _record(item))}

    def facts(
        self, item: CaseResult, record: MemoryRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        yield ColumnValues(lambda: column_values(item, record))


def _record(item: CaseResult) -> MemoryRecord | None:
    ranks = {int(rank): left for rank, left in item.detail.items() if "held" in left}
    is_search = workload.work_of(item.case).search is not None
    if item.status != "ok" or not ranks or (is_search and not tries_of(item)):
        return None  # without its tries the batch of a search is unknown
    by_rank = {rank: {part: int(left["held"][part]) for part in PARTS}
               for rank, left in ranks.items()}
    peaks = {rank: sum(parts.values()) for rank, parts in by_rank.items()}
    rank = max(peaks, key=lambda one: (peaks[one], -one))
    left, capacity = ranks[rank], ranks[rank]["capacity"]
    overhead = left["held"]["overhead"]
    work = measured_training(item)
    known = is_predicted(work)
    memory = predict(work).memory if known else Memory()
    least, used = (workload.least_bytes(work) if known else None), sum(peaks.values())
    complete = len(ranks) == item.case.world_size
    return MemoryRecord(
        rank=rank, held_bytes=by_rank[rank], peak_bytes=peaks[rank],
        # a process that takes what it had before grows by less than it holds
        overhead_bytes=overhead if overhead is not None and overhead >= 0 else None,
        peak_of=left["held"]["of"],
        # the buffers of a prediction are what is temporary here
        predicted_bytes=dict(zip(PARTS, memory.parts().values(), strict=True)) if known else None,
        predicted_peak_bytes=memory.total if known else None,
        moment=memory.moment if known else None,
        deviation=peaks[rank] / memory.total - 1 if memory.total else None,
        capacity_bytes=capacity["bytes"], capacity_of=capacity["of"],
        utilisation=peaks[rank] / capacity["bytes"] if capacity["bytes"] else None,
        least_bytes=least, used_bytes=used if complete else None,
        efficiency=least / used if least and complete and used else None,
        largest=largest_of(item, {rank: left["capacity"]["bytes"] for rank, left in ranks.items()}))
