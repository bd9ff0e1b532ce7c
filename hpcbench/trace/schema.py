"""What one rank records: the data types of the journal, the sealed trace and its readers.

Schema history
  1  first version (hpcbench 0.1). Samples have no ``enqueue_ns``, records no ``stop_reason``,
     ``position`` and ``communicator_ns``; the clock tables are empty.
  2  those columns; flags LATE_START and SINGLE; clock models and checks; the notes ``clock``,
     ``noise`` and ``canary``.
     Records of training steps also have phases; other files are as they were.
     Telemetry has frames, a note and groups of its own, where a rank reads any.
  A file of each version is kept in tests/data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 2
SAMPLE_COLUMNS = ("start_ns", "end_ns", "enqueue_ns", "device_ns", "flags")
"""One row per sample, int64. ``start_ns`` and ``end_ns`` are stamps of the rank's own clock;
``enqueue_ns`` is how long the host took to issue the work, ``device_ns`` how long the device took
for it: both are NO_DEVICE_TIME where the call returns when the work is done."""
SAMPLE_COLUMNS_1 = ("start_ns", "end_ns", "device_ns", "flags")
"""Those of version 1; readers fill up what it lacks with NO_DEVICE_TIME."""
NO_DEVICE_TIME = -1
NO_COMMUNICATOR = -1

NOISE_NOTE = "noise"
"""The note in which a rank records `measure.noise.measure_noise` before the sweep."""

Samples = npt.NDArray[np.int64]
"""Rows as they are recorded: int64 (sample, SAMPLE_COLUMNS)."""
Times = npt.NDArray[np.int64]
Phases = Mapping[str, Times]
"""Phase of a step -> (sample,) int64: how many ns each sample was in it.

A name that begins with ARRIVAL is of no phase but of a moment: how many ns after the step's begin
it was.
"""
ARRIVAL = "arrival "
"""And the number of a bucket, from 1: when the last gradient was there that is exchanged in it."""


class Flag(IntFlag):
    """Bits of a sample's ``flags`` column. Rows are flagged, never dropped."""

    WARMUP = 1
    CHECKED = 2
    LATE_START = 4
    """The rank was not ready at the agreed start (mode isolated)."""
    SINGLE = 8
    """One call, made to check its result, among samples of several calls (mode pipelined)."""
    SETTLED = 16
    """Calls that are not recorded stand between the check before it and this sample."""


SETTLING_CALLS = 2
"""How many calls stand before a sample with SETTLED."""
UNTIMED = Flag.WARMUP | Flag.SINGLE
"""Samples with one of these count in no statistic."""

STOP_REASONS = ("fixed", "converged", "budget", "max_iterations")


UNKNOWN_VERSION = "unknown"
"""Of what a driver or a library would have said, had it not crashed or hung when it was asked."""


def same_version(one: str | None, other: str | None) -> bool:
    """Return whether two versions are alike, as far as both are known."""
    return one == other or UNKNOWN_VERSION in (one, other)


def bare_uuid(uuid: str) -> str:
    """Return the UUID of a GPU, or of a part of one, without what NVML puts before it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote a trace. ``node`` identifies the machine, ``environment`` what it ran with.

    ``versions`` holds what must be alike on all ranks (hpcbench, python, torch, mpi, nccl).
    """

    run_id: str
    plan_hash: str
    rank: int
    world_size: int
    local_rank: int
    hostname: str
    node: str
    pid: int
    versions: Mapping[str, str]
    environment: Mapping[str, Any]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """The samples of a record by SAMPLE_COLUMNS, each int64 (sample,); nobody writes into them.

    A column may be one array for many records, or one value for all samples: of most, flags are
    alike on all ranks, and nobody takes device times on a CPU.
    """

    start_ns: Times
    end_ns: Times
    enqueue_ns: Times
    device_ns: Times
    flags: Times

    @classmethod
    def of_rows(cls, rows: Samples) -> SampleColumns:
        """Return the columns of rows, in the same memory. Raises ValueError if they are no rows."""
        if rows.dtype != np.int64 or rows.shape != (len(rows), len(SAMPLE_COLUMNS)):
            raise ValueError(f"samples: int64 (n, {len(SAMPLE_COLUMNS)}) expected, got "
                             f"{rows.dtype} {rows.shape}")
        return cls(*rows.T)

    def __len__(self) -> int:
        return len(self.start_ns)

    def columns(self) -> tuple[Times, ...]:
        """Return them in the order of SAMPLE_COLUMNS."""
        return self.start_ns, self.end_ns, self.enqueue_ns, self.device_ns, self.flags

    def rows(self) -> Samples:
        """Return the samples as rows in memory of their own."""
        return np.stack(self.columns(), axis=1)


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's record of one case; its key is (case_id, pass, launch, attempt).

    Attributes:
        status: one of plan.case.STATUSES, as agreed by all member ranks.
        reason: why, for every status but ``ok``; one line.
        blamed_rank: the rank the failure is put down to, or -1.
        device: where it ran (``cpu``, ``cuda:0``), "" if it did not.
        begin_ns, end_ns: the case's window on this rank's monotonic clock.
        n_wrong: wrong elements on this rank in the checked iterations; -1 if not checked.
        samples: warm-ups first and flagged.
        detail: JSON values: first wrong element, stderr lines, stacks, phase of a silent worker.
        stop_reason: why the case took no further sample, one of STOP_REASONS, or "".
        position: how many cases these workers had run before it in this pass, -1 if it did not run.
        communicator_ns: how long opening the group under test took; NO_COMMUNICATOR where an
            earlier case had opened it.
        phases: of training steps, in the order of a step; each with a value for each sample.
    """

    case_id: str
    pass_index: int
    launch: int
    attempt: int
    status: str
    reason: str
    blamed_rank: int
    mode: str
    device: str
    begin_ns: int
    end_ns: int
    n_wrong: int
    samples: SampleColumns
    detail: Mapping[str, Any] = field(default_factory=dict)
    stop_reason: str = ""
    position: int = -1
    communicator_ns: int = NO_COMMUNICATOR
    phases: Phases = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Return (case_id, pass, launch, attempt)."""
        return (self.case_id, self.pass_index, self.launch, self.attempt)


@dataclass(frozen=True, slots=True)
class Noise:
    """What a rank lost to others while it did nothing but read the clock.

    ``stolen_share`` is the time inside detours (gaps longer than ``threshold_ns``) over all
    ``seconds``; ``median_step_ns`` is what one turn of the loop takes undisturbed. ``part_shares``
    are the stolen shares of equal parts of the time; empty in older traces.
    """

    seconds: float
    n_detours: int
    stolen_share: float
    longest_ns: int
    median_step_ns: float
    threshold_ns: float
    part_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FixedWork:
    """How unequal the times of equal pieces of work are: ratios to the median, and sd over mean."""

    n_loops: int
    median_ns: float
    cv: float
    p99_over_median: float
    max_over_median: float


def no_rows() -> Samples:
    """Return the rows of a case that never ran."""
    return np.empty((0, len(SAMPLE_COLUMNS)), dtype=np.int64)


def no_samples() -> SampleColumns:
    """Return the samples of a case that never ran."""
    return SampleColumns.of_rows(no_rows())
