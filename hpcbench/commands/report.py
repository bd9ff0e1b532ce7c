"""``hpcbench report``: all that results say, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.errors import UsageError
from hpcbench.measure.garbage import rare_collection
from hpcbench.texts import say
from hpcbench.verbosity import Verbosity


@rare_collection()
def report(
    files: Annotated[Optional[list[Path]], typer.Argument(
        help="results.h5, or the folder of a run or of a suite; several are compared. Default: "
        "results/latest.")] = None,
    source: Annotated[Optional[Path], typer.Option(
        "-s", "--source", help="A folder of runs, such as results: all of them.")] = None,
    file_format: Annotated[Optional[str], typer.Option(
        "-f", "--format", autocompletion=completion.report_formats,
        help="html, pdf or md. Default: by the ending of --output, else html.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", help="The file to write. Default: report.html beside the results of one "
        "run; of several, in this folder.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", help="Replace a file that is there.")] = False,
    *, verbosity: Verbosity,
) -> None:
    """Write a report: verdict, answers, tables and charts, in one file that needs no network.

    Examples:
        hpcbench report results/latest --force
        hpcbench report results/latest -o report.md
        hpcbench report before after -o comparison.html
    """
    from hpcbench.errors import FileError
    from hpcbench.report.report_file import (
        LATEST,
        chosen_format,
        open_runs,
        output_path,
        runs_below,
        write_report,
    )

    if files and source is not None:
        raise UsageError("give FILE or --source DIR, not both")
    chosen = chosen_format(file_format, output)
    paths = files or (runs_below(source) if source is not None else [LATEST])
    target = output_path(paths, output, chosen)
    if target.exists() and not force:
        raise FileError(f"{target}: is there already; give --force to replace it, or -o FILE")
    verbosity.details([f"reads {path.absolute()}" for path in paths])
    with open_runs(paths) as runs, verbosity.stage("report"):
        say(write_report(runs, chosen, target))
