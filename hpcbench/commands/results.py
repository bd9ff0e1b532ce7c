"""``hpcbench reduce`` and ``show``: what is left of a run is read again.

``hpcbench compare``: which cases became slower or faster.

``hpcbench check``: the gate for CI, for Slurm's prolog or NHC, and for Nagios.

``hpcbench advise``: what follows from results, in sentences.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import ExplainOption, JsonOption, grouped
from hpcbench.measure.process import rare_collection
from hpcbench.texts import say
from hpcbench.verbosity import Verbosity


@rare_collection()
def reduce(
    folder: Annotated[Path, typer.Argument(help="A results folder, finished or not.")],
    allow_mixed: Annotated[bool, typer.Option(
        "--allow-mixed", help="Accept ranks with different versions.")] = False,
    explain: ExplainOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Rebuild results.h5, summaries, plots and merged profiles from a folder's traces.

    Examples:
        hpcbench reduce results/latest
        hpcbench reduce results/latest --allow-mixed --verbose
    """
    from hpcbench.answers.check import final_code
    from hpcbench.measure.process import KernelFiles, usable_cores
    from hpcbench.profiling.record import write_profiles
    from hpcbench.reduce.processes import Processes
    from hpcbench.reduce.reduce import reduce_folder
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.answer_lines import told_in
    from hpcbench.report.console import print_profiles, report_run
    from hpcbench.report.summary import write_reports

    refuse_suite(folder)
    verbosity.details([f"reads the traces in {folder.absolute()}"])
    with verbosity.stage("reduction"):
        results = reduce_folder(folder, allow_mixed=allow_mixed,
                                processes=Processes(usable_cores(KernelFiles())))
    with verbosity.stage("summaries and plots"):
        told = told_in(folder)
        write_reports(results, folder, told, verbosity.announce, verbosity.complain)
    with verbosity.stage("profiled samples"):
        profile_lines = write_profiles(folder, results)
    report_run(results, folder, told, verbosity, explain=explain)
    if not verbosity.is_quiet:
        print_profiles(profile_lines)
    raise typer.Exit(final_code(results))


def show(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
    as_json: JsonOption = False, explain: ExplainOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Print the tables of a results file again; of a suite's folder its members.

    Examples:
        hpcbench show results/latest
        hpcbench show results/latest --explain
        hpcbench show results/latest --json | jq ".cases[] | {case_id, median_s}"
    """
    from hpcbench.reduce.results_file import FILE_NAME, open_results
    from hpcbench.reduce.suite_file import is_suite, read_suite, suite_text
    from hpcbench.report.answer_lines import told_by
    from hpcbench.report.console import print_results, print_suite
    from hpcbench.report.summary import print_summary

    verbosity.details([f"reads {path.absolute()}"])
    if is_suite(path):
        suite = read_suite(path)
        if as_json:
            say(suite_text(suite), end="")
        else:
            print_suite(suite, path, verbosity)
        return
    with open_results(path) as file:
        told = told_by(file)
        if as_json:
            print_summary(file.results, told)
        else:
            is_of_run = path.is_file() and path.name == FILE_NAME
            print_results(file.results, path.parent if is_of_run else path, verbosity,
                          told=told, explain=explain)


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
    from hpcbench.answers.compare import compare_by, compare_sides
    from hpcbench.report.answer_lines import (
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
        from hpcbench.report.plots import plot_comparisons

        verbosity.details(f"draws {path}" for path in plot_comparisons(answer, plot))
    if as_json:
        print_comparisons_json(answer)
    else:
        print_comparisons(answer, verbosity)


@dataclass(frozen=True, slots=True)
class GateFlags:
    """What results must hold, and what the exit code says."""

    limits: Annotated[Optional[Path], typer.Option(
        "--limits", help="A YAML file of limits (docs/check.md).")] = None
    baseline: Annotated[Optional[list[Path]], typer.Option(
        "--baseline", help="Results to be as fast as. Repeatable.")] = None
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0,
        help="With --baseline: smallest change that matters, as a share.")] = 0.03
    style: Annotated[str, typer.Option(
        "--exit-style", autocompletion=completion.exit_styles,
        help="ci, slurm or nagios: what the exit code says.")] = "ci"


@dataclass(frozen=True, slots=True)
class LearnFlags:
    """Limits from clean runs."""

    learn: Annotated[bool, typer.Option(
        "--learn", help="Write limits from these results, which are clean runs, to -o.")] = False
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", help="With --learn: the file of limits; it must not exist.")] = None
    share: Annotated[float, typer.Option(
        "--share", min=0.1, max=0.999,
        help="With --learn: share of launches that hold a limit.")] = 0.75


@grouped
def check(
    results: Annotated[list[Path], typer.Argument(
        help="results.h5, or its folder; several of equal jobs count as one.")],
    gate: GateFlags, learning: LearnFlags, as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Check results against limits or a baseline; only stored results are read.

    Examples:
        hpcbench check results/latest --limits limits.yaml
        hpcbench check new/results.h5 --baseline old1 --baseline old2 --exit-style slurm
        hpcbench check --learn run1 run2 run3 -o limits.yaml
    """
    from hpcbench.answers.check import STYLES, UNREADABLE, check_baseline, check_file, write_limits
    from hpcbench.errors import UsageError
    from hpcbench.masking import masked
    from hpcbench.report.answer_lines import PREFIX, print_checked, print_checked_json

    if gate.style not in STYLES:
        raise UsageError(f"--exit-style {gate.style}: allowed are {', '.join(STYLES)}")
    try:
        if sum((gate.limits is not None, bool(gate.baseline), learning.learn)) != 1:
            raise UsageError("give one of --limits FILE, --baseline FILE and --learn")
        if learning.learn:
            say(write_limits(results, learning.output, learning.share))
            return
        checked = (check_file(results, gate.limits) if gate.limits is not None
                   else check_baseline(results, gate.baseline or [], gate.smallest))
    except Exception as error:  # an error of any kind is no evidence against a node
        if gate.style == "ci":
            raise
        told = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        say(f"{PREFIX} UNREADABLE {masked(told, os.environ)}", sys.stderr)
        raise typer.Exit(UNREADABLE[gate.style]) from None
    if as_json:
        print_checked_json(checked)
    else:
        print_checked(checked, quiet=verbosity.is_quiet)
    raise typer.Exit(STYLES[gate.style][checked.outcome])


def advise(
    files: Annotated[list[Path], typer.Argument(
        help="results.h5, or its folder; several are analysed together.")],
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", help="A topic, such as recommend. Repeatable.")] = None,
    price: Annotated[Optional[float], typer.Option(
        "--price", min=0.0, help="Price of a device for an hour, in any currency.")] = None,
    samples: Annotated[int, typer.Option(
        "--samples", min=1, help="Training samples whose time and cost are told.")] = 10_000,
    as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Answer questions from results: the number, how sure it is, and the command behind it.

    Examples:
        hpcbench advise results/latest
        hpcbench advise results/latest --only recommend --verbose
        hpcbench advise results/latest --json | jq ".topics.recommend.answers[].sentence"
    """
    from hpcbench.answers.answer import TopicOptions
    from hpcbench.report.answer_lines import advice, print_advice, print_advice_json

    verbosity.details([f"reads {path.absolute()}" for path in files])
    told = advice(files, only or (), TopicOptions(price, samples))
    if as_json:
        print_advice_json(told, files)
    else:
        print_advice(told, verbosity)
