"""Common parts of imported rows: a case, a result without an interval, rows that were left out.

Nothing is guessed: a fact that a file lacks is given by the user, or the row is left out, counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.config.axes import DTYPE_ALIASES, Checks
from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.interop.formats.lint import FILE_CODE, WRONG_CODE, BrokenRule
from hpcbench.interop.formats.tables import CommTable, OwnTable, row_place
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.plan.case import Case, case_id, planned_canary
from hpcbench.plan.support import resolve_device
from hpcbench.plan.workload import Workload
from hpcbench.records import dataclass
from hpcbench.reduce.results import CUT, IMPORTED, PRINTED_FOLD, CaseResult, Finding, Timing
from hpcbench.reduce.timing import order_statistics
from hpcbench.units import plural

MOST_CASES = 100_000
"""Rows of one results file: as many fit into a few hundred MB of memory."""
MOST_REASONS = 10
"""Lines on rows that are left out; further reasons are counted."""
DTYPES: Mapping[str, str] = {
    **DTYPE_ALIASES, **{name: name for name in DTYPE_BYTES}, "MPI_CHAR": "uint8",
    "MPI_FLOAT": "fp32", "MPI_INT": "int32"}
"""Types of 1 byte without a meaning, as OSU's char, are uint8 here."""


@dataclass(frozen=True, slots=True)
class UserFacts:
    """Facts that the user gives of tables that lack them; "" or None: not given."""

    collective: str = ""
    ranks: int | None = None
    backend: str = ""
    dtype: str = ""
    primitive: str = ""
    started: str = ""


def needed(place: str, what: str, flag: str) -> UsageError:
    """Return the error of a fact that a table lacks; ``place`` is its file and line."""
    return UsageError(f"{place}: {what}? The file does not say it; give {flag}")


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where rows of a table were measured, and what; ``form`` is such as "in place".

    ``dtype`` is as the table writes it. ``label`` distinguishes cases of the same work, such as
    those of two communicators. ``device`` "" is the usual one of the backend. ``own`` is how
    hpcbench says that it measured."""

    program: str
    kind: str
    what: str
    backend: str
    ranks: int
    mode: str = "pipelined"
    dtype: str = ""
    form: str = ""
    label: str = ""
    device: str = ""
    warmup: int = 0
    own: OwnTable | None = None

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.program, self.what, self.label, self.form)))

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields that identify a case only where they are not the usual."""
        unusual: dict[str, Any] = {name: value for name, value, usual in (
            ("label", self.label, ""), ("mode", self.mode, "pipelined")) if value != usual}
        return {**unusual, **({} if self.own is None else self.own.unusual)}


@dataclass(frozen=True, slots=True)
class PrintedTimes:
    """The times of a row in seconds, (n,): one mean, or those of single operations (``fold``).

    ``n_wrong`` is None where nothing was checked; ``line`` is that of the row. ``is_cut``: its
    table lacks rows or its end. ``counted`` as in `CommTable`."""

    times_s: npt.NDArray[np.float64]
    line: int
    calls: int = 1
    n_wrong: int | None = None
    fold: str = PRINTED_FOLD
    is_cut: bool = False
    counted: str = ""


def mean_of(time_s: float, line: int, calls: int = 1, n_wrong: int | None = None) -> PrintedTimes:
    """Return a mean that a program printed, of so many calls; 1 if it does not state how many."""
    return PrintedTimes(np.array([time_s]), line, calls, n_wrong)


