"""An index beside the runs: one Parquet file of all values, so that only new files are read.

A row is a value of a case in a run, or a case without one. What was found in a series before is
kept with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbench.errors import FileError, UsageError, how_to_install
from hpcbench.fleet.history.change_points import LevelStep, steps
from hpcbench.fleet.history.runs import KnownRuns, StoredCase, StoredRun, StoredRuns, stamp_of
from hpcbench.statistics.order import Interval, Values
from hpcbench.texts import to_json
from hpcbench.trace.container import whole_file

VERSION = "4"  # 3 had cases by keys that were chosen file by file
_META, _STEPS, _METRICS, _CASES = (
    f"hpcbench.history.{name}".encode() for name in ("version", "steps", "metrics", "cases"))
_RUN = ("stamp", "path", "run_id", "began_s", "facts", "unmeasured")
_COLUMNS = (*_RUN, "case", "metric", "value")
_NUMBERS = ("began_s", "value")
_TEXTS = tuple(name for name in _COLUMNS if name not in _NUMBERS)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"--index needs pyarrow: {how_to_install('parquet')}") from None
    return parquet


def _texts(chunks: Sequence[Any]) -> list[Any]:
    """Return the texts of a column with a dictionary, equal ones as the same object; or None."""
    return [None if at is None else words[at] for chunk in chunks
            for words in [chunk.dictionary.to_pylist()] for at in chunk.indices.to_pylist()]


class HistoryIndex:
    """The content of an index: `KnownRuns`, and steps of series, by their values."""

    def __init__(self, path: Path, metrics: Sequence[str]) -> None:
        """Read the file, if there is one. Raises FileError for a file that is no index, and
        UsageError without pyarrow. One of other metrics or an older version is written anew."""
        self.path, self.metrics, self.known = path, tuple(metrics), KnownRuns()
        self._steps: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        parquet = _parquet()
        if path.exists():
            try:
                # `read_table` imports pandas
                table = parquet.ParquetFile(path, read_dictionary=[*_TEXTS]).read()
                meta = table.schema.metadata or {}
                is_ours = _META in meta
                if is_ours and meta[_META].decode() == VERSION and json.loads(
                        meta[_METRICS]) == [*self.metrics]:
                    self._take(table, meta)
            except (OSError, ValueError, KeyError) as error:
                raise FileError(f"{path}: is no index that can be read "
                                f"({str(error).splitlines()[0]}); remove it, or name another "
                                "file") from None
            if not is_ours:
                raise FileError(f"{path}: is no index of hpcbench, and is not written over; name "
                                "another file")

    def _take(self, table: Any, meta: dict[bytes, bytes]) -> None:
        columns = {name: table.column(name).to_pylist() for name in _NUMBERS} | {
            name: _texts(table.column(name).chunks) for name in _TEXTS}
        runs: dict[str, StoredRun] = {}
        values: dict[str, dict[str, dict[str, float]]] = {}
        parsed = {text: json.loads(text) for text in {*columns["facts"], *columns["unmeasured"]}}
        for at, stamp in enumerate(columns["stamp"]):
            if stamp not in runs:
                values[stamp] = {}
                runs[stamp] = StoredRun(
                    columns["path"][at], columns["run_id"][at], columns["began_s"][at],
                    parsed[columns["facts"][at]], values[stamp],
                    parsed[columns["unmeasured"][at]])
            if columns["case"][at] is not None:
                of_case = values[stamp].setdefault(columns["case"][at], {})
                if columns["metric"][at] is not None:
                    of_case[columns["metric"][at]] = columns["value"][at]
        self._steps = json.loads(meta[_STEPS])
        self.known = KnownRuns(runs, {
            key: StoredCase(**case) for key, case in json.loads(meta[_CASES]).items()})

    def steps(self, values: Values) -> list[LevelStep]:
        """Return the steps of a series, as they were found before or now."""
        key = hashlib.sha256(values.tobytes()).hexdigest()[:32]
        if key not in self._steps:
            self._steps[key] = [asdict(one) for one in steps(values)]
        self._used[key] = self._steps[key]
        return [LevelStep(one["index"], Interval(**one["change"]), one["chance"])
                for one in self._steps[key]]

    def save(self, stored: StoredRuns) -> None:
        """Write the index of these runs, whole or not at all. Raises FileError."""
        import pyarrow

        rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for run in stored.runs:
            head = (stamp_of(Path(run.path)), run.path, run.run_id, run.began_s,
                    to_json(dict(run.facts)), to_json(dict(run.unmeasured)))
            for case, of_case in run.values.items() or [(None, {})]:
                for metric, value in of_case.items() or [(None, None)]:
                    for name, cell in zip(_COLUMNS, (*head, case, metric, value), strict=True):
                        rows[name].append(cell)
        kept = {"version": VERSION, "steps": to_json(self._used), "metrics": to_json(
            [*self.metrics]), "cases": to_json(
                {key: asdict(case) for key, case in stored.cases.items()})}
        schema = pyarrow.schema(
            [(name, pyarrow.float64() if name in _NUMBERS else pyarrow.string())
             for name in _COLUMNS],
            metadata={f"hpcbench.history.{name}": text for name, text in kept.items()})
        with whole_file(self.path) as part:
            _parquet().write_table(pyarrow.table(rows, schema=schema), part, compression="zstd")

    def is_stale(self, stored: StoredRuns) -> bool:
        """Return whether the file lacks a run or a series, or has too many."""
        return self._used.keys() != self._steps.keys() or {
            run.run_id for run in stored.runs} != {run.run_id for run in self.known.runs.values()}
