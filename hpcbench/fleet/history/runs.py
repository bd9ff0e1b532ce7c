"""The runs below a folder, in order of the start times that their files state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.records import dataclass
from hpcbench.reduce.results_file import FILE_NAME, open_results

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run of the history: where it lies, when it began, seconds since 1970, and its id."""

    path: Path
    began_s: float
    run_id: str


def results_below(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield each results file below the folders once. Raises FileError for what is no folder."""
    seen = set()
    for folder in folders:
        if not folder.is_dir():
            raise FileError(f"{folder}: is no folder; give folders with runs in them")
        for path in sorted(folder.rglob(FILE_NAME)):
            if (real := path.resolve()) not in seen:
                seen.add(real)
                yield path


def read_runs(paths: Iterable[Path]) -> tuple[list[StoredRun], list[str]]:
    """Return the runs, the oldest first, and a line for each file that is left out."""
    runs, left_out = [], []
    for path in paths:
        try:
            with open_results(path) as file:
                run = file.results.run
            began = datetime.strptime(run.started_at, TIME_FORMAT)
        except FileError as error:
            left_out.append(str(error))
        except ValueError:
            left_out.append(f"{path}: states no start time")
        else:
            runs.append(StoredRun(path, began.timestamp(), run.run_id))
    return sorted(runs, key=lambda one: one.began_s), left_out
