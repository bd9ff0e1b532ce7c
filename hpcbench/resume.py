"""How a run begins: afresh, or where an earlier attempt at the same plan ended.

Rank 0 alone reads configs and traces, so the imports for that are made there only; all ranks read
the config in a late start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpcbench.config.schema import Config, stored_config
from hpcbench.errors import HpcbenchError, UsageError
from hpcbench.launch.attempt import PlannedRun
from hpcbench.launch.session import usual_limit_s
from hpcbench.plan.case import Plan
from hpcbench.plan.order import History
from hpcbench.records import dataclass
from hpcbench.texts import Verbosity, file_hash, path_of
from hpcbench.trace import container
from hpcbench.units import plural

Overrides = Sequence[tuple[str, object]]
LATEST = Path(container.LATEST)
"""The value of ``--resume`` without a folder: the newest run in output.folder, if there is one."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request of the command line. ``folder`` is None where every run makes a new one.

    ``retry``: cases of these statuses are run again, where a run goes on.
    ``inline``: a new run is to have its workers in the ranks' own processes. ``explain``: the
    results are printed with what their columns mean."""

    config: Path | None
    overrides: Overrides
    folder: Path | None = None
    force: bool = False
    retry: tuple[str, ...] = ()
    inline: bool = False
    verbosity: Verbosity = Verbosity.NORMAL
    explain: bool = False


def plan_run(request: RunRequest, world_size: int) -> PlannedRun:
    """Return the run of this job, on rank 0. Raises UsageError if it cannot be resumed as asked."""
    from hpcbench.reduce.history import is_fresh

    folder = request.folder
    if folder == LATEST:
        latest = _latest_folder(request)
        folder = latest if latest.is_dir() else None
    if folder is None or is_fresh(folder := folder.resolve()):
        return PlannedRun(_new_plan(request, world_size), History(), folder)
    return _going_on(request, folder, world_size)


def check_request(request: RunRequest, world_size: int) -> None:
    _new_plan(request, world_size)


def earlier_run(request: RunRequest) -> tuple[str, str] | None:
    """Return folder and run id of the run that this job goes on with; None if it begins one.

    Raises UsageError for a folder that is no run's."""
    from hpcbench.reduce.history import is_fresh, run_id_before

    folder = request.folder
    if folder == LATEST:
        folder = _latest_folder(request)
    if folder is None or is_fresh(folder := folder.resolve()):
        return None
    run_id = run_id_before(folder)
    return (str(folder), run_id) if run_id else None


def _new_plan(request: RunRequest, world_size: int) -> Plan:
    from hpcbench.config.load import source_lines
    from hpcbench.plan.expand import make_plan

    request.verbosity.details(source_lines(request.config, request.overrides))
    return make_plan(_config(request), world_size)


def _config(request: RunRequest) -> Config:
    from hpcbench.config.load import load_config

    overrides = [*request.overrides, *([("launch.inline", True)] if request.inline else [])]
    return load_config(request.config, overrides)


def start_limit_s(config: Path | None, overrides: Overrides) -> float:
    """Return launch.init_timeout_s: of the flags, else of the file as this rank sees it, else the
    usual one.

    Every rank asks, as the least limit ends the job; a pipe is left to rank 0's own reading."""
    flag = dict(overrides).get("launch.init_timeout_s")
    if isinstance(flag, (int, float)) and flag > 0:
        return float(flag)
    if config is None or config.is_file():
        from hpcbench.config.load import load_config

        with suppress(HpcbenchError, OSError):  # reported where all ranks can agree to end
            return load_config(config).launch.init_timeout_s
    return usual_limit_s()


def _latest_folder(request: RunRequest) -> Path:
    return path_of(_config(request).output.folder).absolute() / LATEST


def _going_on(request: RunRequest, folder: Path, world_size: int) -> PlannedRun:
    from hpcbench.reduce.history import read_history, read_plan

    request.verbosity.details([f"goes on with the run in {folder}"])
    before = read_plan(folder)
    if before.world_size != world_size:
        there = plural(before.world_size, "rank")
        raise UsageError(f"{folder}: the run there is of {there}, this job has "
                         f"{world_size}: start as many, or give a new folder")
    if request.overrides and request.config is None:
        raise UsageError(f"{folder}: without a config the run there goes on as it was planned, so "
                         "no flag can change it: leave the flags away, or give the config, too")
    plan = before
    if request.config is not None:
        plan = _new_plan(request, world_size)
    _refuse_changed_files(plan if request.force else before, folder)
    changes = []
    if plan.plan_hash != before.plan_hash:
        if (plan.passes, plan.launches) != (before.passes, before.launches):
            raise UsageError(f"{folder}: the run there has {_repeats(before)}, the config "
                             f"now asks for {_repeats(plan)}: they cannot be one run; give a new "
                             "folder")
        changes.append(f"the plan was {before.plan_hash}, now it is {plan.plan_hash}")
        refuse(changes, folder, request.force)
    history = read_history(folder, plan)
    if request.retry:
        history = history.retrying(_cases_of(folder, before, request.retry))
    return PlannedRun(plan, replace(history, changes=tuple(changes)), folder)


def _refuse_changed_files(plan: Plan, folder: Path) -> None:
    """Raise UsageError if a file of functions that cases run has changed or is gone."""
    files = {pair: None for case in plan.cases for pair in case.workload.features.files.items()}
    for path, before in files:
        try:
            now = file_hash(Path(path).read_bytes())
        except OSError as error:
            raise UsageError(f"{folder}: the run there measures functions of {path}: "
                             f"{error.strerror}; put it back, or start a new run") from None
        if now != before:
            raise UsageError(f"{folder}: {path} has changed since (sha256 {before}, now {now}), "
                             "so its cases are others now; start a new run")


def _cases_of(folder: Path, plan: Plan, statuses: Collection[str]) -> list[str]:
    """Return the ids of the cases that end in one of these statuses, as all traces have it now.

    The results in the folder may be older: a job that was killed has not written any."""
    from hpcbench.reduce.reduce import reduce_folder

    results = reduce_folder(
        folder, allow_mixed=stored_config(plan.config).launch.allow_mixed)
    return [item.case.case_id for item in results.cases if item.status in statuses]


def _repeats(plan: Plan) -> str:
    return f"{plural(plan.launches, 'launch')} of {plural(plan.passes, 'pass')}"


def with_software(planned: PlannedRun, versions: Mapping[str, str], *, force: bool) -> History:
    """Return the history with what has changed since. Raises UsageError unless that is forced."""
    from hpcbench.reduce.history import versions_before
    from hpcbench.trace.schema import same_version

    history = planned.history
    if not history.attempt or planned.folder is None:
        return history
    before = versions_before(planned.folder)
    changes = [f"{name} was {before.get(name)}, now it is {versions.get(name)}"
               for name in sorted({*before, *versions}) if before
               and not same_version(before.get(name), versions.get(name))]
    refuse(changes, planned.folder, force)
    return replace(history, changes=(*history.changes, *changes))


def refuse(changes: Sequence[str], folder: Path, force: bool) -> None:
    """Raise UsageError if there are changes, unless ``force``."""
    if changes and not force:
        raise UsageError(f"{folder}: cannot be resumed as it is: {'; '.join(changes)}. Give the "
                         "same config, flags and environment as before, a new folder, or "
                         "--force to resume anyway (recorded in the results)")
