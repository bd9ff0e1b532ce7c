"""The steps of a session, as a YAML or JSON file lists them: what each runs, and its goals.

    device: cuda                    # or cpu: then no GPU is needed
    steps:
      - name: nccl_right            # letters, digits, - and _
        sweep: sweeps/nccl.yaml     # under mpirun; beside this file, or:
        command: ["{python}", program.py, "{folder}"]
        ranks: gpus                 # of a sweep; also gpus+1, or a number
        limit_s: 300
        goals:
          - {id: right, text: Every collective is right., judge: all_ok}

In a command and in ``env`` stand ``{python}``, ``{here}`` (the folder of this file), ``{folder}``
(that of the step), ``{session}``, ``{gpus}`` (how many), ``{uuids}`` and ``{mig}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_KEYS = {"name", "sweep", "command", "ranks", "limit_s", "least_gpus", "needs_mig", "env", "set",
         "goals", "accepts"}
_DEVICES = ("cuda", "cpu")
_RANKS = re.compile(r"gpus(\+1)?|[1-9]\d*")


class StepsError(Exception):
    """A file of steps that cannot be used: one line that says where and what."""


@dataclass(frozen=True)
class Goal:
    """What a step is to show; without a ``judge`` its exit code tells."""

    id: str
    text: str
    judge: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step: a sweep or a command, what it needs, how long it may take, and its goals.

    ``accepts`` are the exit codes with which it has done its work.
    """

    name: str
    sweep: str
    command: tuple[str, ...]
    ranks: str
    limit_s: float
    least_gpus: int
    needs_mig: bool
    env: Mapping[str, str]
    settings: Mapping[str, Any]
    goals: tuple[Goal, ...]
    accepts: tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """All steps in order, the device that they are for, and the folder that their files are in."""

    device: str
    here: Path
    steps: tuple[Step, ...]


def read_steps(path: Path) -> Steps:
    """Read a file of steps. Raises StepsError."""
    try:
        text = path.read_text(encoding="utf-8")
        # YAML 1.1 takes JSON's 1e-9 for a text
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StepsError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or set(raw) - {"device", "steps"} or not raw.get("steps"):
        raise StepsError(f"{path}: it needs steps, and may have device, and nothing else")
    if raw.get("device", "cuda") not in _DEVICES:
        raise StepsError(f"{path}: device must be one of {', '.join(_DEVICES)}")
    steps = tuple(_step(path, number, item) for number, item in enumerate(raw["steps"]))
    for what, names in (("step", [step.name for step in steps]),
                        ("goal", [goal.id for step in steps for goal in step.goals])):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise StepsError(f"{path}: two have the name of {what} {twice[0]}")
    return Steps(raw.get("device", "cuda"), path.resolve().parent, steps)


def _step(path: Path, number: int, raw: Any) -> Step:
    """Return one step. Raises StepsError that names it."""
    where = f"{path}: steps[{number}]"
    if not isinstance(raw, dict) or set(raw) - _KEYS:
        raise StepsError(f"{where}: its keys must be of {', '.join(sorted(_KEYS))}")
    name = str(raw.get("name", ""))
    if not re.fullmatch(r"[\w-]+", name):
        raise StepsError(f"{where}: name must be letters, digits, - and _")
    if bool(raw.get("sweep")) == bool(raw.get("command")):
        raise StepsError(f"{where} ({name}): it needs one of sweep and command")
    ranks, limit_s = str(raw.get("ranks", "gpus")), raw.get("limit_s", 300)
    if not _RANKS.fullmatch(ranks):
        raise StepsError(f"{where} ({name}): ranks must be gpus, gpus+1 or a number")
    if not isinstance(limit_s, (int, float)) or limit_s <= 0:
        raise StepsError(f"{where} ({name}): limit_s must be a number of seconds")
    try:
        goals = tuple(_goal(item) for item in raw["goals"])
    except (KeyError, TypeError) as error:
        raise StepsError(f"{where} ({name}): each of its goals needs id and text") from error
    return Step(
        name=name, sweep=str(raw.get("sweep", "")), ranks=ranks, limit_s=float(limit_s),
        command=tuple(map(str, raw.get("command", ()))), goals=goals,
        least_gpus=int(raw.get("least_gpus", 1)), needs_mig=bool(raw.get("needs_mig")),
        env={str(key): str(value) for key, value in raw.get("env", {}).items()},
        settings=raw.get("set", {}),
        accepts=tuple(raw.get("accepts", (0, 1) if raw.get("sweep") else (0,))))


def _goal(raw: Mapping[str, Any]) -> Goal:
    options = {key: value for key, value in raw.items() if key not in ("id", "text", "judge")}
    return Goal(str(raw["id"]), str(raw["text"]), str(raw.get("judge", "")), options)
