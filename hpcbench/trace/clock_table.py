"""Synchronisations of clocks as an HDF5 table, for tools that read no notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import h5py
import numpy as np

from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.columns import text_column, write_column

MODEL_UNITS = MappingProxyType({
    "t_ref_ns": "ns", "slope": "ns/ns", "offset_ns": "ns", "bound_ns": "ns",
    "slope_bound": "ns/ns", "residual_ns": "ns", "parent": "", "n_used": "", "n_rejected": ""})
"""Field of ClockModel -> unit."""
_FLOATS = frozenset({"slope", "bound_ns", "slope_bound", "residual_ns"})


def write_clocks(file: h5py.File, rows: Sequence[tuple[int, SyncRecord]]) -> None:
    """Write ``/clock``, a row for each (rank, synchronisation).

    Columns: rank, identity, n_clocks, local_ns and realtime_ns; the fields of the model; error and
    bound of the check, NaN where there was none.
    """
    records = [record for _, record in rows]
    _write(file, "rank", [rank for rank, _ in rows])
    write_column(file, "clock/identity", text_column(record.identity for record in records))
    for name, unit in (("n_clocks", ""), ("local_ns", "ns"), ("realtime_ns", "ns")):
        _write(file, name, [getattr(record, name) for record in records], unit)
    for name, unit in MODEL_UNITS.items():
        _write(file, name, [getattr(record.model, name) for record in records], unit)
    for name in ("error_ns", "bound_ns"):
        values = [getattr(record.check, name, math.nan) for record in records]
        write_column(file, f"clock/check_{name}", np.array(values, dtype=np.float64), "ns")


def _write(file: h5py.File, name: str, values: Sequence[float], unit: str = "") -> None:
    dtype = np.float64 if name in _FLOATS else np.int64
    write_column(file, f"clock/{name}", np.array(values, dtype=dtype), unit)
