"""``hpcbench reduce``, ``show`` and ``plot``: what is left of a run is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def reduce(
    folder: Annotated[Path, typer.Argument(help="A results folder, finished or not.")],
    allow_mixed: Annotated[bool, typer.Option(
        "--allow-mixed", help="Accept ranks with different versions.")] = False,
) -> None:
    """Rebuild results.h5, the summaries and the plots from a folder's traces."""
    from hpcbench.reduce.reduce import exit_code, reduce_folder
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.console import print_results
    from hpcbench.report.summary import write_reports

    refuse_suite(folder)
    results = reduce_folder(folder, allow_mixed=allow_mixed)
    write_reports(results, folder)
    print_results(results, folder)
    raise typer.Exit(exit_code(results))


def show(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
) -> None:
    """Print the tables of a results file again; of a suite's folder its members."""
    from hpcbench.reduce.results_file import open_results
    from hpcbench.reduce.suite_file import is_suite, read_suite
    from hpcbench.report.console import print_results
    from hpcbench.report.suite_lines import print_suite

    if is_suite(path):
        print_suite(read_suite(path), path)
        return
    with open_results(path) as file:
        print_results(file.results, path.parent if path.is_file() else path)


def plot(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output-dir", help="Default: plots/ beside the file.")] = None,
    image_format: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Plot latency, bandwidth and the rank x iteration map; needs no MPI, torch or GPU."""
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.plots import plot_file

    refuse_suite(path)
    for figure in plot_file(path, output, image_format):
        typer.echo(figure)
