"""Columns and texts in HDF5, and their descriptions: by attributes ``h5dump -A`` explains every
part. Each group and dataset has ``description`` and ``units``; numbered values or bits have
``values`` or ``bits``. Tables of telemetry: int64 columns that are counters or values of the
moment, times of the rank's own clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from functools import cache
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.texts import to_json, valid

PURE, TEXT, LINES = "1", "text", "JSON lines"
"""Units of data without any: a pure number, a text, and one text of lines that are JSON each."""
ROOT = "/"
_TEXT = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
_ONE = h5py.h5s.create(h5py.h5s.SCALAR)


@dataclass(frozen=True, slots=True)
class Described:
    """The meaning and units of a group or a dataset; ``values`` or ``bits`` name numbers."""

    text: str
    units: str = ""
    values: Sequence[str] = ()
    bits: Sequence[str] = ()


Contents = Mapping[str, Described]
"""Path below the root, or ROOT, -> its description."""


def describe(file: h5py.File, contents: Contents, attributes: Mapping[str, str]) -> None:
    """Set the attributes of everything in the file. Raises KeyError for a part not described."""
    file.attrs["attributes"] = [f"{name}: {attributes[name]}" for name in sorted(file.attrs)]
    _set(file.id, contents[ROOT])
    file.visit(lambda name: _set(h5py.h5o.open(file.id, name.encode()), contents[name]))


def _set(item: h5py.h5g.GroupID | h5py.h5d.DatasetID, what: Described) -> None:
    for name in ("description", "units", "values", "bits"):
        text = what.text if name == "description" else getattr(what, name)
        if text:
            value = np.array(text, dtype=object)
            space = h5py.h5s.create_simple(value.shape) if value.shape else _ONE
            h5py.h5a.create(item, name.encode(), _TEXT, space).write(value)


CHUNK_ROWS = 2048
"""Reading one case of 200 rows unpacks 16 kB per column; larger chunks hardly pack better."""
LEVEL = 1
Filters = Literal["shuffle and gzip", "scale-offset"]
GZIP: Filters = "shuffle and gzip"
RANGES: Filters = "scale-offset"
"""HDF5's lossless scale-offset: noise is written in a quarter of gzip's time, read in half."""
_WRITTEN_ROWS = 8 * CHUNK_ROWS
_DEFLATE_AT_MOST = 1032
_SMALL_BYTES = 2**20


def write_column(file: h5py.File, name: str, values: npt.NDArray[Any]) -> None:
    """Store a column that can grow, packed without loss."""
    long = values.dtype == np.int64 and values.size >= CHUNK_ROWS  # else gzip takes less space
    column = _new_column(file, name, RANGES if long else GZIP, values.dtype, values.size)
    column.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))


def _new_column(
    file: h5py.File, name: str, filters: Filters, dtype: npt.DTypeLike, rows: int,
) -> h5py.h5d.DatasetID:
    """Make a column by h5py's lower level (a third of the time of ``create_dataset``)."""
    return h5py.h5d.create(
        file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype), logical=True),
        h5py.h5s.create_simple((rows,), (h5py.h5s.UNLIMITED,)),
        dcpl=_layout(filters), lcpl=_within_groups())


@cache
def _layout(filters: Filters) -> h5py.h5p.PropDCID:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_obj_track_times(False)
    layout.set_chunk((CHUNK_ROWS,))
    if filters == RANGES:
        layout.set_scaleoffset(h5py.h5z.SO_INT, h5py.h5z.SO_INT_MINBITS_DEFAULT)
    else:
        layout.set_shuffle()
        layout.set_deflate(LEVEL)
    return layout


@cache
def _within_groups() -> h5py.h5p.PropLCID:
    """Return the way of linking that makes the groups of a path."""
    linking = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    linking.set_create_intermediate_group(True)
    return linking


class GrowingColumn:
    """An int64 column that is written some chunks at a time; `finish` writes the rest."""

    def __init__(self, file: h5py.File, name: str, filters: Filters = GZIP) -> None:
        self._dataset = h5py.Dataset(_new_column(file, name, filters, "<i8", 0))
        self._waiting: list[npt.NDArray[np.int64]] = []
        self._n_waiting = 0
        self.rows = 0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        self._waiting.append(values)
        self._n_waiting += values.size
        self.rows += values.size
        if self._n_waiting >= _WRITTEN_ROWS:
            self.finish()

    def finish(self) -> None:
        if self._waiting:
            self._dataset.resize((self.rows,))
            self._dataset[self.rows - self._n_waiting:] = (
                np.concatenate(self._waiting) if len(self._waiting) > 1 else self._waiting[0])
            self._waiting, self._n_waiting = [], 0


