"""Records of all ranks stacked to (rank, sample), passes and launches one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import CaseSamples
from hpcbench.trace.arena import Empty
from hpcbench.trace.schema import SAMPLE_COLUMNS, UNTIMED, Record

Pass = Mapping[int, Record]
"""The records of one pass of one case, by rank."""


class PassKey(NamedTuple):
    """One pass of one launch."""

    launch: int
    pass_index: int


def stack_samples(passes: Mapping[PassKey, Pass], empty: Empty) -> CaseSamples | None:
    """Return the stamps of all passes, or None where they do not fill (rank, sample).

    ``empty`` makes the arrays. None means that nothing was stamped, or that in some pass ranks
    stamped different numbers of samples; nothing is ever filled up.
    """
    stamped = {key: records for key, records in sorted(passes.items())
               if any(len(record.samples) for record in records.values())}
    members = {tuple(sorted(records)) for records in stamped.values()}
    if len(members) != 1 or not all(map(_is_rectangular, stamped.values())):
        return None
    (ranks,) = members
    counts = [len(records[ranks[0]].samples) for records in stamped.values()]
    ordered = [records[rank] for rank in ranks for records in stamped.values()]
    shape = (len(ranks), sum(counts))
    columns = {name: empty(shape) for name in SAMPLE_COLUMNS}
    for at, column in enumerate(columns.values()):
        np.concatenate([record.samples[:, at] for record in ordered], out=column.reshape(-1))
    launch, pass_index = np.repeat(np.array(list(stamped), dtype=np.int64), counts, axis=0).T
    return CaseSamples(ranks=ranks, launch=launch, pass_index=pass_index,
                       phases=_stacked_phases(ordered, shape, empty), **columns)


def _stacked_phases(
    records: Sequence[Record], shape: tuple[int, int], empty: Empty
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the phases of records in the order of (rank, sample); none unless all have the same.
    """
    names = {tuple(record.phases) for record in records}
    if len(names) != 1:
        return {}
    phases = {name: empty(shape) for name in names.pop()}
    for name, column in phases.items():
        np.concatenate([record.phases[name] for record in records], out=column.reshape(-1))
    return phases


def _is_rectangular(records: Pass) -> bool:
    return len({len(record.samples) for record in records.values()}) == 1


def is_timed(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return (sample,): whether it is neither warm-up nor a call apart, on any rank."""
    return ~has_flag(samples, UNTIMED)


def has_flag(samples: CaseSamples, flags: int) -> npt.NDArray[np.bool_]:
    """Return (sample,): whether any rank has one of these flags on it."""
    return np.asarray(np.bitwise_or.reduce(samples.flags, axis=0) & flags != 0, dtype=np.bool_)


def pass_slices(samples: CaseSamples) -> list[slice]:
    """Return where the samples of each pass of each launch lie, in order."""
    keys = np.stack([samples.launch, samples.pass_index])
    cuts = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    edges = [0, *cuts.tolist(), keys.shape[1]]
    return [slice(*pair) for pair in zip(edges, edges[1:], strict=False)]
