"""``hpcbench run``: the main job, or a dry run of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import typer

from hpcbench.commands.flags import ConfigFlags, OutputOption, RunFlags, SweepFlags, grouped
from hpcbench.launch.ranks.launcher_variables import announced_rank
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
        mpirun -np 4 python -m hpcbench run --resume results/latest
    """
    if how.world_size is not None and not how.dry:
        raise typer.BadParameter("--world-size is for --dry-run; mpirun -np sets a run's ranks")
    if how.resume is not None and (how.dry or output):
        raise typer.BadParameter("--resume names the results folder; leave --dry-run and -o away")
    if how.force and how.resume is None:
        raise typer.BadParameter("--force is for --resume")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    from hpcbench.resume import RunRequest
    from hpcbench.run import run_command

    path = source.path()
    overrides = sweep.overrides(
        output__folder=str(output) if output else None, require=how.require or None,
        launch__inline=how.inline or None)
    if how.dry:
        dry_run_here(path, overrides, how.world_size or 4, verbosity)
    sys.stderr = sys.__stderr__
    raise typer.Exit(run_command(
        RunRequest(path, overrides, how.resume, how.force, verbosity=verbosity,
                   explain=how.explain)))


def dry_run_here(
    path: Path | None, overrides: list[tuple[str, object]], world_size: int, verbosity: Verbosity,
) -> None:
    """Try the plan here, once: mpirun is not needed, and its further ranks have nothing to do."""
    if announced_rank(os.environ) > 0:
        raise typer.Exit
    from hpcbench.dry_run import dry_run

    raise typer.Exit(int(dry_run(path, overrides, world_size, verbosity)))
