"""``hpcbench run``, ``plan``, ``suite`` and ``profile``: commands of a sweep file.

The flags that choose cases reach `sweep_overrides` by the context of the command."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench import __version__
from hpcbench.commands import flags
from hpcbench.commands.flags import (
    FILES,
    JOB,
    MOST_RANKS,
    PRINTED,
    RESUMING,
    BenchmarkOption,
    ConfigArgument,
    ConfigOption,
    ExcludeOption,
    ExplainOption,
    InlineOption,
    ItersOption,
    JsonOption,
    LaunchesOption,
    ModelOption,
    ModeOption,
    OnlyOption,
    OutputOption,
    PassesOption,
    QuietOption,
    RequireOption,
    RetryOption,
    SetOption,
    StrategyOption,
    VerboseOption,
    WarmupOption,
    config_path,
    overrides_of,
    statuses_to_retry,
    sweep_overrides,
    verbosity_of,
)
from hpcbench.errors import HpcbenchError, UsageError
from hpcbench.launch.launcher import announced_rank, announced_size
from hpcbench.texts import Verbosity, stored_path
from hpcbench.units import plural, shortened


def run(
    context: typer.Context, config: ConfigArgument = None, config_option: ConfigOption = None,
    output: OutputOption = None, benchmark: BenchmarkOption = None,
    warmup: WarmupOption = None, iters: ItersOption = None,
    mode: ModeOption = None, passes: PassesOption = None, launches: LaunchesOption = None,
    only: OnlyOption = None, exclude: ExcludeOption = None, model: ModelOption = None,
    strategy: StrategyOption = None, assignments: SetOption = None,
    require: RequireOption = None, inline: InlineOption = False,
    dry: Annotated[bool, typer.Option(
        "--dry-run", rich_help_panel=JOB,
        help="Call every case once in one process: no MPI, no results.")] = False,
    world_size: Annotated[Optional[int], typer.Option(
        min=1, max=MOST_RANKS, metavar="N", rich_help_panel=JOB,
        help="Ranks of a dry run; default: 4.")] = None,
    resume: Annotated[Optional[Path], typer.Option(
        metavar="[DIR]", rich_help_panel=RESUMING,
        help="Continue the run in this folder; without DIR: the newest run.")] = None,
    fail_below: Annotated[Optional[list[str]], typer.Option(
        "--fail-below", metavar="LIMIT", rich_help_panel=JOB,
        help="Exit 1 below a rate: all_reduce:4MiB:busbw=1.2GB/s; repeatable.")] = None,
    retry: RetryOption = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=RESUMING,
        help="Resume although plan or software changed; results say so.")] = False,
    explain: ExplainOption = False, verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Measure a sweep file on all ranks of an MPI launch.

    Examples:
        mpirun -np 4 python -m hpcbench run
        mpirun -np 4 python -m hpcbench run sweep.json --only all_reduce -o results
        mpirun -np 4 python -m hpcbench run --resume results/latest --retry failed,timeout"""
    if world_size is not None and not dry:
        raise UsageError("--world-size is for --dry-run; mpirun -np sets a run's ranks")
    if resume is not None and (dry or output):
        raise UsageError("--resume names the results folder; leave --dry-run and -o away")
    if force and resume is None:
        raise UsageError("--force is for --resume")
    retried = statuses_to_retry(retry, resumes=resume is not None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    path, verbosity = config_path(config, config_option), verbosity_of(verbose, quiet)
    overrides = sweep_overrides(
        context, output__folder=stored_path(output) if output else None, required_backends=require,
        launch__inline=inline or None, fail_below=fail_below)
    if dry:
        dry_run_here(path, overrides, world_size or 4, verbosity)
    sys.stderr = sys.__stderr__
    announce_start(os.environ, verbosity)
    from hpcbench.measurement.process import no_collection_of_modules

    with no_collection_of_modules():
        from hpcbench.resume import RunRequest
        from hpcbench.run import run_command

    raise typer.Exit(run_command(RunRequest(
        path, overrides, resume, force, retried, False, verbosity, explain), context.obj))


def announce_start(environ: Mapping[str, str], verbosity: Verbosity) -> None:
    """Announce the job on one rank, before MPI is started and anything heavy is imported."""
    if announced_rank(environ) == 0:
        size, launcher = announced_size(environ) or (1, "")
        ranks = plural(size, "rank") + (f" of {launcher}" if launcher else (
            "; nothing is communicated: for more put mpirun -np N in front"))
        with contextlib.suppress(OSError):  # the job reports it itself, and ends on all ranks
            verbosity.announce(f"hpcbench {__version__}: starting {ranks}")


def dry_run_here(
    path: Path | None, overrides: list[tuple[str, object]], world_size: int, verbosity: Verbosity,
) -> None:
    """Try the plan here, once: mpirun is not needed, and its further ranks have nothing to do."""
    if announced_rank(os.environ) > 0:
        raise typer.Exit
    from hpcbench.dry_run import dry_run

    raise typer.Exit(int(dry_run(path, overrides, world_size, verbosity)))


def plan(
    context: typer.Context, config: ConfigArgument = None, config_option: ConfigOption = None,
    world_size: Annotated[int, typer.Option(
        min=1, max=MOST_RANKS, metavar="N", rich_help_panel=JOB, help="Ranks to plan for.")] = 4,
    probe: Annotated[bool, typer.Option(
        "--probe", rich_help_panel=JOB, help="Check which backends this machine has.")] = False,
    dry: Annotated[bool, typer.Option(
        "--dry-run", rich_help_panel=JOB,
        help="Also call every case once in one process; needs torch.")] = False,
    as_json: JsonOption = False,
    benchmark: BenchmarkOption = None, warmup: WarmupOption = None, iters: ItersOption = None,
    mode: ModeOption = None, passes: PassesOption = None, launches: LaunchesOption = None,
    only: OnlyOption = None, exclude: ExcludeOption = None, model: ModelOption = None,
    strategy: StrategyOption = None, assignments: SetOption = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Show cases, order, skips and estimated time, without MPI or a GPU.

    Examples:
        hpcbench plan
        hpcbench plan sweep.json --world-size 64 --probe
        hpcbench plan --only all_reduce --json | jq ".cases[].label"
    """
    if dry and as_json:
        raise UsageError("--json prints the plan; leave --dry-run away")
    from hpcbench.config.load import load_config, source_lines
    from hpcbench.plan.expand import make_plan
    from hpcbench.report.plan_lines import plan_document, print_plan
    from hpcbench.report.terminal import print_document

    overrides, path = sweep_overrides(context), config_path(config, config_option)
    verbosity = verbosity_of(verbose, quiet)
    verbosity.details(source_lines(path, overrides))
    with verbosity.stage("plan"):
        job = make_plan(load_config(path, overrides), world_size)
    if probe:
        from hpcbench.launch.probe import resolve_here

        with verbosity.stage("probe"):
            job = resolve_here(job)
    if as_json:
        print_document(plan_document(job))
    else:
        print_plan(job, verbosity)
    if dry:
        dry_run_here(path, overrides, world_size, verbosity)


def suite(
    context: typer.Context,
    files: Annotated[Optional[list[Path]], typer.Argument(
        metavar="FILE...", rich_help_panel=FILES,
        help="Sweep files, JSON or YAML, in the order to run.")] = None,
    more: Annotated[Optional[list[Path]], typer.Option(
        "--config", "-c", metavar="FILE", rich_help_panel=FILES,
        help="A further sweep file; repeatable.")] = None,
    summary: Annotated[Optional[Path], typer.Option(
        "--output", metavar="FILE", rich_help_panel=FILES, callback=flags.not_dash,
        help="Write suite.json to this file, too.")] = None,
    as_json: Annotated[bool, typer.Option(
        "--json", rich_help_panel=PRINTED,
        help="Print suite.json at the end, all else on stderr.")] = False,
    require: RequireOption = None, inline: InlineOption = False,
    resume: Annotated[Optional[Path], typer.Option(
        metavar="[DIR]", rich_help_panel=RESUMING,
        help="Continue the suite in this folder; without DIR: results/latest.")] = None,
    retry: RetryOption = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=RESUMING,
        help="Resume although software changed; replace the file of --output.")] = False,
    output: OutputOption = None, benchmark: BenchmarkOption = None,
    warmup: WarmupOption = None, iters: ItersOption = None,
    mode: ModeOption = None, passes: PassesOption = None, launches: LaunchesOption = None,
    only: OnlyOption = None, exclude: ExcludeOption = None, model: ModelOption = None,
    strategy: StrategyOption = None, assignments: SetOption = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Measure several sweep files, one after the other, as one MPI job.

    Options apply to all files. A file that fails does not stop the others; suite.json lists all.

    Examples:
        mpirun -np 4 python -m hpcbench suite sweep.yaml more.json
        mpirun -np 4 python -m hpcbench suite -c config.json --output results.json
        mpirun -np 4 python -m hpcbench suite --resume results/latest"""
    verbosity, members = verbosity_of(verbose, quiet), (*(files or ()), *(more or ()))
    overrides = sweep_overrides(
        context, output__folder=stored_path(output) if output else None, required_backends=require,
        launch__inline=inline or None)
    if resume is None and not members:
        raise UsageError("give the sweep files: hpcbench suite A.json B.yaml")
    if resume is not None and (members or overrides):
        raise UsageError("--resume goes on with a suite as it was planned: leave sweep "
                                 "files and their flags away")
    if force and resume is None and summary is None:
        raise UsageError("--force is for --output or --resume")
    retried = statuses_to_retry(retry, resumes=resume is not None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the suite can take it as a request
    sys.stderr = sys.__stderr__
    if not as_json:
        announce_start(os.environ, verbosity)
    from hpcbench.suite import SuiteRequest, suite_command

    raise typer.Exit(suite_command(SuiteRequest(
        members, overrides, summary, resume, force, retried, as_json, verbosity)))


MOST_SAMPLES = 1_000_000
"""As measure.max_iterations allows: the duration ends a case, not a number of samples."""
PASSES, OF_TWO_RANKS = 5, 9
"""A pass is one observation of who is slow; two ranks, a single difference, take more of them."""
NEVER_PRECISE = 1e-9
"""For measure.precision: nor does the precision of the median end it."""
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_S = 86_400.0


def seconds_of(text: str, option: str = "--duration", longest_s: float = _LONGEST_S) -> float:
    """Return the seconds of ``30s``, ``2m``, ``500ms``, ``7d`` or ``30``. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    seconds = float(match[1]) * _SECONDS.get(match[2], 0.0) if match else 0.0
    if not 0 < seconds <= longest_s:
        longest = "a day" if longest_s == _LONGEST_S else f"{longest_s / _LONGEST_S:.0f} days"
        raise UsageError(f"{option} {shortened(text)}: no duration above 0 and up to {longest}; "
                         "write 30s, 2m or 500ms")
    return seconds


_PROFILE = "Profile"


def profile(
    context: typer.Context, config: ConfigArgument = None, config_option: ConfigOption = None,
    gpus: Annotated[Optional[int], typer.Option(
        "-g", "--gpus", metavar="N", rich_help_panel=_PROFILE,
        help="Ranks to start without mpirun; default: the GPUs here, else 2.")] = None,
    duration: Annotated[str, typer.Option(
        "-d", "--duration", metavar="TIME", rich_help_panel=_PROFILE,
        help="Time of all timed loops together: 30s (default), 2m, 500ms.")] = "30s",
    target: Annotated[str, typer.Option(
        "-t", "--target", metavar="NAME", autocompletion=flags.targets,
        rich_help_panel=_PROFILE,
        help="sync_stalls (default), compute or communication.")] = "sync_stalls",
    tool: Annotated[Optional[str], typer.Option(
        metavar="TOOL", autocompletion=flags.tools, rich_help_panel=_PROFILE,
        help="Profiler: torch (default), nsys or none.")] = None,
    samples: Annotated[Optional[int], typer.Option(
        metavar="N", rich_help_panel=_PROFILE, help="Profiled samples of each case.")] = None,
    output: OutputOption = None, benchmark: BenchmarkOption = None,
    warmup: WarmupOption = None, iters: ItersOption = None,
    mode: ModeOption = None, passes: PassesOption = None, launches: LaunchesOption = None,
    only: OnlyOption = None, exclude: ExcludeOption = None, model: ModelOption = None,
    strategy: StrategyOption = None, assignments: SetOption = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Profile stalls: which rank, which phase, how much.

    Without a launcher it starts mpirun itself: hpcbench profile -g 4 -d 30s. The default target
    takes trainings only; --target communication takes collectives, too. The last lines name the
    trace of the slowest case.

    Examples:
        hpcbench profile sweep.yaml --gpus 4 --duration 30s
        hpcbench profile -g 4 -d 2m --target communication -o profiles
        mpirun -np 4 python -m hpcbench profile --target compute --tool none"""
    from hpcbench.launch.session import default_ranks, exec_mpirun, ranks_of_launch

    ranks, verbosity = ranks_of_launch(os.environ, gpus), verbosity_of(verbose, quiet)
    if ranks is not None:
        announce_start(os.environ, verbosity)
    from hpcbench.profiling.profiled_cases import NSYS, require_nsys
    from hpcbench.resume import RunRequest, check_request
    from hpcbench.run import run_command

    path, seconds = config_path(config, config_option), seconds_of(duration)
    profiling = overrides_of({"profiling.enabled": True, "profiling.target": target,
                              "profiling.tool": tool, "profiling.samples": samples}, None)
    if tool == NSYS:
        require_nsys()
    folder = stored_path(output) if output else None
    given = [*profiling, *sweep_overrides(context, output__folder=folder)]
    wanted = ranks or gpus or default_ranks()
    if announced_rank(os.environ) == 0:  # the only one that plans, and so reads the file
        given = [*_for_seconds(path, given, seconds, wanted), *given]
    request = RunRequest(path, given, verbosity=verbosity)
    if ranks is None:
        check_request(request, wanted)  # before mpirun reports the same in many lines
        exec_mpirun(wanted, sys.argv[1:], os.environ)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    sys.stderr = sys.__stderr__
    raise typer.Exit(run_command(request))


def _for_seconds(
    path: Path | None, given: list[tuple[str, object]], seconds: float, ranks: int,
) -> list[tuple[str, object]]:
    """Return the keys by which the duration alone ends the cases, in `PASSES` passes or those
    `OF_TWO_RANKS`.

    A case may use half of its time limit for its timed loop: the limit is raised, if need be."""
    from hpcbench.config.load import load_config

    timeout_s = 0.0
    with suppress(HpcbenchError):  # the run reports it, where all ranks can agree to end
        timeout_s = load_config(path, given).launch.timeout_s
    return [
        ("measure.iterations", "auto"), ("measure.max_iterations", MOST_SAMPLES),
        ("measure.precision", NEVER_PRECISE), ("measure.launches", 1),
        ("measure.passes", OF_TWO_RANKS if ranks == 2 else PASSES), ("measure.budget_s", seconds),
        ("launch.timeout_s", max(timeout_s, 3 * seconds))]
