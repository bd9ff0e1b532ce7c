"""``hpcbench export`` and ``anonymize``: results for others; tuner tables for ``advise --to``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags
from hpcbench.commands import flags as completion
from hpcbench.errors import FileError, UsageError
from hpcbench.texts import say, say_all


def export(
    files: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...", help="results.h5 or its folder; some formats take several.")],
    target_format: Annotated[str, typer.Option(
        "--to", metavar="FORMAT", autocompletion=completion.named_in(
            "hpcbench.interop.formats.export.write", "FORMATS"),
        rich_help_panel=flags.FILES, help="One of the formats above.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=flags.FILES,
        callback=completion.dash_prints, help="File to write; default: standard output.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=flags.FILES, help="Replace an existing file.")] = False,
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", metavar="TEXT", rich_help_panel=flags.CASES,
        help="Only cases matching this text or pattern; repeatable.")] = None,
    metrics: Annotated[Optional[list[str]], typer.Option(
        "--metric", metavar="NAME", rich_help_panel=flags.CASES,
        help="Only this metric: time, busbw, samples_per_s, ...; repeatable.")] = None,
    samples: Annotated[int, typer.Option(
        "--samples", min=1, metavar="N", rich_help_panel=flags.CASES,
        help="perfetto: longest samples of each case; default: 20.")] = 20,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Write results in a format of another program.

    FORMAT: nccl-tests, nccl-tests-json, prometheus, bencher, github-benchmark, otava, superbench,
    fom, csv, parquet, tensorboard, perfetto, torch-estimates, aiconfigurator.
    What a format cannot hold is left out and counted on stderr (docs/other-tools.md).

    Examples:
        hpcbench export results/latest --to nccl-tests --only "all_reduce n=2"
        hpcbench export results/latest --to prometheus -o hpcbench.prom --force
        hpcbench export run1 run2 run3 --to csv -o runs.csv"""
    from hpcbench.interop.formats.export.cases import ExportRequest
    from hpcbench.interop.formats.export.write import (
        chosen_export,
        export_files,
        write_target,
    )
    from hpcbench.reduce.results_file import each_once

    verbosity = flags.verbosity_of(verbose, quiet)
    chosen = chosen_export(target_format, len(each_once(files)))
    target = flags.free_target(output, force=force) if output is not None else None
    if target is None and chosen.is_binary and sys.stdout.isatty():
        raise UsageError(f"--to {target_format}: is binary; give -o FILE")
    verbosity.details([f"reads {path.absolute()}" for path in files])
    exported, lines = export_files(
        files, target_format, ExportRequest(tuple(metrics or ()), samples), only or ())
    for line in lines:
        say(f"hpcbench: {line}", sys.stderr)
    if target is not None:
        write_target(target, exported)
        say(str(target))
    elif chosen.is_binary:
        sys.stdout.buffer.write(exported.content)
    else:
        say_all(exported.content.decode())


def write_tuner(runs: list[Path], to: str, output: Path | None, *, force: bool) -> None:
    from hpcbench.interop.formats.export.cost_tables import dialect_of, tuner_file
    from hpcbench.interop.formats.export.write import write_target

    dialect_of(to)
    target = flags.free_target(output, force=force) if output is not None else None
    exported, lines = tuner_file(runs, to, target)
    for line in lines:
        say(f"hpcbench: {line}", sys.stderr)
    if target is None:
        say_all(exported.content.decode())
    else:
        write_target(target, exported)
        say(str(target))


def anonymize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", metavar="DIR", callback=completion.not_dash,
        help="The new folder of the copy.")],
    hide: Annotated[Optional[list[str]], typer.Option(
        "--hide", metavar="NAME", help="Replace this name, too; repeatable.")] = None,
    mapping: Annotated[Optional[Path], typer.Option(
        "--mapping", metavar="FILE", callback=completion.in_folder,
        help="Write the names and their replacements here; keep it private.")] = None,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Copy a run without names of hosts, users, paths and jobs.

    A name has the same replacement in all files; numbers stay. Commands read the copy as any run.

    Examples:
        hpcbench anonymize results/latest -o for-others
        hpcbench anonymize results/latest -o for-others --hide projectx"""
    from hpcbench.interop.anonymize import anonymize as copy_run
    from hpcbench.interop.anonymize import write_mapping
    from hpcbench.units import plural

    if mapping is not None and output.resolve() in mapping.resolve().parents:
        raise UsageError(f"{mapping}: is inside {output}, which is for others; write it elsewhere")
    if mapping is not None and mapping.exists():
        raise FileError(f"{mapping}: is there already; give --mapping another file")
    verbosity = flags.verbosity_of(verbose, quiet)
    with verbosity.stage("anonymous copy"):
        replacements, left_out = copy_run(run, output, hide or ())
    if mapping is not None:
        write_mapping(mapping, replacements)
    if verbosity.is_quiet:
        say(str(output))
        return
    replaced = ", ".join(plural(len(names), kind) for kind, names in sorted(replacements.items()))
    say(f"{output}: replaced {replaced or 'nothing'}")
    for line in left_out:
        say(f"left out: {line}")
    say("a name that nothing marks as such is still there: search the copy for those that you "
        "know, and give them with --hide NAME")
