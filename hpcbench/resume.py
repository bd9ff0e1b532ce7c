"""How a run begins: afresh, or where an earlier attempt at the same plan ended.

Rank 0 alone reads configs and traces, so what that takes is imported there only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.history import History

Overrides = Sequence[tuple[str, object]]
LATEST = Path("latest")
"""What ``--resume`` without a folder means: the newest run in output.folder, if there is one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for. ``folder`` is None where every run makes a new one.

    ``inline``: a new run is to have its workers in the ranks' own processes.
    """

    config: Path | None
    overrides: Overrides
    folder: Path | None = None
    force: bool = False
    inline: bool = False


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a job does: a plan, of which a history is done, in a folder (None: a new one)."""

    plan: Plan
    history: History
    folder: Path | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"plan": plan_to_json(self.plan), "history": self.history.to_json(),
                "folder": None if self.folder is None else str(self.folder)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Beginning:
        """Rebuild what `to_json` gave."""
        return cls(plan_from_json(data["plan"]), History.from_json(data["history"]),
                   Path(data["folder"]) if data["folder"] else None)


def begin(asked: Asked, world_size: int) -> Beginning:
    """Return what this job does. Raises UsageError if it cannot go on where it is to."""
    from hpcbench.reduce.history import is_fresh

    if asked.folder == LATEST:
        return _latest(asked, world_size)
    if asked.folder is not None:
        asked = replace(asked, folder=asked.folder.resolve())
    if asked.folder is None or is_fresh(asked.folder):
        plan = _planned(asked, world_size)
        return Beginning(plan, History(), asked.folder)
    return _going_on(asked, asked.folder, world_size)


def earlier_run(asked: Asked, world_size: int) -> tuple[str, str] | None:
    """Return folder and run id of the run that this job goes on with; None if it begins one.

    Raises UsageError for a folder that is no run's.
    """
    from hpcbench.reduce.history import is_fresh, run_id_before

    folder = asked.folder
    if folder == LATEST:
        folder = Path(_planned(asked, world_size).config["output"]["folder"]).absolute() / LATEST
    if folder is None or is_fresh(folder := folder.resolve()):
        return None
    run_id = run_id_before(folder)
    return (str(folder), run_id) if run_id else None


def _planned(asked: Asked, world_size: int) -> Plan:
    from hpcbench.config.load import load_config
    from hpcbench.plan.expand import make_plan

    overrides = [*asked.overrides, *([("launch.inline", True)] if asked.inline else [])]
    return make_plan(load_config(asked.config, overrides), world_size)


def _latest(asked: Asked, world_size: int) -> Beginning:
    plan = _planned(asked, world_size)
    latest = Path(plan.config["output"]["folder"]).absolute() / LATEST
    if not latest.is_dir():
        return Beginning(plan, History(), None)
    return begin(replace(asked, folder=latest.resolve()), world_size)


def _going_on(asked: Asked, folder: Path, world_size: int) -> Beginning:
    from hpcbench.reduce.history import read_history, read_plan

    before = read_plan(folder)
    if before.world_size != world_size:
        raise UsageError(f"{folder}: the run there is of {before.world_size} ranks, this job has "
                         f"{world_size}: start as many, or give a new folder")
    if asked.overrides and asked.config is None:
        raise UsageError(f"{folder}: without a config the run there goes on as it was planned, so "
                         "no flag can change it: leave the flags away, or give the config, too")
    plan = before
    if asked.config is not None:
        plan = _planned(asked, world_size)
    changes = []
    if plan.plan_hash != before.plan_hash:
        if (plan.passes, plan.launches) != (before.passes, before.launches):
            raise UsageError(f"{folder}: the run there has {before.launches} launches of "
                             f"{before.passes} passes, the config now asks for {plan.launches} of "
                             f"{plan.passes}: they cannot be one run; give a new folder")
        changes.append(f"the plan was {before.plan_hash}, now it is {plan.plan_hash}")
        refuse(changes, folder, asked.force)
    history = read_history(folder, plan)
    return Beginning(plan, replace(history, changes=tuple(changes)), folder)


def with_software(
    beginning: Beginning, versions: Mapping[str, str], *, force: bool
) -> History:
    """Return the history with what has changed since. Raises UsageError unless that is forced."""
    from hpcbench.reduce.history import versions_before

    history = beginning.history
    if not history.attempt or beginning.folder is None:
        return history
    before = versions_before(beginning.folder)
    changes = [f"{name} was {before.get(name)}, now it is {versions.get(name)}"
               for name in sorted({*before, *versions}) if before
               and before.get(name) != versions.get(name)]
    refuse(changes, beginning.folder, force)
    return replace(history, changes=(*history.changes, *changes))


def refuse(changes: Sequence[str], folder: Path, force: bool) -> None:
    """Raise UsageError if there are changes and nobody insists."""
    if changes and not force:
        raise UsageError(f"{folder}: cannot be resumed as it is: {'; '.join(changes)}. Give the "
                         "same config, flags and environment as before, or a new folder, or "
                         "--force to go on all the same (the results will say so)")
