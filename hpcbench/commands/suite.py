"""``hpcbench suite``: several sweep files as one MPI job."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands.flags import (
    InlineOption,
    OutputOption,
    RequireOption,
    RetryOption,
    SweepFlags,
    grouped,
    statuses_to_retry,
)
from hpcbench.commands.run import announce_start
from hpcbench.texts import stored_path
from hpcbench.verbosity import Verbosity


@dataclass(frozen=True, slots=True)
class SuiteFlags:
    """Which files the suite has, where its summary goes, and whether it goes on with another."""

    files: Annotated[Optional[list[Path]], typer.Argument(
        metavar="FILE...", help="Sweep files, JSON or YAML, in the order to run.")] = None
    more: Annotated[Optional[list[Path]], typer.Option(
        "--config", "-c", help="One more of them. Repeatable.")] = None
    summary: Annotated[Optional[Path], typer.Option(
        "--output", help="Write the suite's summary, suite.json, to this file, too.")] = None
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print suite.json at the end; all else goes to stderr.")] = False
    require: RequireOption = None
    inline: InlineOption = False
    resume: Annotated[Optional[Path], typer.Option(
        metavar="[DIR]", help="Go on with the suite in this folder: members that are done are "
        "kept. Without DIR: results/latest.")] = None
    retry: RetryOption = None
    force: Annotated[bool, typer.Option(
        "--force", help="Write over the file of --output. With --resume: in spite of changed "
        "software, which the results then tell.")] = False

    def all_files(self) -> tuple[Path, ...]:
        """Return the files that were given in either way, arguments first."""
        return (*(self.files or ()), *(self.more or ()))


@grouped
def suite(
    how: SuiteFlags, output: OutputOption = None, *, sweep: SweepFlags, verbosity: Verbosity,
) -> None:
    """Run several sweep files: mpirun -np 4 python -m hpcbench suite A.json B.yaml.

    Flags hold for all files. A member that fails does not stop the others; suite.json has them all.

    Examples:
        mpirun -np 4 python -m hpcbench suite sweep.yaml more.json
        mpirun -np 4 python -m hpcbench suite -c config.json --output results.json
        mpirun -np 4 python -m hpcbench suite --resume results/latest
    """
    files = how.all_files()
    overrides = sweep.overrides(
        output__folder=stored_path(output) if output else None, require=how.require or None,
        launch__inline=how.inline or None)
    if how.resume is None and not files:
        raise typer.BadParameter("give the sweep files: hpcbench suite A.json B.yaml")
    if how.resume is not None and (files or overrides):
        raise typer.BadParameter("--resume goes on with a suite as it was planned: leave sweep "
                                 "files and their flags away")
    if how.force and how.resume is None and how.summary is None:
        raise typer.BadParameter("--force is for --output or --resume")
    retry = statuses_to_retry(how.retry, resumes=how.resume is not None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the suite can take it as a request
    sys.stderr = sys.__stderr__
    if not how.as_json:
        announce_start(os.environ, verbosity)
    from hpcbench.suite import SuiteRequest, suite_command

    raise typer.Exit(suite_command(SuiteRequest(
        files, overrides, how.summary, how.resume, how.force, retry, how.as_json, verbosity)))