@dataclass(slots=True)
class Gathered:
    """Results of cases by id, programs, hosts by rank, how many rows were left out and why, notes;
    ``started``: when programs began, as they state it;
    ``doubts``: lines on what does not hold for the rows kept; ``faults`` of runs of hpcbench;
    ``findings`` of them, or on what programs state. ``is_contradicting``: rows contradict
    themselves; ``is_cut``: a table lacks its end."""

    items: dict[str, CaseResult] = field(default_factory=dict)
    programs: dict[str, None] = field(default_factory=dict)
    hosts: dict[int, set[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    doubts: dict[str, None] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    findings: dict[Finding, None] = field(default_factory=dict)
    is_contradicting: bool = False
    is_cut: bool = False
    _seen: set[tuple[RowPlace, Workload]] = field(default_factory=set)

    def add(self, place: RowPlace, work: Workload, measured: PrintedTimes) -> bool:
        """Add a row, unless its case is there; return whether it was added. Raises FileError for
        more than MOST_CASES."""
        is_again = (place, work) in self._seen  # most of a long log are: no case is made of them
        case = None if is_again else _case(place, work, measured)
        if case is None or case.case_id in self.items:
            self.left_out["the same case again; import it to a file of its own"] += 1
            return False
        self._seen.add((place, work))
        if len(self.items) == MOST_CASES:
            raise FileError(f"more than {MOST_CASES:,} rows: import fewer files at a time")
        case = replace(case, index=len(self.items))
        self.items[case.case_id] = _result(case, measured)
        return True

    def doubt(self, broken: BrokenRule, scope: str, what: str = "") -> None:
        """Keep what is wrong with a file, as a line and as a finding: of scope ``run`` if nothing
        of the file is to be quoted. ``what`` is the end of the line."""
        message, name = broken.message, Path(broken.path).name
        code = WRONG_CODE if broken.rule == "wrong" else FILE_CODE
        self.doubts[f"{broken.place()}: {message}{what}"] = None
        self.findings[Finding(code, scope, f"{message} ({broken.place(name)})")] = None

    def note_contradicting(self, table: CommTable, lines: Collection[int]) -> None:
        """Note the rows of a table that contradict themselves, which are left out."""
        if lines:
            self.is_contradicting = True
            shown = sorted(lines)[:MOST_REASONS]
            first = ", ".join(row_place(line, table.counted) for line in shown) if (
                table.counted) else f"line {', '.join(map(str, shown))}"
            more = ", ..." if len(lines) > MOST_REASONS else ""
            self.doubt(BrokenRule("rate", table.path, min(lines), (
                f"left out {plural(len(lines), 'row')} of contradictory numbers ({first}"
                f"{more}): hpcbench lint tells how"), table.counted), "note")

    def code_of(self, code: ExitCode) -> ExitCode:
        """Return the exit code of an import whose results have ``code``."""
        if code == ExitCode.OK and self.is_cut:
            code = ExitCode.INCOMPLETE
        is_found = self.is_contradicting if code == ExitCode.INCOMPLETE else bool(self.doubts)
        return ExitCode.FINDINGS if is_found else code

    def left_out_lines(self) -> list[str]:
        """Return a line for each reason why rows were left out, the most frequent first."""
        shown = self.left_out.most_common(MOST_REASONS)
        lines = [f"left out: {plural(count, 'row')}: {why}" for why, count in shown]
        rest = self.left_out.total() - sum(count for _, count in shown)
        return [*lines, *([f"left out: {plural(rest, 'row')} for other reasons"] if rest else [])]

    def doubt_lines(self) -> list[str]:
        """Return the first MOST_REASONS lines on what does not hold, and how many more there are.
        """
        shown, more = [*self.doubts][:MOST_REASONS], len(self.doubts) - MOST_REASONS
        return [*shown, *([f"and {more} more, which hpcbench lint lists"] if more > 0 else [])]


def _case(place: RowPlace, work: Workload, measured: PrintedTimes) -> Case:
    """Return the case: the canary's, with all of the canary's own fields replaced."""
    own = {} if place.own is None else place.own.case_fields
    device = place.device or resolve_device(place.backend, "auto")
    identity = {"imported": place.program, "work": work.to_json(), "device": device,
                "backend": place.backend, "world_size": place.ranks, **place.identity}
    return replace(
        planned_canary(place.ranks), case_id=case_id(identity), block=place.title,
        kind=place.kind, backend=place.backend, device=device, mode=place.mode,
        warmup=place.warmup, iterations=len(measured.times_s),
        min_iterations=0, batch=measured.calls,
        check=Checks(measured.n_wrong is not None), workload=work, memory_bytes=0, **own)


def _result(case: Case, measured: PrintedTimes) -> CaseResult:
    if measured.n_wrong:
        return CaseResult(
            case, "wrong", "the program found wrong results ("
            f"{row_place(measured.line, measured.counted)})", None,
            case.device, measured.n_wrong, None, {})
    statistics = order_statistics(measured.times_s)
    return CaseResult(case, "ok", "", None, case.device, measured.n_wrong, statistics, {},
                      _timing(case, measured, statistics.median_s))


def _timing(case: Case, measured: PrintedTimes, median_s: float) -> Timing:
    return Timing(
        fold=measured.fold, calls=case.batch, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
        unflagged_n=0, unflagged_median_s=None, quality=(CUT, IMPORTED)[not measured.is_cut:],
        stop_reasons=(),
        first_call_s=None, communicator_s=None, last_in_s=None, local_max_s=None, imbalance_s=None,
        enqueue_s=None, device_s=None, clock_bound_s=None, quickest_rank=None, quickest_share=None,
        launch_medians_s=(median_s,), pass_medians_s=(median_s,), all_count=True)
