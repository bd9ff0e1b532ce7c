"""``hpcbench plot``: the figures of a results file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import grouped
from hpcbench.texts import say
from hpcbench.verbosity import Verbosity


@dataclass(frozen=True, slots=True)
class LookFlags:
    """How figures look."""

    image_format: Annotated[Optional[str], typer.Option(
        "--format", autocompletion=completion.image_formats,
        help="png, svg or pdf. Default: pdf of style paper, else png.")] = None
    style: Annotated[str, typer.Option(
        "--style", autocompletion=completion.plot_styles,
        help="report, or paper: one column (3.5 in) wide, notes in the caption file alone.")
    ] = "report"


@dataclass(frozen=True, slots=True)
class ChartFlags:
    """Which figures are drawn, and of which case."""

    kind: Annotated[Optional[str], typer.Option(
        "--kind", autocompletion=completion.benchmarks,
        help="Only charts of this kind of case, such as training.")] = None
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", help="Only charts whose file has this name, without its ending; * stands for "
        "any text. Repeatable.")] = None
    case: Annotated[Optional[str], typer.Option(
        "--case", help="The case of the rank x iteration map and of its timeline: an id, a label, "
        "or enough of one.")] = None


@grouped
def plot(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output-dir", help="Default: plots/ beside the file.")] = None,
    *, look: LookFlags, charts: ChartFlags, verbosity: Verbosity,
) -> None:
    """Plot latency, bandwidth and the rank x iteration map; needs no MPI, torch or GPU.

    Examples:
        hpcbench plot results/latest
        hpcbench plot results/latest --kind collective --only "all_*"
        hpcbench plot results/latest --style paper -o figures
    """
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.chosen_charts import Chosen
    from hpcbench.report.plots import named_style, plot_file

    refuse_suite(path)
    verbosity.details([f"reads {path.absolute()}"])
    chosen = Chosen(charts.kind, tuple(charts.only or ()), charts.case)
    for figure in plot_file(path, output, look.image_format, chosen, named_style(look.style)):
        say(figure)
