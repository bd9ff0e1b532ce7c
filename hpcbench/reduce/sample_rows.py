"""The rows of a case in ``/samples`` of the results: as values, or packed as they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseSamples
from hpcbench.trace.columns import GrowingColumn, PackedRows
from hpcbench.trace.packing import Packer
from hpcbench.trace.schema import SAMPLE_COLUMNS

KEY_COLUMNS = ("rank", "launch", "pass_index", "iteration")
"""What tells the samples of a case apart: most cases of a run have the same arrays of them."""
COLUMNS = ("case", *KEY_COLUMNS, "use", *SAMPLE_COLUMNS)
CHUNK_ROWS = 16384
"""Samples are read a whole case, all ranks, at a time."""
_MOST_CHUNK_ROWS = 65536
Values = npt.NDArray[np.int64]


def chunk_rows(case_rows: int) -> int:
    """Return the length of chunks of which whole ones make a case, or whole cases make one.

    ``case_rows`` is how many rows most cases have, 0 if that is not known.
    """
    if case_rows > CHUNK_ROWS:
        return math.ceil(case_rows / math.ceil(case_rows / _MOST_CHUNK_ROWS))
    return CHUNK_ROWS // case_rows * case_rows if case_rows else CHUNK_ROWS


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of one case by the names of COLUMNS, rank by rank, and those of its phases.

    ``shape`` is (ranks, samples of each).
    """

    shape: tuple[int, int]
    columns: Mapping[str, Values | PackedRows]
    phases: Mapping[str, Values | PackedRows]


class RowMaker:
    """Makes the rows of cases; columns that are mostly equal from case to case are made once."""

    def __init__(self) -> None:
        self._key_columns = lru_cache(maxsize=1)(_key_columns)

    def rows(self, case: Case, samples: CaseSamples) -> SampleRows:
        """Return the rows of a case. Raises ValueError where their ``use`` is not known."""
        if samples.use is None:
            raise ValueError(f"case {case.case_id}: which samples count is not known")
        ranks, each = samples.start_ns.shape
        columns = {
            "case": np.broadcast_to(np.int64(case.index), ranks * each),
            **self._key_columns(
                samples.ranks, samples.launch.tobytes(), samples.pass_index.tobytes()),
            "use": np.tile(samples.use, ranks),
            **{name: _flat(getattr(samples, name)) for name in SAMPLE_COLUMNS}}
        return SampleRows((ranks, each), columns, {
            name: values.ravel() for name, values in samples.phases.items()})


def _flat(values: Values) -> Values:
    """Return the rows of all ranks one after another; one value for all is not copied."""
    return np.broadcast_to(values[0, 0], values.size) if (
        values.strides == (0, 0) and values.size) else values.ravel()


def _key_columns(ranks: Sequence[int], launch: bytes, pass_index: bytes) -> dict[str, Values]:
    """Return the columns that identify a sample of a case."""
    launches, passes = (np.frombuffer(column, dtype=np.int64) for column in (launch, pass_index))
    return {"rank": np.repeat(ranks, passes.size), "launch": np.tile(launches, len(ranks)),
            "pass_index": np.tile(passes, len(ranks)),
            "iteration": np.tile(np.arange(passes.size), len(ranks))}


class RowPacker:
    """Packs rows of cases into chunks of so many rows."""

    def __init__(self, rows_of_chunk: int) -> None:
        self._rows_of_chunk = rows_of_chunk
        self._packers = {name: Packer() for name in COLUMNS}
        self._phase_packer = Packer()
        self._key_columns: dict[str, tuple[Values | PackedRows, PackedRows]] = {}

    def packed(self, rows: SampleRows) -> SampleRows | None:
        """Return the same rows packed; None where they do not fill whole chunks."""
        if math.prod(rows.shape) % self._rows_of_chunk:
            return None
        return SampleRows(rows.shape, {
            name: self._column(name, values) for name, values in rows.columns.items()}, {
            name: self._packed(self._phase_packer, values)
            for name, values in rows.phases.items()})

    def _column(self, name: str, values: Values | PackedRows) -> PackedRows:
        """Return a column packed; one of KEY_COLUMNS is not packed again if it comes again.

        Others never come again, and would be kept in memory beside the next case's.
        """
        known = self._key_columns.get(name)
        if known is not None and known[0] is values:
            return known[1]
        packed = self._packed(self._packers[name], values)
        if name in KEY_COLUMNS:
            self._key_columns[name] = values, packed
        return packed

    def _packed(self, packer: Packer, values: Values | PackedRows) -> PackedRows:
        if isinstance(values, PackedRows):
            return values
        chunks = [*map(packer.pack, values.reshape(-1, self._rows_of_chunk))]
        return PackedRows(values.size, chunks)


def add_rows(columns: Iterable[tuple[GrowingColumn, Values | PackedRows]]) -> None:
    """Append rows to each of the columns."""
    for column, rows in columns:
        if isinstance(rows, PackedRows):
            column.add_packed(rows)
        else:
            column.add(rows)
