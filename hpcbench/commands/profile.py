"""``hpcbench profile``: a run whose cases are repeated for a while, and what stalls them."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import (
    ConfigFlags,
    OutputOption,
    SweepFlags,
    grouped,
    overrides_of,
)
from hpcbench.commands.run import announce_start
from hpcbench.errors import HpcbenchError, UsageError
from hpcbench.launch.ranks.launcher_variables import announced_rank
from hpcbench.texts import stored_path
from hpcbench.units import shortened
from hpcbench.verbosity import Verbosity

MOST_SAMPLES = 1_000_000
"""As measure.max_iterations allows: the duration ends a case, not a number of samples."""
PASSES = 5
"""A pass is one observation of who is slow: two ranks have four degrees of freedom then."""
NEVER_PRECISE = 1e-9
"""For measure.precision: nor does the precision of the median end it."""
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LONGEST_S = 86_400.0


def seconds_of(text: str) -> float:
    """Return the seconds of ``30s``, ``2m``, ``500ms`` or ``30``. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    seconds = float(match[1]) * _SECONDS.get(match[2], 0.0) if match else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"--duration {shortened(text)}: no duration above 0 and up to a day; "
                         "write 30s, 2m or 500ms")
    return seconds


@dataclass(frozen=True, slots=True)
class ProfileFlags:
    """What is profiled, for how long, on how many ranks, and who records it."""

    gpus: Annotated[Optional[int], typer.Option(
        "-g", "--gpus", help="Ranks to start, one a GPU, where no launcher has. Default: GPUs "
        "here, else 2.")] = None
    duration: Annotated[str, typer.Option(
        "-d", "--duration", help="Time of all timed loops together: 30s, 2m, 500ms.")] = "30s"
    target: Annotated[str, typer.Option(
        "-t", "--target", autocompletion=completion.targets,
        help="What to look at: sync_stalls, compute or communication.",
    )] = "sync_stalls"
    tool: Annotated[Optional[str], typer.Option(
        autocompletion=completion.tools,
        help="Who records traces: torch, nsys or none: profiling.tool.")] = None
    samples: Annotated[Optional[int], typer.Option(
        help="Recorded samples of each case: profiling.samples.")] = None

    def overrides(self) -> list[tuple[str, object]]:
        """Return (key path, value) pairs of the section that they stand for."""
        return overrides_of({
            "profiling.enabled": True, "profiling.target": self.target,
            "profiling.tool": self.tool, "profiling.samples": self.samples}, None)


@grouped
def profile(
    source: ConfigFlags, what: ProfileFlags, output: OutputOption = None, *, sweep: SweepFlags,
    verbosity: Verbosity,
) -> None:
    """Run what shows stalls, compute or communication for a while, and say what it found.

    Outside a launch it starts mpirun itself: hpcbench profile -g 4 -d 30s.

    Examples:
        hpcbench profile sweep.yaml --gpus 4 --duration 30s
        hpcbench profile -g 4 -d 2m --target communication -o profiles
        mpirun -np 4 python -m hpcbench profile --target compute --tool none
    """
    from hpcbench.launch.ranks.own_launch import become_job, default_ranks, ranks_of_launch

    ranks = ranks_of_launch(os.environ, what.gpus)
    if ranks is not None:
        announce_start(os.environ, verbosity)
    from hpcbench.profiling.nsys import TOOL, require_nsys
    from hpcbench.resume import RunRequest, check_request
    from hpcbench.run import run_command

    path, seconds = source.path(), seconds_of(what.duration)
    if what.tool == TOOL:
        require_nsys()
    folder = stored_path(output) if output else None
    given = [*what.overrides(), *sweep.overrides(output__folder=folder)]
    if announced_rank(os.environ) == 0:  # the only one that plans, and so reads the file
        given = [*_for_seconds(path, given, seconds), *given]
    request = RunRequest(path, given, verbosity=verbosity)
    if ranks is None:
        ranks = what.gpus or default_ranks()
        check_request(request, ranks)  # before mpirun says the same in many lines
        become_job(ranks, sys.argv[1:], os.environ)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    sys.stderr = sys.__stderr__
    raise typer.Exit(run_command(request))


def _for_seconds(
    path: Path | None, given: list[tuple[str, object]], seconds: float,
) -> list[tuple[str, object]]:
    """Return the keys by which the duration alone ends the cases, in `PASSES` passes.

    A case may use half of its time limit for its timed loop: the limit is raised, if need be.
    """
    from hpcbench.config.load import load_config

    timeout_s = 0.0
    with suppress(HpcbenchError):  # the run reports it, where all ranks can agree to end
        timeout_s = load_config(path, given).launch.timeout_s
    return [
        ("measure.iterations", "auto"), ("measure.max_iterations", MOST_SAMPLES),
        ("measure.precision", NEVER_PRECISE), ("measure.passes", PASSES), ("measure.launches", 1),
        ("measure.budget_s", seconds), ("launch.timeout_s", max(timeout_s, 3 * seconds))]
