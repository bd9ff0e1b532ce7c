"""The folder of one run: made by rank 0 before the first case, seen by all ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.plan.case import Plan, plan_to_json
from hpcbench.plan.history import History
from hpcbench.trace.attempts import attempt_folder
from hpcbench.trace.files import whole_file


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``path`` holds config.json, plan.json, traces/ and later the results.

    ``attempt`` is the one at the run that this job is.
    """

    path: Path
    run_id: str
    attempt: int = 0

    @property
    def traces(self) -> Path:
        """Return the folder of the per-rank traces of this attempt."""
        return attempt_folder(self.path / "traces", self.attempt)


def create_run_folder(plan: Plan, parent: Path, path: Path | None = None) -> RunFolder:
    """Make ``path``, or ``<parent>/<name>-<time>-<id>``, and point ``latest`` to it.

    Raises FileError if the folder cannot be made or written.
    """
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = RunFolder(path or parent / f"{plan.name}-{run_id}", run_id)
    try:
        folder.traces.mkdir(parents=True)
        for name, text in _plan_files(plan).items():
            (folder.path / name).write_text(text)
        with contextlib.suppress(OSError) if path else contextlib.nullcontext():
            _point_latest_to(folder.path)  # a named folder's parent may be somebody else's
    except OSError as error:
        raise FileError(f"{folder.path}: cannot be made: {error.strerror}; choose another folder "
                        "with -o DIR (output.folder)") from error
    return folder


def take_up_folder(path: Path, plan: Plan, history: History) -> RunFolder:
    """Make a place for the next attempt in the folder of a run, beside what is there.

    Raises FileError if it cannot be made, or if another job has just made it.
    """
    folder = RunFolder(path, history.run_id, history.attempt)
    try:
        folder.traces.mkdir(parents=True)
        if plan.plan_hash not in (path / "plan.json").read_text():
            for name in ("config", "plan"):
                kept = path / f"{name}-before-attempt{history.attempt}.json"
                kept.write_bytes((path / f"{name}.json").read_bytes())
            for name, text in _plan_files(plan).items():
                with whole_file(path / name) as part:
                    part.write_text(text)
        with contextlib.suppress(OSError):
            _point_latest_to(path)
    except FileExistsError as error:
        raise FileError(f"{folder.traces}: another job resumes this run; let it end") from error
    except OSError as error:
        raise FileError(f"{path}: cannot be resumed: {error.strerror}; fix it, or choose another "
                        "folder") from error
    return folder


def _plan_files(plan: Plan) -> dict[str, str]:
    """Return the name and the text of each file that says what is run."""
    return {"config.json": json.dumps(plan.config, indent=1) + "\n",
            "plan.json": json.dumps(plan_to_json(plan)) + "\n"}


def _point_latest_to(path: Path) -> None:
    """Replace the link in one step; a file of that name that is no link is left alone."""
    latest = path.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        return
    beside = path.parent / f".latest-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    beside.symlink_to(path.name)
    beside.replace(latest)
