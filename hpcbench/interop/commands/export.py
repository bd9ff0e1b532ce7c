"""``hpcbench export``: results as files of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import CASES, FILES, QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import UsageError
from hpcbench.measurement.process import rare_collection


@rare_collection()
def export(
    files: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...", help="results.h5 or its folder; some formats take several.")],
    target_format: Annotated[str, typer.Option(
        "--to", metavar="FORMAT", autocompletion=completion.export_formats,
        rich_help_panel=FILES, help="One of the formats above.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=FILES, callback=completion.dash_prints,
        help="File to write; default: standard output.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=FILES, help="Replace an existing file.")] = False,
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", metavar="TEXT", rich_help_panel=CASES,
        help="Only cases matching this text or pattern; repeatable.")] = None,
    metrics: Annotated[Optional[list[str]], typer.Option(
        "--metric", metavar="NAME", rich_help_panel=CASES,
        help="Only this metric: time, busbw, samples_per_s, ...; repeatable.")] = None,
    samples: Annotated[int, typer.Option(
        "--samples", min=1, metavar="N", rich_help_panel=CASES,
        help="perfetto: longest samples of each case; default: 20.")] = 20,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write results in a format of another program.

    FORMAT: nccl-tests, nccl-tests-json, prometheus, bencher, github-benchmark, otava, superbench,
    fom, csv, parquet, tensorboard, perfetto, torch-estimates, aiconfigurator.
    What a format cannot hold is left out and counted on stderr (docs/other-tools.md).

    Examples:
        hpcbench export results/latest --to nccl-tests --only "all_reduce * n=2"
        hpcbench export results/latest --to prometheus -o hpcbench.prom --force
        hpcbench export run1 run2 run3 --to csv -o runs.csv
    """
    from hpcbench.interop.formats.export.cases import ExportRequest
    from hpcbench.interop.formats.export.write import (
        chosen_export,
        export_files,
        free_target,
        write_target,
    )
    from hpcbench.reduce.results_file import each_once
    from hpcbench.texts import say, say_all

    verbosity = verbosity_of(verbose, quiet)
    chosen = chosen_export(target_format, len(each_once(files)))
    target = free_target(output, force=force) if output is not None else None
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
