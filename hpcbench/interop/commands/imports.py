"""``import``, ``lint``, ``from-command``: what other programs wrote; ``record``: a job's calls."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags
from hpcbench.commands import flags as completion
from hpcbench.commands.flags import QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import ExitCode, UsageError
from hpcbench.texts import as_field, say, say_all

CollectiveOption = Annotated[str, typer.Option(
    "--collective", metavar="NAME", autocompletion=completion.collectives,
    help="The collective of tables that name none.")]


def lint(
    files: Annotated[list[Path], typer.Argument(
        metavar="FILE...", help="Output of another program: text, JSON or CSV; also .gz.")],
    link: Annotated[Optional[float], typer.Option(
        "--link", min=0.001, metavar="GB/S",
        help="Report rates above this declared rate of a link.")] = None,
    collective: CollectiveOption = "",
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Check another program's tables against their own arithmetic.

    Examples:
        hpcbench lint nccl.log
        hpcbench lint node1.log node2.log.gz --link 450"""
    from hpcbench.interop.formats.lint import Linting
    from hpcbench.interop.formats.reading.names import known_collective
    from hpcbench.report.terminal import print_document

    verbosity = flags.verbosity_of(verbose, quiet)
    linting = Linting(known_collective(collective), link, as_json=as_json)
    for file in files:
        verbosity.details([f"reads {file.absolute()}"])
        linting.read(file)
    if as_json:
        print_document(linting.document())
    elif not verbosity.is_quiet:
        verbosity.announce(linting.summary())
    raise typer.Exit(ExitCode.FINDINGS if linting.count else
                     ExitCode.OK if linting.n_checked else ExitCode.INCOMPLETE)


def import_(
    files: Annotated[list[Path], typer.Argument(
        metavar="FILE|DIR...",
        help="Output of another program, or records of a job's calls; also .gz.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", metavar="FILE", callback=completion.not_dash,
        help="Results file to write (results.h5), or traffic.json of records.")],
    collective: CollectiveOption = "",
    ranks: Annotated[Optional[int], typer.Option(
        "--ranks", min=1, max=flags.MOST_RANKS, metavar="N",
        help="Ranks, where the file does not say how many.")] = None,
    backend: Annotated[str, typer.Option(
        "--backend", metavar="NAME",
        help="Backend, where the file does not name it.")] = "",
    dtype: Annotated[str, typer.Option(
        "--dtype", metavar="NAME", autocompletion=completion.dtypes,
        help="Element type, where the file does not say it; uint8 for bytes of any.")] = "",
    primitive: Annotated[str, typer.Option(
        "--primitive", metavar="NAME", autocompletion=completion.one_of(
            "tp_columnwise", "tp_rowwise"),
        help="Primitive of DDLB's rows: tp_columnwise or tp_rowwise.")] = "",
    started: Annotated[str, typer.Option(
        "--started", metavar="TIME",
        help="When it ran, where the file does not say it: 2026-01-31T03:00.")] = "",
    skip_first: Annotated[int, typer.Option(
        "--skip-first", min=0, metavar="N",
        help="Leave out each rank's first N recorded calls: the job's start.")] = 0,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Make a results file of another program's tables, or traffic.json of a job's records.

    Records are flight records of torch, Kineto and execution traces, and NCCL Inspector's lines.

    Examples:
        hpcbench import nccl.log -o imported.h5
        hpcbench import ddlb.csv --primitive tp_columnwise -o ddlb.h5
        hpcbench import rec --skip-first 5 -o traffic.json"""
    verbosity = flags.verbosity_of(verbose, quiet)
    verbosity.details(f"reads {file.absolute()}" for file in files)
    if output.suffix == ".json":
        for flag, value in (("--collective", collective), ("--ranks", ranks),
                            ("--dtype", dtype), ("--primitive", primitive), ("--started", started)):
            if value:
                raise UsageError(f"{flag} is for tables, which make a results file (.h5)")
        _import_traffic(files, output, backend, skip_first, is_quiet=verbosity.is_quiet)
        return
    if skip_first:
        raise UsageError("--skip-first is for records of calls, which make a traffic.json")
    from hpcbench.interop.formats.imported import import_files
    from hpcbench.interop.formats.imported_rows import UserFacts
    from hpcbench.interop.formats.reading.names import known_collective

    (*notes, done), code = import_files(files, output, UserFacts(
        known_collective(collective), ranks, backend, dtype, primitive, started))
    for note in notes:
        say(f"hpcbench: {note}", sys.stderr)
    say(output if verbosity.is_quiet else done)
    raise typer.Exit(code)


def _import_traffic(
    files: list[Path], output: Path, backend: str, skip_first: int, *, is_quiet: bool,
) -> None:
    from hpcbench.config.axes import BACKENDS
    from hpcbench.interop.traffic.imported import import_traffic

    if backend and backend not in BACKENDS:
        raise UsageError(f"--backend {backend[:40]}: choose from {', '.join(BACKENDS)}")
    done, notes = import_traffic(files, output, backend or None, skip_first)
    for note in notes:
        say(f"hpcbench: {note}", sys.stderr)
    for line in (output,) if is_quiet else done:
        say(line)


def from_command(
    command: Annotated[str, typer.Argument(
        metavar="COMMAND", help="The command line of the other benchmark, in quotes.")],
    ranks: Annotated[Optional[int], typer.Option(
        min=1, max=flags.MOST_RANKS, metavar="N",
        help="Ranks; default: the processes that the command starts.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", callback=completion.dash_prints,
        help="File to write, .json, .yaml or .yml; default: print YAML.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Print the sweep of a command of nccl-tests, OSU or ds_bench.

    Launchers: mpirun, srun, flux, jsrun, aprun, torchrun, deepspeed. Comments say how to run the
    sweep, and which options have no counterpart (docs/coming-from.md).

    Examples:
        hpcbench from-command "mpirun -np 16 all_reduce_perf -b 8 -e 4G -f 2 -g 1"
        hpcbench from-command "srun -n 4 osu_bcast -m 1024" -o sweep.yaml
        hpcbench from-command --ranks 8 "ds_bench --scan --all-reduce"
    """
    from hpcbench.gen_config import Sweep, write_sweep
    from hpcbench.interop.compat.from_command import translate

    translation = translate(command, ranks, str(output or "FILE"))
    sweep = Sweep(translation.content, translation.remarks, ranks=translation.ranks)
    about = write_sweep(sweep, output, force=force).rstrip("\n")
    say_all(as_field(str(output)) if output and quiet else about)


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
        torchrun --nproc-per-node=4 -m hpcbench record -o rec -- python train.py
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
