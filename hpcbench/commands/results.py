"""The commands that read what a run has left: ``hpcbench reduce``, ``show`` and those after them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import (
    ExplainOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    verbosity_of,
)
from hpcbench.errors import FileError, UsageError
from hpcbench.measure.process import rare_collection
from hpcbench.texts import say


@rare_collection()
def reduce(
    folder: Annotated[Path, typer.Argument(help="A results folder, finished or not.")],
    allow_mixed: Annotated[bool, typer.Option(
        "--allow-mixed", help="Accept ranks with different versions.")] = False,
    explain: ExplainOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Rebuild results.h5, summaries, plots and merged profiles from a folder's traces.

    Examples:
        hpcbench reduce results/latest
        hpcbench reduce results/latest --allow-mixed --verbose
    """
    from hpcbench.answers.check import final_code
    from hpcbench.profiling.record import write_profiles
    from hpcbench.reduce.reduce import reduce_folder
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.answer_lines import told_in
    from hpcbench.report.console import print_profiles, report_run
    from hpcbench.report.summary import write_reports

    refuse_suite(folder)
    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"reads the traces in {folder.absolute()}"])
    with verbosity.stage("reduction"):
        results = reduce_folder(folder, allow_mixed=allow_mixed)
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
    verbose: VerboseOption = False, quiet: QuietOption = False,
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

    verbosity = verbosity_of(verbose, quiet)
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
    verbose: VerboseOption = False, quiet: QuietOption = False,
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

    verbosity = verbosity_of(verbose, quiet)
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


def check(
    results: Annotated[list[Path], typer.Argument(
        help="results.h5, or its folder; several of equal jobs count as one.")],
    limits: Annotated[Optional[Path], typer.Option(
        "--limits", help="A YAML file of limits (docs/compare.md).")] = None,
    baseline: Annotated[Optional[list[Path]], typer.Option(
        "--baseline", help="Results to be as fast as. Repeatable.")] = None,
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0,
        help="With --baseline: smallest change that matters, as a share.")] = 0.03,
    style: Annotated[str, typer.Option(
        "--exit-style", autocompletion=completion.exit_styles,
        help="ci, slurm or nagios: what the exit code says.")] = "ci",
    learn: Annotated[bool, typer.Option(
        "--learn", help="Write limits from these results, which are clean runs, to -o.")] = False,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", help="With --learn: the file of limits; it must not exist.")] = None,
    share: Annotated[float, typer.Option(
        "--share", min=0.1, max=0.999,
        help="With --learn: share of launches that hold a limit.")] = 0.75,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Check results against limits or a baseline; only stored results are read.

    Examples:
        hpcbench check results/latest --limits limits.yaml
        hpcbench check new/results.h5 --baseline old1 --baseline old2 --exit-style slurm
        hpcbench check --learn run1 run2 run3 -o limits.yaml
    """
    from hpcbench.answers.check import STYLES, UNREADABLE, check_baseline, check_file, write_limits
    from hpcbench.masking import masked
    from hpcbench.report.answer_lines import PREFIX, print_checked, print_checked_json

    if style not in STYLES:
        raise UsageError(f"--exit-style {style}: allowed are {', '.join(STYLES)}")
    try:
        if sum((limits is not None, bool(baseline), learn)) != 1:
            raise UsageError("give one of --limits FILE, --baseline FILE and --learn")
        if learn:
            say(write_limits(results, output, share))
            return
        checked = (check_file(results, limits) if limits is not None
                   else check_baseline(results, baseline or [], smallest))
    except Exception as error:  # an error of any kind is no evidence against a node
        if style == "ci":
            raise
        told = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        say(f"{PREFIX} UNREADABLE {masked(told, os.environ)}", sys.stderr)
        raise typer.Exit(UNREADABLE[style]) from None
    if as_json:
        print_checked_json(checked)
    else:
        print_checked(checked, quiet=quiet)
    raise typer.Exit(STYLES[style][checked.outcome])


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
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Answer questions from results: the number, how sure it is, and the command behind it.

    Examples:
        hpcbench advise results/latest
        hpcbench advise results/latest --only recommend --verbose
        hpcbench advise results/latest --json | jq ".topics.recommend.answers[].sentence"
    """
    from hpcbench.answers.answer import TopicOptions
    from hpcbench.report.answer_lines import advice, print_advice, print_advice_json

    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}" for path in files])
    told = advice(files, only or (), TopicOptions(price, samples))
    if as_json:
        print_advice_json(told, files)
    else:
        print_advice(told, verbosity)



