"""Commands and flags; `__main__` turns errors into a line and an exit code.

Every command imports what it needs when it runs, so that ``--help`` stays instant and a laptop
without torch or MPI can read results.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench import __version__
from hpcbench.flags import (
    MOST_RANKS,
    ConfigFlags,
    OutputOption,
    RunFlags,
    SetOption,
    SweepFlags,
    grouped,
    overrides_of,
)
from hpcbench.launch.ranks.launcher_variables import announced_rank

app = typer.Typer(
    name="hpcbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Benchmark collectives and training strategies of distributed deep learning under MPI.",
    epilog="Main job: mpirun -np 4 python -m hpcbench run",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hpcbench {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


@app.command()
@grouped
def run(
    source: ConfigFlags, output: OutputOption = None, *, sweep: SweepFlags, how: RunFlags,
) -> None:
    """Run the sweep on all ranks: mpirun -np 4 python -m hpcbench run."""
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
        _dry_run(path, overrides, how.world_size or 4)
    sys.stderr = sys.__stderr__
    raise typer.Exit(run_command(RunRequest(path, overrides, how.resume, how.force)))


def _dry_run(path: Path | None, overrides: list[tuple[str, object]], world_size: int) -> None:
    """Try the plan here, once: mpirun is not needed, and its further ranks have nothing to do."""
    if announced_rank(os.environ) > 0:
        raise typer.Exit
    from hpcbench.dry_run import dry_run

    raise typer.Exit(int(dry_run(path, overrides, world_size)))


@app.command()
@grouped
def plan(
    source: ConfigFlags,
    world_size: Annotated[int, typer.Option(min=1, max=MOST_RANKS, help="Ranks to plan for.")] = 4,
    probe: Annotated[bool, typer.Option(
        "--probe", help="Ask this machine, in a separate process, what it has.")] = False,
    dry: Annotated[bool, typer.Option(
        "--dry-run", help="Then do what run --dry-run does, which needs torch.")] = False,
    *, sweep: SweepFlags,
) -> None:
    """Print cases, order, skips and a time estimate; needs no MPI, torch or GPU."""
    from hpcbench.config.load import load_config
    from hpcbench.plan.expand import make_plan
    from hpcbench.report.console import print_plan

    overrides, path = sweep.overrides(), source.path()
    job = make_plan(load_config(path, overrides), world_size)
    if probe:
        from hpcbench.launch.probe import resolve_here

        job = resolve_here(job)
    print_plan(job)
    if dry:
        _dry_run(path, overrides, world_size)


@app.command()
def reduce(
    folder: Annotated[Path, typer.Argument(help="A results folder, finished or not.")],
    allow_mixed: Annotated[bool, typer.Option(
        "--allow-mixed", help="Accept ranks with different versions.")] = False,
) -> None:
    """Rebuild results.h5, the summaries and the plots from a folder's traces."""
    from hpcbench.reduce.reduce import exit_code, reduce_folder
    from hpcbench.report.console import print_results
    from hpcbench.report.summary import write_reports

    results = reduce_folder(folder, allow_mixed=allow_mixed)
    write_reports(results, folder)
    print_results(results, folder)
    raise typer.Exit(exit_code(results))


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
) -> None:
    """Print the tables of a results file again."""
    from hpcbench.reduce.results_file import open_results
    from hpcbench.report.console import print_results

    with open_results(path) as file:
        print_results(file.results, path.parent if path.is_file() else path)


@app.command()
def plot(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output-dir", help="Default: plots/ beside the file.")] = None,
    image_format: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Plot latency, bandwidth and the rank x iteration map; needs no MPI, torch or GPU."""
    from hpcbench.report.plots import plot_file

    for figure in plot_file(path, output, image_format):
        typer.echo(figure)


@app.command()
@grouped
def validate(
    source: ConfigFlags,
    output: OutputOption = None,
    assignments: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout: Annotated[float, typer.Option(
        min=1, max=3600, help="Seconds in which each rank has to answer.")] = 60.0,
) -> None:
    """Check machine and launch before a run: mpirun -np 4 python -m hpcbench validate.

    With a sweep file also what that sweep needs. Exit code 1 if a check fails.
    """
    from hpcbench.validation.validate import ValidationRequest, validate_command

    sys.stderr = sys.__stderr__
    overrides = overrides_of({"output.folder": str(output) if output else None}, assignments)
    request = ValidationRequest(source.path(), overrides, as_json, timeout)
    raise typer.Exit(validate_command(request))


@app.command(name="list")
def list_(
    probe: Annotated[bool, typer.Option(
        "--probe/--no-probe", help="Ask this machine which backends it has.")] = True,
) -> None:
    """List what can be measured: collectives, primitives, models, strategies; and backends here."""
    from hpcbench.report.listing import print_listing

    print_listing(probe=probe)


@app.command(name="gen-data")
def gen_data(
    path: Annotated[Path, typer.Argument(help="The file to write, such as corpus.bin.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**40, help="How many.")],
    vocab: Annotated[Optional[int], typer.Option(
        min=1, max=2**31, help="Tokens are below it.")] = None,
    model: Annotated[Optional[str], typer.Option(
        help="Instead: the model whose vocabulary it is.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random tokens.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a file of random tokens for trainings: uint16, or uint32 where the vocabulary needs it.
    """
    from hpcbench.gen_data import generate

    typer.echo(generate(path, tokens, vocab, model, seed, force=force))


@app.command()
def schema() -> None:
    """Print the JSON Schema of config.json."""
    from hpcbench.config.load import json_schema

    typer.echo(json_schema())
