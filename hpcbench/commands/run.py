"""``hpcbench run``: the main job, or a dry run of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from hpcbench import __version__
from hpcbench.commands.flags import (
    ConfigFlags,
    OutputOption,
    RunFlags,
    SweepFlags,
    grouped,
    statuses_to_retry,
)
from hpcbench.launch.ranks.launcher_variables import announced_rank, announced_size
from hpcbench.texts import stored_path
from hpcbench.units import plural
from hpcbench.verbosity import Verbosity


@grouped
def run(
    source: ConfigFlags, output: OutputOption = None, *, sweep: SweepFlags, how: RunFlags,
    verbosity: Verbosity,
) -> None:
    """Run the sweep on all ranks: mpirun -np 4 python -m hpcbench run.

    Examples:
        mpirun -np 4 python -m hpcbench run
        mpirun -np 4 python -m hpcbench run sweep.json --only all_reduce -o results
        mpirun -np 4 python -m hpcbench run --resume results/latest --retry failed,timeout
    """
    if how.world_size is not None and not how.dry:
        raise typer.BadParameter("--world-size is for --dry-run; mpirun -np sets a run's ranks")
    if how.resume is not None and (how.dry or output):
        raise typer.BadParameter("--resume names the results folder; leave --dry-run and -o away")
    if how.force and how.resume is None:
        raise typer.BadParameter("--force is for --resume")
    retry = statuses_to_retry(how.retry, resumes=how.resume is not None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    path = source.path()
    overrides = sweep.overrides(
        output__folder=stored_path(output) if output else None, require=how.require or None,
        launch__inline=how.inline or None,
        fail_below=how.fail_below or None)
    if how.dry:
        dry_run_here(path, overrides, how.world_size or 4, verbosity)
    sys.stderr = sys.__stderr__
    announce_start(os.environ, verbosity)
    from hpcbench.launch.workers.template_process import early_template
    from hpcbench.measure.garbage import no_collection_of_modules

    # it imports torch while all else is imported here; an inline worker needs none
    with contextlib.nullcontext() if how.inline else early_template(os.environ) as early:
        with no_collection_of_modules():
            from hpcbench.resume import RunRequest
            from hpcbench.run import run_command

        raise typer.Exit(run_command(
            RunRequest(path, overrides, how.resume, how.force, retry, verbosity=verbosity,
                       explain=how.explain), early))


def announce_start(environ: Mapping[str, str], verbosity: Verbosity) -> None:
    """Say what begins, before MPI is started and anything heavy is imported; one rank speaks."""
    if announced_rank(environ) == 0:
        size, launcher = announced_size(environ) or (1, "")
        ranks = plural(size, "rank") + (f" of {launcher}" if launcher else "")
        with contextlib.suppress(OSError):  # the job says so itself, and ends on all ranks
            verbosity.announce(f"hpcbench {__version__}: starting {ranks}")


def dry_run_here(
    path: Path | None, overrides: list[tuple[str, object]], world_size: int, verbosity: Verbosity,
) -> None:
    """Try the plan here, once: mpirun is not needed, and its further ranks have nothing to do."""
    if announced_rank(os.environ) > 0:
        raise typer.Exit
    from hpcbench.dry_run import dry_run

    raise typer.Exit(int(dry_run(path, overrides, world_size, verbosity)))
