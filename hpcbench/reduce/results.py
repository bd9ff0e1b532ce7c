"""The reduced results of one run, as read from and written to ``results.h5``.

Definitions (docs/method.md): the time of an iteration is the maximum over ranks of end - start
(fold ``max``); statistics are over the timed iterations of all passes; warm-ups are kept in the
samples and left out of the statistics; a case that is not ``ok`` has no statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case, Plan

SCHEMA_VERSION = 1
FOLD = "max over ranks"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Order statistics in seconds over ``n`` iterations of the maximum over ranks.

    Percentiles are None where n is too small to hold them (docs/method.md).
    """

    n: int
    min_s: float
    p5_s: float | None
    p25_s: float
    median_s: float
    p75_s: float
    p95_s: float | None
    p99_s: float | None
    max_s: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The one outcome of one planned case over all passes and member ranks.

    ``n_wrong`` is the sum over ranks, None where nothing was checked. ``detail`` maps what the
    ranks recorded beside the samples (first wrong element, stderr, stacks), by rank as text.
    """

    case: Case
    status: str
    reason: str
    blamed_rank: int | None
    device: str
    n_wrong: int | None
    statistics: Statistics | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the reducer's checks found. ``code`` is stable (docs/checks.md).

    ``scope``: ``run`` (results cannot be trusted as one run), ``rank`` (a trace was left out),
    ``case`` (a case was rejected), ``note`` (nothing was left out).
    """

    code: str
    scope: str
    message: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What identifies and describes the run."""

    name: str
    run_id: str
    plan_hash: str
    world_size: int
    ranks_present: tuple[int, ...]
    nodes: tuple[str, ...]
    started_at: str
    versions: Mapping[str, str]
    environment: Mapping[str, Any]
    hpcbench_version: str


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """Raw stamps of one case, stacked: int64 arrays of shape (rank, iteration).

    Iterations of all passes follow one another; ``pass_index`` (iteration,) says which.
    ``flags`` are `hpcbench.trace.schema.Flag` bits; ``device_ns`` is -1 where not measured.
    """

    ranks: tuple[int, ...]
    pass_index: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    device_ns: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]


class SampleSource(Protocol):
    """Where a results file's raw samples are read from, one case at a time."""

    def samples(self, case_id: str) -> CaseSamples | None:
        """Return the stacked samples of a case, or None if none were recorded."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything in ``results.h5`` but the samples, which are read case by case."""

    run: RunInfo
    plan: Plan
    cases: tuple[CaseResult, ...]
    findings: tuple[Finding, ...]
