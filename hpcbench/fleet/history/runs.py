"""The runs below folders, in order of the start times that their files state.

Of a file is read what a history needs, after the same checks as for all other commands: nights of
one sweep have one plan, which is parsed once."""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

import h5py

from hpcbench.answers.compare_inputs import facts_of, id_in_any_version, measured_id
from hpcbench.errors import FileError, HpcbenchError, UsageError, command_line
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.results import IMPORTED, SCHEMA_VERSION, RunInfo
from hpcbench.reduce.results_file import FORMAT
from hpcbench.trace import columns as stored
from hpcbench.trace import schema
from hpcbench.trace.container import (
    LATEST,
    check_content,
    check_seal,
    expected_content,
    open_container,
)
from hpcbench.trace.source import plan_from_text
from hpcbench.units import moment

TIME = "median_s"
"""The metric that every measured case has."""
_TRACES = "traces"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run of a history: where it lies, when it began (seconds since 1970), what is stated of its
    environment, and the values of its cases, by their keys in `StoredRuns`, then by metric; a case
    that is not ok has none. ``unmeasured`` counts such by their status."""

    path: str
    run_id: str
    began_s: float
    facts: Mapping[str, str]
    values: Mapping[str, Mapping[str, float]]
    unmeasured: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredCase:
    """What a case measures (`measured_id`; of imported times another), and its label."""

    measured: str
    label: str


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Runs, the oldest first, and their cases by `id_in_any_version` (of imported times another).
    ``left_out`` has a line for each file that is none of them."""

    runs: tuple[StoredRun, ...]
    cases: Mapping[str, StoredCase]
    left_out: tuple[str, ...] = ()

    def series_of(self) -> dict[str, str]:
        """Return the series of each case: that of what it measures, or one of its own where any
        run measures that more than once."""
        twice = {measured for keys in {tuple(run.values) for run in self.runs}
                 for measured, count in Counter(self.cases[key].measured for key in keys).items()
                 if count > 1}
        return {key: key if case.measured in twice else case.measured
                for key, case in self.cases.items()}

    @property
    def unmeasured(self) -> Mapping[str, int]:
        """Return how many cases of all runs have no value, by their status."""
        return sum((Counter(run.unmeasured) for run in self.runs), Counter())