def text_column(texts: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """Return texts as fixed-length UTF-8, which any HDF5 tool reads."""
    encoded = [valid(text).encode() for text in texts]
    width = max((len(item) for item in encoded), default=1)
    return np.array(encoded, dtype=f"S{max(width, 1)}")


def read_column(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Return a whole column. Raises KeyError if it is not there, ValueError as `_check_bytes`."""
    dataset = h5py.h5d.open(file.id, name.encode())
    _check_bytes(dataset, name, math.prod(dataset.shape) * dataset.dtype.itemsize)
    values = np.empty(dataset.shape, dtype=dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def read_rows(file: h5py.File, name: str, first: int, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` rows of an int64 column from row ``first``, by h5py's lower level (a third
    of the time). Raises KeyError or ValueError if there are none."""
    dataset = h5py.h5d.open(file.id, name.encode())
    selection = dataset.get_space()
    if (not dataset.get_type().equal(h5py.h5t.STD_I64LE)
            or selection.get_simple_extent_dims() < (first + count,)):
        raise ValueError(f"{name}: no int64 rows {first} to {first + count}")
    _check_bytes(dataset, name, 8 * count)
    rows = np.empty(count, dtype=np.int64)
    if count:
        selection.select_hyperslab((first,), rows.shape)
        dataset.read(h5py.h5s.create_simple(rows.shape), selection, rows, h5py.h5t.NATIVE_INT64)
    return rows


def _check_bytes(dataset: h5py.h5d.DatasetID, name: str, claimed: int) -> None:
    """Raise ValueError if the file cannot hold so many bytes: deflate packs 1032 into one at
    most."""
    if claimed > _SMALL_BYTES and (  # the stored size takes long to find
            claimed > _DEFLATE_AT_MOST * dataset.get_storage_size() + _SMALL_BYTES):
        raise ValueError(f"{name} claims {claimed} bytes, which are not there")


def stored_bytes(file: h5py.File, name: str) -> tuple[str, bytes]:
    """Return the length of a column as text, and its packed bytes; equal for equal columns."""
    dataset = h5py.h5d.open(file.id, name.encode())
    if dataset.get_create_plist().get_layout() != h5py.h5d.CHUNKED or (
            dataset.get_num_chunks() != 1):
        return f"{dataset.dtype.str} {dataset.shape}", read_column(file, name).tobytes()
    mask, packed = dataset.read_direct_chunk((0,) * dataset.rank)
    return f"{dataset.shape} packed {mask}", packed


def texts_of(column: npt.NDArray[Any]) -> list[str]:
    return [item.decode() for item in column.tolist()]


def json_line(value: Any, *, allow_nan: bool = True) -> str:
    """Return one line of ASCII JSON. Raises ValueError for a number that is not finite, unless
    allowed."""
    return to_json(value, separators=(",", ":"), allow_nan=allow_nan)


def write_json(file: h5py.File, name: str, values: Iterable[Any]) -> None:
    write_lines(file, name, [json_line(value) for value in values])


def write_lines(file: h5py.File, name: str, lines: Iterable[str]) -> None:
    """Store lines that `json_line` made as one packed text."""
    text = "\n".join(lines).encode()
    file.create_dataset(name, data=np.array([text], dtype=f"S{max(len(text), 1)}"),
                        chunks=(1,), compression="gzip", compression_opts=LEVEL)


def read_text(file: h5py.File, name: str) -> str:
    return "\n".join(read_lines(file, name))


def read_lines(file: h5py.File, name: str) -> list[str]:
    """Return the lines that `write_lines` stored. Raises KeyError without any."""
    return lines_of(read_column(file, name))


def lines_of(column: npt.NDArray[Any]) -> list[str]:
    (text,) = texts_of(column)
    return text.split("\n") if text else []


GROUP = "telemetry"
TELEMETRY_NOTE = "telemetry"
"""The note of a rank's `TelemetryReport`; the last one counts."""
NOT_READ = -1
KEYS = ("time_ns", "device")
"""Each row begins with the time of its reading, and the number of the device in its table."""
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
    """A table: the subject of a row, who reads it, and its columns."""

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
class TelemetryReport:
    """The ``devices`` of each table that one rank reads; by table or TABLE.COLUMN why not."""

    rate_hz: float
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def contents(own: Contents, clock: str) -> Contents:
    """Return the descriptions of the group; ``own`` are further columns of each table."""
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
    """Return rows (reading, column) with KEYS and the table's columns. Raises ValueError without a
    time or a device."""
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
    tables: dict[str, Rows] = {}
    for table in file.get(GROUP, ()):
        if table in TABLES:
            names = [*file[f"{GROUP}/{table}"]]
            columns = [read_column(file, f"{GROUP}/{table}/{name}") for name in names]
            tables[table] = as_today(table, names, np.stack(columns, axis=1))
    return tables
