"""What supervisors read of the machine beside what they measure: tables, columns, stored form.

All values are int64. A column is a counter, of which only differences mean something, or a value
of the moment. In a trace, times are of the rank's own clock, as all its stamps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.columns import PURE, Contents, Described, read_column, write_column

GROUP = "telemetry"
TELEMETRY_NOTE = "telemetry"
"""The note of what a rank reads and what it cannot read; the last one holds."""
NOT_READ = -1
KEYS = ("time_ns", "device")
"""What each row begins with: when it was read, and the number of the device among its table's."""
Rows = npt.NDArray[np.int64]
"""Rows of one table: (reading, KEYS and columns)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A column: its name, units, meaning, and whether it counts up."""

    name: str
    units: str
    text: str
    counts: bool = False


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table: what a row is of, who reads it, and its columns."""

    text: str
    by: str
    columns: tuple[Reading, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


BY_RANK, BY_NODE = "each rank", "the lowest rank of each node"


def _counter(name: str, units: str, text: str) -> Reading:
    return Reading(name, units, text, counts=True)


TABLES: Mapping[str, ReadTable] = {
    "process": ReadTable("the rank's worker", BY_RANK, (
        Reading("pid", PURE, "process id of the worker"),
        _counter("cpu_ns", "ns", "CPU time of all its threads"),
        _counter("wait_ns", "ns", "time in which its main thread was ready and had no core"),
        _counter("minor_faults", PURE, "page faults without input or output"),
        _counter("major_faults", PURE, "page faults that read from a disk"),
        Reading("rss_bytes", "bytes", "resident memory"),
    )),
    "cpu": ReadTable("all cores of a node", BY_NODE, (
        _counter("user_ns", "ns", "time of all cores in processes"),
        _counter("system_ns", "ns", "time of all cores in the kernel and its interrupts"),
        _counter("idle_ns", "ns", "idle time of all cores, waiting for a disk included"),
        _counter("steal_ns", "ns", "time that a hypervisor gave to other machines"),
    )),
    "frequency": ReadTable("up to 8 cores of a node", BY_NODE, (
        Reading("lowest_khz", "kHz", "clock of the slowest of these cores"),
        Reading("mean_khz", "kHz", "their mean clock"),
        Reading("highest_khz", "kHz", "clock of the fastest"),
        _counter("throttled", PURE, "times that heat slowed one of them or its package"),
    )),
    "energy": ReadTable("a RAPL domain of a node", BY_NODE, (
        _counter("energy_uj", "uJ", "energy since the first reading"),
    )),
    "network": ReadTable("a network interface or InfiniBand port of a node", BY_NODE, (
        _counter("received_bytes", "bytes", "bytes received, headers included"),
        _counter("sent_bytes", "bytes", "bytes sent, headers included"),
        _counter("dropped", PURE, "packets dropped, in both directions"),
        _counter("errors", PURE, "errors, in both directions"),
    )),
    "gpu": ReadTable("the rank's GPU", BY_RANK, (
        Reading("power_mw", "mW", "power"),
        _counter("energy_mj", "mJ", "energy since the driver was loaded"),
        Reading("sm_mhz", "MHz", "clock of the multiprocessors"),
        Reading("memory_mhz", "MHz", "clock of the memory"),
        Reading("celsius", "degrees C", "temperature"),
        Reading("throttle_reasons", PURE, "bits of NVML's reasons for a clock that is not the "
                "highest, added up"),
        Reading("gpu_percent", "percent", "share of the last period with a kernel"),
        Reading("memory_percent", "percent", "share of the last period with memory accesses"),
        Reading("memory_used_bytes", "bytes", "memory in use"),
        _counter("nvlink_sent_bytes", "bytes", "data sent over all NVLinks"),
        _counter("nvlink_received_bytes", "bytes", "data received over all NVLinks"),
        _counter("pcie_sent_bytes", "bytes", "bytes sent over PCIe"),
        _counter("pcie_received_bytes", "bytes", "bytes received over PCIe"),
        _counter("ecc_corrected", PURE, "corrected memory errors since the driver was loaded"),
        _counter("ecc_uncorrected", PURE, "uncorrected memory errors since the driver was loaded"),
        Reading("xid", PURE, "last XID that the driver reported; 0 of none"),
    )),
}
THROTTLE_REASONS: Mapping[int, str] = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
    0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of nvmlClocksEventReason* in nvml.h that slow a GPU down."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank reads: ``devices`` of each table, and by table or TABLE.COLUMN why not."""

    rate_hz: float
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def contents(own: Contents, clock: str) -> Contents:
    """Return what the group holds; ``own`` are further columns of each table."""
    parts = {GROUP: Described("what was read of the machine; absent where nothing was read")}
    for name, table in TABLES.items():
        at = f"{GROUP}/{name}"
        parts[at] = Described(f"a row for each reading of {table.text}, by {table.by}")
        parts |= {f"{at}/{column}": what for column, what in own.items()}
        parts[f"{at}/time_ns"] = Described(f"when it was read, on {clock}", "ns")
        parts[f"{at}/device"] = Described(
            "number of the device among those that the rank names for the table", PURE)
        parts |= {f"{at}/{column.name}": Described(
            column.text + (" (counts up)" if column.counts else "") + "; -1 if not read",
            column.units) for column in table.columns}
    return parts


def as_today(table: str, columns: Sequence[str], values: npt.NDArray[np.int64]) -> Rows:
    """Return rows (reading, column) with KEYS and the columns that the table has today.

    Raises ValueError without a time or a device.
    """
    if not set(KEYS) <= set(columns):
        raise ValueError(f"readings without {' or '.join(KEYS)}")
    names = (*KEYS, *TABLES[table].names)
    rows = np.full((len(values), len(names)), NOT_READ, dtype=np.int64)
    for at, name in enumerate(columns):
        if name in names:
            rows[:, names.index(name)] = values[:, at]
    return rows


def write_tables(file: h5py.File, tables: Mapping[str, Rows]) -> None:
    for table, rows in tables.items():
        for at, name in enumerate((*KEYS, *TABLES[table].names)):
            write_column(file, f"{GROUP}/{table}/{name}", rows[:, at])


def read_tables(file: h5py.File) -> dict[str, Rows]:
    """Return the tables in a file. Raises ValueError where one is none."""
    found: dict[str, Rows] = {}
    for table in file.get(GROUP, ()):
        if table in TABLES:
            held = [*file[f"{GROUP}/{table}"]]
            columns = [read_column(file, f"{GROUP}/{table}/{name}") for name in held]
            found[table] = as_today(table, held, np.stack(columns, axis=1))
    return found
