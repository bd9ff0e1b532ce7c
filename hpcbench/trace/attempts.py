"""Where each attempt at a run keeps its traces: a resumed run adds files and replaces none."""

from __future__ import annotations

from pathlib import Path

_PREFIX = "attempt"


def attempt_folder(traces: Path, attempt: int) -> Path:
    """Return the folder of an attempt's traces: ``traces``, then ``traces/attempt1`` and so on."""
    return traces / f"{_PREFIX}{attempt}" if attempt else traces


def is_later_attempt(path: Path) -> bool:
    """Return whether the path is the folder of an attempt after the first."""
    number = path.name.removeprefix(_PREFIX)
    return number.isdecimal() and path.name == f"{_PREFIX}{int(number)}" and path.is_dir()


def attempt_folders(traces: Path) -> list[Path]:
    """Return the folder of every attempt that there is, in order; the first need not exist."""
    later = [path for path in (traces.iterdir() if traces.is_dir() else [])
             if is_later_attempt(path)]
    return [traces, *sorted(later, key=lambda path: int(path.name.removeprefix(_PREFIX)))]


def attempt_of(traces: Path) -> int:
    """Return the number of the attempt whose folder this is."""
    return int(traces.name.removeprefix(_PREFIX)) if is_later_attempt(traces) else 0
