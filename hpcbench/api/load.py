"""`load`: results files as typed objects, and as tidy tables of pandas, polars and Arrow."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.answers.compare_inputs import parameters
from hpcbench.errors import FileError, how_to_install
from hpcbench.reduce.kind_facts import CASE_COLUMNS, row_of
from hpcbench.reduce.metric import ABSENT
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.reduce.results_file import each_once, file_of, open_again, open_results, refuse_copies
from hpcbench.reduce.stack import counts, has_flag
from hpcbench.texts import to_json
from hpcbench.trace.schema import Flag

_COLUMNS = {column.name: column for column in CASE_COLUMNS}
_SAMPLE_COLUMNS: Mapping[str, type] = MappingProxyType({
    "run_id": object, "run": object, "case_id": object, "label": object, "rank": int,
    "iteration": int, "launch": int, "pass": int, "counted": bool, "seconds": float})
"""Columns of a row for each sample of a rank."""
Seconds = npt.NDArray[np.float64]


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and modification time in ns; None for a file that is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class LoadedRun:
    """One results file.

    Attributes:
        path: the file.
        name: the sweep's name; ``run_id`` distinguishes runs of one name.
        started: when it began, as ISO 8601 text.
        hosts: the names of the nodes.
        world_size: the ranks of the job.
        versions: library -> version.
        config: the sweep with all defaults.
        faults: what was injected on purpose; nothing of a run that counts."""

    def __init__(self, path: Path, results: Results) -> None:
        run = results.run
        self.path, self.name, self.run_id = path, run.name, run.run_id
        self.started, self.hosts, self.world_size = run.started_at, run.nodes, run.world_size
        self.versions: Mapping[str, str] = {"hpcbench": run.hpcbench_version, **run.versions}
        self.config: Mapping[str, Any] = results.plan.config
        self.faults = run.faults
        self._results, self._state = results, _state(path)

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the columns of /cases (docs/results-file.md) of each case, by its id."""
        own = self._results.kind_columns
        absent = {column.name: ABSENT[column.type] for column in own.columns}
        return {item.case.case_id: {
            "run_id": self.run_id, "run": self.name,
            **{name: _COLUMNS[name].plain(value)
               for name, value in row_of(item).items()},
            **absent, **own.values.get(item.case.case_id, {})} for item in self._results.cases}

    def samples(self, case_id: str) -> CaseSamples | None:
        """Return ranks, start_ns and end_ns (rank, sample), launch and pass_index (sample,) of a
        case, on the ranks' own clocks; None if none were recorded."""
        # To check the whole file again for each case takes long.
        is_same = self._state is not None and _state(self.path) == self._state
        with open_again(self.path, self._results) if is_same else open_results(self.path) as file:
            return file.samples(case_id)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the identity of the run, its hosts and versions, as JSON values."""
        return {"run_id": self.run_id, "run": self.name, "started": self.started,
                "hosts": list(self.hosts), "world_size": self.world_size,
                "versions": dict(self.versions), "faults": list(self.faults),
                "path": os.fspath(self.path)}

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.path)!r}, {len(self._results.cases)} cases)"


@dataclass(frozen=True)
class LoadedCase:
    """One case of a run.

    Attributes:
        run: the `LoadedRun` that it is of.
        status: ok, wrong, skipped, failed, timeout or not_run; ``reason`` says why it is not ok.
        label: its name in one line; ``case_id`` identifies it.
        parameters: its setting: kind, backend, world_size, requested_bytes and so on.
        metrics: column of /cases -> number (docs/results-file.md), such as size_bytes.
        median_s: median time of a sample in seconds, folded over ranks; None without times.
        interval: ends of the median's 95 % interval in seconds; None without a reliable one.
        samples: each rank's own seconds of a call, float64 (rank, sample), warm-ups included.
        counted: which samples are in the statistics, bool (sample,).
        phases: phase -> seconds, float64 (rank, sample)."""

    run: LoadedRun
    _item: CaseResult

    @property
    def case_id(self) -> str:
        return self._item.case.case_id

    @property
    def label(self) -> str:
        return self._item.case.label

    @property
    def status(self) -> str:
        return self._item.status

    @property
    def reason(self) -> str:
        return self._item.reason

    @property
    def parameters(self) -> Mapping[str, Any]:
        return parameters(self._item.case)

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.run.rows[self.case_id].items()
                if isinstance(value, (int, float)) and value != -1 and value == value}

    @property
    def median_s(self) -> float | None:
        return self._item.statistics.median_s if self._item.statistics else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self._item.statistics.reliable_interval if self._item.statistics else None

    @property
    def samples(self) -> Seconds:
        found = self.run.samples(self.case_id)
        return np.empty((0, 0)) if found is None else _seconds(self._item, found)

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        found = self.run.samples(self.case_id)
        return np.empty(0, dtype=bool) if found is None else _counted(found)

    @property
    def phases(self) -> Mapping[str, Seconds]:
        found = self.run.samples(self.case_id)
        return {name: times_ns / 1e9 for name, times_ns in found.phases.items()} if found else {}

    def __repr__(self) -> str:
        return f"LoadedCase({self.label!r}, {self.status})"


class Cases(Sequence[LoadedCase]):
    """Cases of one run or several, in their order."""

    def __init__(self, found: Iterable[LoadedCase]) -> None:
        self._found = tuple(found)

    def filter(self, **wanted: Any) -> Cases:
        """Return the cases whose parameters, or columns of /cases, have these values.

        A list, tuple or set stands for any of its values. Raises KeyError for a name that no case
        has."""
        values = [{**one.run.rows[one.case_id], **one.parameters} for one in self._found]
        for name in wanted:
            if values and not any(name in each for each in values):
                raise KeyError(f"{name}: no case has it; they have "
                               f"{', '.join(sorted({key for each in values for key in each}))}")
        return Cases(one for one, each in zip(self._found, values, strict=True) if all(
            name in each and _is_one_of(each[name], value) for name, value in wanted.items()))

    def __getitem__(self, at: Any) -> Any:
        """Return the case at a position or with an id; for a slice, cases."""
        if isinstance(at, str):
            return next((one for one in self._found if one.case_id == at), None) or _missing(at)
        return Cases(self._found[at]) if isinstance(at, slice) else self._found[at]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"Cases({len(self)})"


def _missing(case_id: str) -> Any:
    raise KeyError(case_id)


def _is_one_of(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, (list, tuple, set)) else bool(value == wanted)


@dataclass(frozen=True)
class Runs:
    """The runs that `load` found, in the order of their paths.

    Attributes:
        runs: each results file, as a `LoadedRun`.
        cases: the cases of all runs (`Cases`): iterate, index by position or id, ``filter``."""

    runs: tuple[LoadedRun, ...]

    @cached_property
    def cases(self) -> Cases:
        return Cases(LoadedCase(run, item) for run in self.runs for item in run._results.cases)

    def to_pandas(self, *, samples: bool = False) -> Any:
        """Return a DataFrame: a row a case, or with ``samples`` a row a sample of a rank.

        The identities of the runs are in ``attrs["runs"]``. Raises ImportError without pandas."""
        frame = _library("pandas").DataFrame(self._columns(samples=samples))
        frame.attrs["runs"] = [run.metadata for run in self.runs]
        return frame

    def to_polars(self, *, samples: bool = False) -> Any:
        """Return the same as a DataFrame of polars, which has no place for what identifies runs."""
        return _library("polars").DataFrame(self._columns(samples=samples))

    def to_arrow(self, *, samples: bool = False) -> Any:
        """Return the same as a table of pyarrow, null for NaN; its metadata has ``runs``, as JSON.
        """
        arrow = _library("pyarrow")
        table = arrow.table({name: arrow.array(values, from_pandas=True) for name, values in
                             self._columns(samples=samples).items()})
        runs = to_json([run.metadata for run in self.runs])
        return table.replace_schema_metadata({"runs": runs})

    def _columns(self, *, samples: bool) -> dict[str, Any]:
        rows = [run.rows for run in self.runs]
        names = dict.fromkeys(name for found in rows for row in found.values() for name in row)
        if not samples:
            return {name: [row.get(name) for found in rows for row in found.values()]
                    for name in names}
        return _joined([part for run in self.runs for part in _sample_columns(run)])

    def __len__(self) -> int:
        return len(self.runs)


def _sample_columns(run: LoadedRun) -> Iterator[dict[str, Any]]:
    """Yield the columns of the samples of each case of a run, which is opened once."""
    with open_results(run.path) as file:
        for item in file.results.cases:
            samples = file.samples(item.case.case_id)
            if samples is None:
                continue
            ranks, count = samples.start_ns.shape
            each: dict[str, Any] = {
                "run_id": np.full(ranks * count, run.run_id, dtype=object),
                "run": np.full(ranks * count, run.name, dtype=object),
                "case_id": np.full(ranks * count, item.case.case_id, dtype=object),
                "label": np.full(ranks * count, item.case.label, dtype=object),
                "rank": np.repeat(samples.ranks, count),
                "iteration": np.tile(np.arange(count), ranks),
                "launch": np.tile(samples.launch, ranks),
                "pass": np.tile(samples.pass_index, ranks),
                "counted": np.tile(_counted(samples), ranks),
                "seconds": _seconds(item, samples).ravel()}
            yield each


def _seconds(item: CaseResult, found: CaseSamples) -> Seconds:
    """Return the seconds of a call, (rank, sample); a sample for a check alone is one call."""
    calls = np.where(has_flag(found, Flag.SINGLE), 1, item.case.batch)
    seconds: Seconds = (found.end_ns - found.start_ns) / (1e9 * calls)
    return seconds


def _counted(found: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return which samples (sample,) are in the statistics."""
    if found.use is None:
        return np.ones(found.start_ns.shape[1], dtype=bool)
    return counts(found.use)


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of all parts one after the other; empty ones without any."""
    return {name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0, dtype)
            for name, dtype in _SAMPLE_COLUMNS.items()}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        extra = "parquet" if name == "pyarrow" else name
        raise ImportError(
            f"{name} is not installed: {how_to_install(extra)}, or pip install {name}") from None


def load(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Runs:
    """Read results files: of a path, a pattern such as ``results/*/results.h5``, or a list of them.

    A folder stands for the ``results.h5`` in it. Samples are read when they are asked for.

    Raises hpcbench.errors.FileError for a file without results, or a pattern without a match,
    UsageError for a run that is given twice, but through ``latest``."""
    patterns = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = [file for one in patterns for file in _matches(os.fspath(one))]
    runs = []
    for path in map(file_of, each_once(files)):
        with open_results(path) as file:
            runs.append(LoadedRun(path, file.results))
    refuse_copies([run.path for run in runs], [run.run_id for run in runs])
    return Runs(tuple(runs))


def _matches(pattern: str) -> list[Path]:
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [Path(pattern)]
    if not (matches := sorted(glob.glob(pattern, recursive=True))):  # noqa: PTH207 (absolute, too)
        raise FileError(f"{pattern}: matches no file; give results.h5 of a run, its folder, or a "
                        "pattern such as results/*/results.h5")
    return [Path(one) for one in matches]
