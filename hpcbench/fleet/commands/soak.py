"""``hpcbench soak``: one sweep again and again, for hours or days."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands.flags import (
    JOB,
    MEASUREMENT,
    RESUMING,
    ConfigArgument,
    ConfigOption,
    ExcludeOption,
    InlineOption,
    OnlyOption,
    OutputOption,
    QuietOption,
    SetOption,
    VerboseOption,
    config_path,
    overrides_of,
    verbosity_of,
)
from hpcbench.commands.jobs import announce_start, seconds_of
from hpcbench.errors import UsageError
from hpcbench.texts import stored_path

_LONGEST_S = 90 * 86_400.0


def soak(
    config: ConfigArgument = None, config_option: ConfigOption = None,
    duration: Annotated[Optional[str], typer.Option(
        "--for", metavar="TIME", rich_help_panel=JOB,
        help="How long: 24h, 30m, 7d; without it a resumed soak goes on as planned.")] = None,
    cycles: Annotated[Optional[int], typer.Option(
        "--cycles", min=1, metavar="N", rich_help_panel=JOB,
        help="End after so many cycles, too.")] = None,
    fail_fast: Annotated[bool, typer.Option(
        "--fail-fast", rich_help_panel=JOB,
        help="End at the first wrong result, failure or missed limit.")] = False,
    inline: InlineOption = False,
    resume: Annotated[Optional[Path], typer.Option(
        metavar="DIR", rich_help_panel=RESUMING,
        help="Go on with the soak in this folder, or begin it there.")] = None,
    output: OutputOption = None, only: OnlyOption = None, exclude: ExcludeOption = None,
    passes: Annotated[Optional[int], typer.Option(
        metavar="N", rich_help_panel=MEASUREMENT, help="Passes of a cycle.")] = None,
    assignments: SetOption = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Repeat a sweep for hours: wrong results, failures, drift, in a bounded file.

    Every result is checked. Exit code 1: something was found; 3: stopped before its end.

    Examples:
        mpirun -np 4 python -m hpcbench soak sweep.yaml --for 24h
        mpirun -np 4 python -m hpcbench soak sweep.yaml --for 7d --resume results/soak1
        mpirun -np 4 python -m hpcbench soak --for 60s --only all_reduce --passes 3"""
    overrides = overrides_of({
        "only": only, "exclude": exclude, "measure.passes": passes,
        "output.folder": stored_path(output) if output else None,
        "launch.inline": inline or None}, assignments)
    path, verbosity = config_path(config, config_option), verbosity_of(verbose, quiet)
    if resume is not None and output is not None:
        raise UsageError("--resume names the folder of the soak; leave -o away")
    planned_s = None if duration is None else seconds_of(duration, "--for", _LONGEST_S)
    if planned_s is None and resume is None:
        raise UsageError("--for: say how long to soak, as --for 24h")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the soak can take it as a request
    sys.stderr = sys.__stderr__
    announce_start(os.environ, verbosity)
    from hpcbench.measurement.process import no_collection_of_modules

    with no_collection_of_modules():
        from hpcbench.fleet.soak.job import SoakRequest, soak_command

    raise typer.Exit(soak_command(SoakRequest(
        path, overrides, planned_s, cycles, resume, fail_fast, verbosity)))
