"""The commands for a real job's communication: ``hpcbench record``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import UsageError
from hpcbench.texts import say

MOST_CALLS = 10**7


def record(
    command: Annotated[Optional[list[str]], typer.Argument(
        metavar="-- CMD...", help="The job's own command, as each rank is to run it.")] = None,
    output: Annotated[Path, typer.Option(
        "-o", "--output", metavar="DIR", callback=completion.not_dash,
        help="Folder for a file of each rank; default: record.")] = Path("record"),
    calls: Annotated[Optional[int], typer.Option(
        "--calls", min=1, max=MOST_CALLS, metavar="N",
        help="Newest calls that torch keeps of a rank; default: 20000.")] = None,
    durations: Annotated[bool, typer.Option(
        "--durations",
        help="Also gloo's durations, by torch's profiler.")
    ] = False,
    profile: Annotated[Optional[str], typer.Option(
        "--profile", metavar="FIRST-LAST",
        help="Also a Kineto trace of these optimizer steps, such as 3-5.")] = None,
    startup: Annotated[bool, typer.Option(
        "--startup",
        help="Only print the folder for PYTHONPATH, which does the same.")
    ] = False,
    cost: Annotated[bool, typer.Option(
        "--cost",
        help="Only measure what recording adds to a call here, in about a minute.")
    ] = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Run a job's command and record the collectives of each rank.

    Examples:
        mpirun -np 4 python -m hpcbench record -o rec -- python train.py
        hpcbench record --durations --calls 100000 -- python train.py
        hpcbench record --startup"""
    from hpcbench.interop.traffic.recording import STARTUP, Recording, run_recorded

    if startup:
        say(STARTUP)
        return
    if cost:
        from hpcbench.interop.traffic.recording import cost_lines

        for line in cost_lines():
            say(line)
        return
    if not command:
        raise UsageError("give the job's command behind --, such as -- python train.py")
    steps = profiled_steps(profile, durations=durations)
    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"PYTHONPATH begins with {STARTUP}"])
    sys.stdout.flush()
    run_recorded(command, Recording(output, calls, durations, quiet, steps))


def profiled_steps(text: str | None, *, durations: bool) -> str | None:
    """Return first and last step, ``3-5``. Raises UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--profile {text[:40]}: give the first and the last step from 1 "
                                 "on, such as 3-5")
    if durations:
        raise UsageError("--profile and --durations both need torch's profiler: give one")
    return f"{match[1]}-{match[2] or match[1]}"
