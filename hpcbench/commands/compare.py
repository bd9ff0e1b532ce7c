"""``hpcbench compare``: which cases became slower or faster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands.flags import JsonOption
from hpcbench.verbosity import Verbosity


def compare(
    sides: Annotated[list[str], typer.Argument(
        help="A side each: a results file or folder, or several of equal jobs as A1,A2,A3 or "
        "NAME=A1,A2,A3. All others are compared with the first.")],
    by: Annotated[Optional[str], typer.Option(
        "--by", help="Compare inside one side: cases that differ only in this key, such as "
        "backend, implementation, or env.NCCL_ALGO.")] = None,
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0,
        help="Smallest change that matters, as a share.")] = 0.03,
    plot: Annotated[Optional[Path], typer.Option(
        "--plot", help="Also draw the ratios with their intervals: a PNG, SVG or PDF file, "
        "numbered where there are several comparisons.")] = None,
    as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Compare runs, launch by launch: slower, faster, the same, or inconclusive.

    Examples:
        hpcbench compare before/results.h5 results/latest
        hpcbench compare old=old1,old2,old3,old4,old5 new=new1,new2,new3,new4,new5
        hpcbench compare results/latest --by strategy --plot strategies.png
    """
    from hpcbench.analysis.answers import compare_by, compare_sides
    from hpcbench.report.comparison_lines import (
        check_plot_name,
        print_comparisons,
        print_comparisons_json,
    )

    verbosity.details([f"reads {side}" for side in sides])
    if plot is not None:
        check_plot_name(plot)
    answer = (compare_by(sides, by, smallest) if by is not None
              else compare_sides(sides, smallest))
    if plot is not None:
        from hpcbench.report.plots.comparison import plot_comparisons

        verbosity.details(f"draws {path}" for path in plot_comparisons(answer, plot))
    if as_json:
        print_comparisons_json(answer)
    else:
        print_comparisons(answer, verbosity)
