"""``hpcbench run``: the main job, or a dry run of it.

``hpcbench plan``: what a run would do.

``hpcbench suite``: several sweep files as one MPI job.

``hpcbench profile``: a run whose cases are repeated for a while, and what stalls them.

``hpcbench validate``: is this machine, and this launch, ready for a run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench import __version__
from hpcbench.commands import completion
from hpcbench.commands.flags import (
    MOST_RANKS,
    ConfigFlags,
    InlineOption,
    JsonOption,
    OutputOption,
    RequireOption,
    RetryOption,
    RunFlags,
    SetOption,
    SweepFlags,
    grouped,
    overrides_of,
    statuses_to_retry,
)
from hpcbench.errors import HpcbenchError, UsageError
from hpcbench.launch.launcher import announced_rank, announced_size
from hpcbench.texts import stored_path
from hpcbench.units import plural, shortened
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
    from hpcbench.launch.template_process import early_template
    from hpcbench.measure.process import no_collection_of_modules

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


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """For which job a plan is, and what is asked of this machine."""

    world_size: Annotated[int, typer.Option(min=1, max=MOST_RANKS, help="Ranks to plan for.")] = 4
    probe: Annotated[bool, typer.Option(
        "--probe", help="Ask this machine, in a separate process, what it has.")] = False
    dry: Annotated[bool, typer.Option(
        "--dry-run", help="Then do what run --dry-run does, which needs torch.")] = False


@grouped
def plan(
    source: ConfigFlags, how: PlanFlags, as_json: JsonOption = False,
    *, sweep: SweepFlags, verbosity: Verbosity,
) -> None:
    """Print cases, order, skips and a time estimate; needs no MPI, torch or GPU.

    Examples:
        hpcbench plan
        hpcbench plan sweep.json --world-size 64 --probe
        hpcbench plan --only all_reduce --json | jq ".cases[].label"
    """
    if how.dry and as_json:
        raise typer.BadParameter("--json prints the plan; leave --dry-run away")
    from hpcbench.config.load import load_config, source_lines
    from hpcbench.plan.expand import make_plan
    from hpcbench.report.console import print_plan
    from hpcbench.report.plan_lines import print_plan_document

    overrides, path = sweep.overrides(), source.path()
    verbosity.details(source_lines(path, overrides))
    with verbosity.stage("plan"):
        job = make_plan(load_config(path, overrides), how.world_size)
    if how.probe:
        from hpcbench.launch.probe import resolve_here

        with verbosity.stage("probe"):
            job = resolve_here(job)
    if as_json:
        print_plan_document(job)
    else:
        print_plan(job, verbosity)
    if how.dry:
        dry_run_here(path, overrides, how.world_size, verbosity)


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
    from hpcbench.launch.session import become_job, default_ranks, ranks_of_launch

    ranks = ranks_of_launch(os.environ, what.gpus)
    if ranks is not None:
        announce_start(os.environ, verbosity)
    from hpcbench.profiling.profiled_cases import NSYS, require_nsys
    from hpcbench.resume import RunRequest, check_request
    from hpcbench.run import run_command

    path, seconds = source.path(), seconds_of(what.duration)
    if what.tool == NSYS:
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


@grouped
def validate(
    source: ConfigFlags,
    output: OutputOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    timeout: Annotated[float, typer.Option(
        min=1, max=3600, help="Seconds in which each rank has to answer.")] = 60.0,
    *, verbosity: Verbosity,
) -> None:
    """Check machine and launch before a run: mpirun -np 4 python -m hpcbench validate.

    With a sweep file also what that sweep needs. Exit code 1 if a check fails.

    Examples:
        mpirun -np 4 python -m hpcbench validate
        mpirun -np 4 python -m hpcbench validate sweep.json --quiet
        mpirun -np 4 python -m hpcbench validate --json | jq ".counts"
    """
    from hpcbench.validation.validate import ValidationRequest, validate_command

    sys.stderr = sys.__stderr__
    folder = stored_path(output) if output else None
    overrides = overrides_of({"output.folder": folder}, assignments)
    request = ValidationRequest(source.path(), overrides, as_json, timeout, verbosity)
    raise typer.Exit(validate_command(request))