def results_below(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield each HDF5 file below the folders once, but for traces. Raises FileError for a folder
    that is none."""
    seen = set()
    for folder in folders:
        if not folder.is_dir():
            raise FileError(f"{folder}: is no folder; give folders with runs in them")
        for place, below, names in os.walk(folder):
            below[:] = sorted(name for name in below if name != _TRACES)
            for path in (Path(place, name) for name in sorted(names) if name.endswith(".h5")):
                try:
                    facts = path.stat()
                except OSError:
                    yield path  # for who reads it to say why
                    continue
                if stat.S_ISREG(facts.st_mode) and (
                        which := (facts.st_dev, facts.st_ino)) not in seen:
                    seen.add(which)
                    yield path if LATEST not in path.parts else path.resolve()


class RunReader:
    """Reads runs, and keeps what several have in common: plans and cases."""

    def __init__(self, metrics: Sequence[str] = (TIME,)) -> None:
        self.metrics = tuple(metrics)
        self.cases: dict[str, StoredCase] = {}
        self.offered: list[str] = []
        """All metrics of a file that lacks some of these."""
        self._plans: dict[str, tuple[tuple[str, ...], tuple[Case, ...]]] = {}
        self._read = ("run", "plan", "cases/status", *(f"cases/{name}" for name in metrics))

    def read(self, path: Path) -> StoredRun:
        """Return the run in a file. Raises TraceError for a file that is none or is damaged, and
        FileError for one that does not state when it began, or with injected faults."""
        check_seal(path, FORMAT, SCHEMA_VERSION)
        with open_container(path) as file, expected_content(path):
            check_content(file, path, self._read)
            run = schema.from_text(RunInfo, stored.read_text(file, "run"))
            if run.injected:
                raise FileError(f"{path}: {run.injected}")
            began_s = moment(run.started_at)
            if began_s is None:
                how = command_line("import", "LOG", "--started", "TIME")
                raise FileError(f"{path}: states no start time"
                                + f" (give it to {how})" * bool(run.imported))
            keys, with_files = self._plan(
                stored.read_text(file, "plan"), path, of=IMPORTED if run.imported else "")
            statuses = stored.texts_of(stored.read_column(file, "cases/status"))
            values = self._values(file, path, keys, statuses)
            facts = dict(facts_of(run, with_files))
        return StoredRun(str(path), run.run_id, began_s, facts, values,
                         Counter(status for status in statuses if status != "ok"))

    def _plan(
        self, text: str, path: Path, of: str,
    ) -> tuple[tuple[str, ...], tuple[Case, ...]]:
        """Return the keys of all cases, and the cases that run a file's content."""
        if text not in self._plans:
            cases = plan_from_text(text, path).cases
            keys = tuple(of + id_in_any_version(case) for case in cases)
            self._plans[text] = keys, tuple(
                case for case in cases if case.workload.features.files)
            self.cases |= zip(keys, (StoredCase(of + measured_id(case), case.label)
                                     for case in cases), strict=True)
        return self._plans[text]

    def _values(
        self, file: h5py.File, path: Path, keys: Sequence[str], statuses: Sequence[str],
    ) -> dict[str, dict[str, float]]:
        chosen = {}
        for name in self.metrics:
            column = file["cases"].get(name)
            if column is not None and column.dtype.kind == "f":
                chosen[name] = column[:].tolist()
            elif not self.offered:
                check_content(file, path)  # before columns that are not read are opened
                self.offered = [key for key, one in file["cases"].items()
                                if isinstance(one, h5py.Dataset) and one.dtype.kind == "f"]
        return {key: {} for key in keys} | {
            key: of_case for at, (key, status) in enumerate(zip(keys, statuses, strict=True))
            if status == "ok" and (of_case := {
                name: column[at] for name, column in chosen.items()
                if math.isfinite(column[at]) and column[at] > 0})}


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """Runs that were read before, by their `stamp_of`, and their cases."""

    runs: Mapping[str, StoredRun] = field(default_factory=dict)
    cases: Mapping[str, StoredCase] = field(default_factory=dict)


NONE_KNOWN = KnownRuns()


def stamp_of(path: Path) -> str:
    """Return what changes when a file does: its place, size and time of change."""
    facts = path.stat()
    return f"{path.absolute()} {facts.st_size} {facts.st_mtime_ns}"


def read_runs(
    paths: Iterable[Path], metrics: Sequence[str] = (TIME,), known: KnownRuns = NONE_KNOWN,
) -> StoredRuns:
    """Return the runs in files that are not ``known``. One that is there twice counts once.

    Raises UsageError for a metric that no run has."""
    reader, runs, left_out = RunReader(metrics), dict[str, StoredRun](), list[str]()
    reader.cases |= known.cases
    for path in paths:
        try:
            run = known.runs.get(stamp_of(path)) or reader.read(path)
        except HpcbenchError as error:
            left_out.append(str(error))
            continue
        except OSError as error:
            left_out.append(f"{path}: {error.strerror}")
            continue
        if run.run_id in runs:
            left_out.append(f"{path}: is run {run.run_id} again, as in {runs[run.run_id].path}")
        else:
            runs[run.run_id] = run
    has = {name for run in runs.values() for of_case in run.values.values() for name in of_case}
    if unknown := [name for name in metrics if reader.offered and name not in has]:
        raise UsageError(f"--metric {unknown[0]}: these runs have {', '.join(reader.offered)}")
    return StoredRuns(tuple(sorted(runs.values(), key=lambda one: (one.began_s, one.run_id))),
                      reader.cases, tuple(left_out))
