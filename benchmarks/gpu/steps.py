"""The steps of a session, as a YAML or JSON file lists them: what each runs, and its goals.

    device: cuda                    # or cpu: then no GPU is needed
    one_gpu: [nccl_right]           # the order on one GPU; the others follow as they stand
    steps:
      - name: nccl_right            # letters, digits, - and _
        sweep: sweeps/nccl.yaml     # under mpirun; beside this file, or:
        command: ["{python}", program.py, "{folder}"]
        ranks: gpus                 # of a sweep; also gpus+1, or a number
        limit_s: 300
        least_gpus: 2               # skipped on fewer
        modules: [scipy]            # skipped where this Python has no such module
        own_mpirun: true            # skipped where mpirun is not beside this Python
        goals:
          - {id: right, text: Every collective is right., judge: all_ok}

A goal may have ``least_gpus``, too: it is skipped on fewer, since they prove nothing of it. One
with ``most_gpus`` is left out on more, where another goal asks for more.

In a command and in ``env`` stand ``{python}``, ``{here}`` (the folder of this file), ``{folder}``
(that of the step), ``{session}``, ``{gpus}`` (how many), ``{uuids}`` and ``{mig}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

_KEYS = {"name", "sweep", "command", "ranks", "limit_s", "least_gpus", "needs_mig", "env", "set",
         "goals", "accepts", "modules", "own_mpirun"}
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
    least_gpus: int = 1
    most_gpus: int | None = None


@dataclass(frozen=True)
class Step:
    """One step: a sweep or a command, what it needs, how long it may take, and its goals.

    ``accepts`` are the exit codes with which it has done its work. ``modules`` are what it imports
    beyond what each session needs.
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
    modules: tuple[str, ...] = ()
    own_mpirun: bool = False


@dataclass(frozen=True)
class Steps:
    """All steps in order, the device that they are for, and the folder that their files are in.

    ``one_gpu`` names what is run first on one GPU: what that proves without any other.
    """

    device: str
    here: Path
    steps: tuple[Step, ...]
    one_gpu: tuple[str, ...] = ()

    def on(self, gpus: int) -> Steps:
        """Return the steps in the order for so many GPUs, with the goals that these can show."""
        if self.device == "cpu":
            return self
        steps = list(self.steps)
        if gpus == 1:
            places = {name: place for place, name in enumerate(self.one_gpu)}
            steps.sort(key=lambda step: places.get(step.name, len(places)))
        return replace(self, steps=tuple(
            replace(step, goals=tuple(goal for goal in step.goals
                                      if goal.most_gpus is None or gpus <= goal.most_gpus))
            for step in steps))


def read_steps(path: Path) -> Steps:
    """Read a file of steps. Raises StepsError."""
    try:
        text = path.read_text(encoding="utf-8")
        # YAML 1.1 takes JSON's 1e-9 for a text
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StepsError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or set(raw) - {"device", "steps", "one_gpu"} or not raw.get(
            "steps"):
        raise StepsError(f"{path}: it needs steps, may have device and one_gpu, and nothing else")
    if raw.get("device", "cuda") not in _DEVICES:
        raise StepsError(f"{path}: device must be one of {', '.join(_DEVICES)}")
    steps = tuple(_step(path, number, item) for number, item in enumerate(raw["steps"]))
    for what, names in (("step", [step.name for step in steps]),
                        ("goal", [goal.id for step in steps for goal in step.goals])):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise StepsError(f"{path}: two have the name of {what} {twice[0]}")
    one_gpu = tuple(map(str, raw.get("one_gpu", ())))
    if unknown := set(one_gpu) - {step.name for step in steps}:
        raise StepsError(f"{path}: one_gpu: there is no step {sorted(unknown)[0]}")
    return Steps(raw.get("device", "cuda"), path.resolve().parent, steps, one_gpu)


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
        settings=raw.get("set", {}), modules=tuple(map(str, raw.get("modules", ()))),
        own_mpirun=bool(raw.get("own_mpirun")),
        accepts=tuple(raw.get("accepts", (0, 1) if raw.get("sweep") else (0,))))


def _goal(raw: Mapping[str, Any]) -> Goal:
    own = ("id", "text", "judge", "least_gpus", "most_gpus")
    most = raw.get("most_gpus")
    return Goal(str(raw["id"]), str(raw["text"]), str(raw.get("judge", "")),
                {key: value for key, value in raw.items() if key not in own},
                int(raw.get("least_gpus", 1)), None if most is None else int(most))
