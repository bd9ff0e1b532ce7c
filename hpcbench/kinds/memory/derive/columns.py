"""The columns of this kind in ``/cases`` of results.h5."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbench.kinds.memory.derive.largest import measured_training
from hpcbench.kinds.training.derive.columns import OF_TRAINING, training_values
from hpcbench.reduce.case_columns import CaseColumn
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.described import PURE, TEXT

if TYPE_CHECKING:
    from hpcbench.kinds.memory.derive.deriver import MemoryRecord

_OF_PEAK = ("parameters", "gradients", "optimizer_state", "activations", "temporary")
_BYTES = {
    **{f"{name}_bytes": f"{name.replace('_', ' ')} in the peak" for name in _OF_PEAK},
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
    """Return a case's values of COLUMNS."""
    values = training_values(replace(item, case=replace(
        item.case, workload=measured_training(item))))
    if record is None:
        return values
    held = record.held_bytes or {}
    found = record.largest
    searched = {column.name: getattr(found, column.name) for column in _SEARCH} if found else {}
    return {**values, **searched, **{f"{name}_bytes": held.get(name) for name in _OF_PEAK},
            **{name: getattr(record, name) for name in (*_BYTES, *_SHARES)
               if name.removesuffix("_bytes") not in _OF_PEAK}}
