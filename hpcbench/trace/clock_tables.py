"""Clock models and the checks of them as HDF5 tables, for tools that read no notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import h5py
import numpy as np

from hpcbench.measure.clock import ClockCheck, ClockModel
from hpcbench.trace.columns import write_column

MODEL_UNITS = MappingProxyType({
    "t_ref_ns": "ns", "slope": "ns/ns", "offset_ns": "ns", "bound_ns": "ns",
    "slope_bound": "ns/ns", "residual_ns": "ns", "parent": "", "n_used": "", "n_rejected": ""})
"""Field of ClockModel -> unit."""
CHECK_UNITS = MappingProxyType({"local_ns": "ns", "error_ns": "ns", "bound_ns": "ns"})
"""Field of ClockCheck -> unit."""
_INTEGERS = frozenset({
    "rank", "t_ref_ns", "offset_ns", "parent", "n_used", "n_rejected", "local_ns"})
Ranked = Sequence[tuple[int, ClockModel]] | Sequence[tuple[int, ClockCheck]]


def write_clock_tables(
    file: h5py.File, models: Sequence[tuple[int, ClockModel]],
    checks: Sequence[tuple[int, ClockCheck]],
) -> None:
    """Write ``/clock`` and ``/clock_checks``: one row for each (rank, model or check)."""
    _write_table(file, "clock", models, MODEL_UNITS)
    _write_table(file, "clock_checks", checks, CHECK_UNITS)


def _write_table(file: h5py.File, group: str, rows: Ranked, units: Mapping[str, str]) -> None:
    columns = {"rank": [rank for rank, _ in rows],
               **{name: [getattr(item, name) for _, item in rows] for name in units}}
    for name, values in columns.items():
        dtype = np.int64 if name in _INTEGERS else np.float64
        write_column(file, f"{group}/{name}", np.array(values, dtype=dtype), units.get(name, ""))
