"""The folder of a session: what each step came to, so that a second run goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu.machine import Machine
from gpu.steps import Step, Steps

FINAL = ("done", "failed", "timeout", "skipped")
"""What a step came to that needs no other try; whether it is still ``skipped`` is asked again."""


@dataclass(frozen=True)
class Record:
    """What one step came to.

    ``state``: ``done`` (an exit code that it accepts), ``failed``, ``timeout`` (its own limit),
    ``cut`` (the session's time was over, or it was interrupted), ``skipped`` (``reason`` says why)
    or ``not run``.
    """

    name: str
    state: str
    reason: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    fingerprint: str = ""
    ended_at: str = ""

    @property
    def is_final(self) -> bool:
        """Tell whether a second run leaves it as it is."""
        return self.state in FINAL


def fingerprint(step: Step, steps: Steps, machine: Machine) -> str:
    """Return what changes when the step, a file that it names, or the machine does."""
    words = [step.sweep, *step.command]
    inside = [steps.here / word.replace("{here}/", "") for word in words if word]
    contents = [path.read_text("utf-8") for path in inside
                if path.is_file() and path.is_relative_to(steps.here)]
    text = json.dumps([asdict(step), contents, machine.identity()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_record(folder: Path, record: Record) -> None:
    """Keep what a step came to; the file is absent or whole."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "step.json",
               asdict(record) | {"ended_at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})


def read_record(folder: Path, name: str, expected: str) -> Record:
    """Return what a step came to, ``not run`` where nothing is kept or it was another step."""
    try:
        kept = Record(**json.loads((folder / "step.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return Record(name, "not run")
    if kept.fingerprint != expected:
        return Record(name, "not run", "it, or the machine, has changed since it was run")
    return kept


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is absent or whole."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