def plot(
    path: Annotated[Path, typer.Argument(help="results.h5, or the folder that holds it.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output-dir", help="Default: plots/ beside the file.")] = None,
    image_format: Annotated[Optional[str], typer.Option(
        "--format", autocompletion=completion.image_formats,
        help="png, svg or pdf. Default: pdf of style paper, else png.")] = None,
    style: Annotated[str, typer.Option(
        "--style", autocompletion=completion.plot_styles,
        help="report, or paper: one column (3.5 in) wide, notes in the caption file alone.")
    ] = "report",
    kind: Annotated[Optional[str], typer.Option(
        "--kind", autocompletion=completion.benchmarks,
        help="Only charts of this kind of case, such as training.")] = None,
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", help="Only charts whose file has this name, without its ending; * stands for "
        "any text. Repeatable.")] = None,
    case: Annotated[Optional[str], typer.Option(
        "--case", help="The case of the rank x iteration map and of its timeline: an id, a label, "
        "or enough of one.")] = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Plot latency, bandwidth and the rank x iteration map; needs no MPI, torch or GPU.

    Examples:
        hpcbench plot results/latest
        hpcbench plot results/latest --kind collective --only "all_*"
        hpcbench plot results/latest --style paper -o figures
    """
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.charts import Chosen
    from hpcbench.report.plots import named_style, plot_file

    refuse_suite(path)
    verbosity_of(verbose, quiet).details([f"reads {path.absolute()}"])
    chosen = Chosen(kind, tuple(only or ()), case)
    for figure in plot_file(path, output, image_format, chosen, named_style(style)):
        say(figure)


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
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write a report: verdict, answers, tables and charts, in one file that needs no network.

    Examples:
        hpcbench report results/latest --force
        hpcbench report results/latest -o report.md
        hpcbench report before after -o comparison.html
    """
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
    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}" for path in paths])
    with open_runs(paths) as runs, verbosity.stage("report"):
        say(write_report(runs, chosen, target))


@rare_collection()
def anonymize(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="The folder to make; there must be nothing yet.")],
    hide: Annotated[Optional[list[str]], typer.Option(
        "--hide", help="A further name to replace, such as a project's; can be repeated.")] = None,
    mapping: Annotated[Optional[Path], typer.Option(
        "--mapping", help="Also write what stands for what to this JSON file; keep it to "
        "yourself.")] = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Copy a run with other names for hosts, users, paths, addresses, job ids and UUIDs.

    A name has the same replacement in all files. Numbers stay. The copy is read as any other run.

    Examples:
        hpcbench anonymize results/latest -o for-others
        hpcbench anonymize results/latest -o for-others --hide projectx
    """
    from hpcbench.anonymize import anonymize as copy_run
    from hpcbench.anonymize import write_mapping
    from hpcbench.units import plural

    if mapping is not None and output.resolve() in mapping.resolve().parents:
        raise UsageError(f"{mapping}: is inside {output}, which is for others; write it elsewhere")
    if mapping is not None and mapping.exists():
        raise FileError(f"{mapping}: is there already; give --mapping another file")
    verbosity = verbosity_of(verbose, quiet)
    with verbosity.stage("anonymous copy"):
        found = copy_run(run, output, hide or ())
    if mapping is not None:
        write_mapping(mapping, found.names)
    if verbosity.is_quiet:
        say(str(output))
        return
    replaced = ", ".join(plural(len(names), kind) for kind, names in sorted(found.names.items()))
    say(f"{output}: replaced {replaced or 'nothing'}")
    for line in found.left_out:
        say(f"left out: {line}")
    say("a name that nothing marks as such is still there: search the copy for those that you "
        "know, and give them with --hide NAME")
