"""The folder of one run: made by rank 0 before the first case, seen by all ranks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.errors import FileError
from hpcbench.plan.case import Plan, plan_to_json


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``path`` holds config.json, plan.json, traces/ and later the results."""

    path: Path
    run_id: str

    @property
    def traces(self) -> Path:
        """Return the folder of the per-rank traces."""
        return self.path / "traces"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"path": str(self.path), "run_id": self.run_id}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunFolder:
        """Rebuild what `to_json` gave."""
        return cls(Path(data["path"]), data["run_id"])


def create_run_folder(plan: Plan) -> RunFolder:
    """Make ``<output.folder>/<name>-<time>-<id>`` and point ``latest`` to it.

    Raises FileError if the folder cannot be made or written.
    """
    parent = Path(plan.config["output"]["folder"]).absolute()
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = RunFolder(parent / f"{plan.name}-{run_id}", run_id)
    try:
        folder.traces.mkdir(parents=True)
        (folder.path / "config.json").write_text(json.dumps(plan.config, indent=1) + "\n")
        (folder.path / "plan.json").write_text(json.dumps(plan_to_json(plan)) + "\n")
        _point_latest_to(folder.path)
    except OSError as error:
        raise FileError(f"{folder.path}: cannot be made: {error.strerror}; choose another folder "
                        "with -o DIR (output.folder)") from error
    return folder


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
