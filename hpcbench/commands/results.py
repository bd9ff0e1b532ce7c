"""The commands that read a run's files: ``hpcbench reduce``, ``show`` and those after them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from hpcbench.commands import flags
from hpcbench.errors import UsageError
from hpcbench.registry import CommandSpec, offered
from hpcbench.texts import Lines, as_field, say, say_all

if TYPE_CHECKING:
    from hpcbench.answers.answer import Proof
    from hpcbench.answers.check import CheckResult


def reduce(
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="A results folder, finished or not.")],
    allow_mixed: Annotated[bool, typer.Option(
        "--allow-mixed", help="Accept ranks whose software versions differ.")] = False,
    explain: flags.ExplainOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Rebuild results, plots and report from the traces in a folder.

    Examples:
        hpcbench reduce results/latest
        hpcbench reduce results/latest --allow-mixed --verbose"""
    from hpcbench.answers.check import final_code
    from hpcbench.profiling.record import write_profiles
    from hpcbench.reduce.reduce import reduce_folder
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.answer_lines import topic_results_in
    from hpcbench.report.console import print_profiles, report_run
    from hpcbench.report.summary import write_reports

    refuse_suite(folder)
    verbosity = flags.verbosity_of(verbose, quiet)
    verbosity.details([f"reads the traces in {folder.absolute()}"])
    with verbosity.stage("reduction"):
        results = reduce_folder(folder, allow_mixed=allow_mixed)
    with verbosity.stage("summaries and plots"):
        advice = topic_results_in(folder)
        write_reports(results, folder, advice, verbosity)
    with verbosity.stage("profiled samples"):
        profile_lines = write_profiles(folder, results)
    report_run(results, folder, advice, verbosity, explain=explain)
    if not verbosity.is_quiet:
        print_profiles(profile_lines)
    raise typer.Exit(final_code(results))


def show(
    path: Annotated[Path, typer.Argument(
        metavar="RESULTS", help="results.h5, or the folder with it.")],
    as_json: flags.JsonOption = False, explain: flags.ExplainOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Print the tables and the summary of a run, or the runs of a suite.

    Examples:
        hpcbench show results/latest
        hpcbench show results/latest --explain
        hpcbench show results/latest --json | jq ".cases[] | {case_id, median_s}"
    """
    from hpcbench.reduce.results_file import FILE_NAME, open_results
    from hpcbench.reduce.suite_file import is_suite, read_suite, suite_text
    from hpcbench.report.answer_lines import topic_results_of_file
    from hpcbench.report.console import print_results, print_suite

    verbosity = flags.verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}"])
    if is_suite(path):
        suite = read_suite(path)
        if as_json:
            say_all(suite_text(suite))
        else:
            print_suite(suite, path, verbosity)
        return
    with open_results(path) as file:
        advice = topic_results_of_file(file)
        if as_json:
            from hpcbench.report.summary import print_summary

            print_summary(file.results, advice)
        else:
            is_of_run = path.is_file() and path.name == FILE_NAME
            print_results(file.results, path.parent if is_of_run else path, verbosity,
                          advice=advice, explain=explain)


def compare(
    sides: Annotated[list[str], typer.Argument(
        metavar="RUN...", help="Runs; the first is the baseline. NAME=A1,A2 joins launches.")],
    by: Annotated[Optional[str], typer.Option(
        "--by", metavar="KEY",
        help="Compare cases of one run by backend, strategy, env.NCCL_ALGO, ...")] = None,
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0, metavar="SHARE",
        help="Smallest change that matters; default: 0.03.")] = 0.03,
    plot: Annotated[Optional[Path], typer.Option(
        "--plot", metavar="FILE", callback=flags.in_folder,
        help="Also draw the ratios (PNG, SVG or PDF).")] = None,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Compare runs: faster, slower, the same, or undecided.

    Examples:
        hpcbench compare before/results.h5 results/latest
        hpcbench compare old=old1,old2,old3,old4,old5 new=new1,new2,new3,new4,new5
        hpcbench compare results/latest --by strategy --plot strategies.png"""
    from hpcbench.answers.compare import compare_by, compare_sides
    from hpcbench.report.answer_lines import (
        check_plot_name,
        print_comparisons,
        print_comparisons_json,
    )

    verbosity = flags.verbosity_of(verbose, quiet)
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


_AGAINST, _LEARN = "Check against", "Learn limits"


def check(
    results: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...", help="results.h5 or its folder; several of equal jobs.")],
    limits: Annotated[Optional[Path], typer.Option(
        "--limits", metavar="FILE", rich_help_panel=_AGAINST,
        help="Limits in a YAML file (docs/compare.md).")] = None,
    baseline: Annotated[Optional[list[Path]], typer.Option(
        "--baseline", metavar="RESULTS", rich_help_panel=_AGAINST,
        help="Earlier results; repeatable.")] = None,
    baseline_range: Annotated[Optional[str], typer.Option(
        "--baseline-range", metavar="A..B", rich_help_panel=_AGAINST,
        help="All runs below --baseline of this time: 2026-01-01..2026-01-31.")] = None,
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0, metavar="SHARE", rich_help_panel=_AGAINST,
        help="With --baseline: smallest change that matters; default: 0.03.")] = 0.03,
    style: Annotated[str, typer.Option(
        "--exit-style", metavar="STYLE", autocompletion=flags.exit_styles,
        rich_help_panel=flags.PRINTED,
        help="Exit codes for ci (default), slurm, nagios, npd or gpud.")] = "ci",
    learn: Annotated[bool, typer.Option(
        "--learn", rich_help_panel=_LEARN, help="Write limits from these clean runs.")] = False,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=_LEARN, callback=flags.not_dash,
        help="The new file of limits.")] = None,
    share: Annotated[float, typer.Option(
        "--share", min=0.1, max=0.999, metavar="SHARE", rich_help_panel=_LEARN,
        help="Share of launches that meet a limit; default: 0.75.")] = 0.75,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Pass or fail stored results by limits or a baseline.

    Examples:
        hpcbench check results/latest --limits limits.yaml --exit-style slurm
        hpcbench check results/latest --baseline nights --baseline-range 2026-01-01..2026-01-31
        hpcbench check --learn run1 run2 run3 -o limits.yaml"""
    from hpcbench.answers.check import STYLES, check_file
    from hpcbench.report.answer_lines import print_checked, print_checked_json

    results, baseline = _separated(results), _separated(baseline or [])
    if style not in STYLES:
        raise UsageError(f"--exit-style {style}: allowed are {', '.join(STYLES)}")
    if learn and limits is None and not baseline:
        _learn(results, output, share)
        return
    try:
        if learn or (limits is None) != bool(baseline) or (baseline_range and not baseline):
            raise UsageError("give one: --limits FILE, --baseline RESULTS or --learn")
        checked = (check_file(results, limits) if limits is not None else
                   _against(results, baseline, baseline_range, smallest, share))
    except Exception as error:  # an error of any kind is no evidence against a node
        raise typer.Exit(_unreadable(error, style, as_json=as_json)) from None
    if as_json:
        print_checked_json(checked)
    else:
        print_checked(checked, quiet=quiet, full=verbose)
    raise typer.Exit(checked.exit_code(style))


def _unreadable(error: Exception, style: str, *, as_json: bool) -> int:
    """Print why nothing was checked; return the exit code. An error of ours is raised for ci."""
    from hpcbench.answers.check import UNREADABLE
    from hpcbench.report.answer_lines import PREFIX, print_unreadable

    if style == "ci" and not isinstance(error, UsageError):
        if not as_json:
            say(f"{PREFIX} RESULT UNREADABLE")
        raise error
    print_unreadable(error, UNREADABLE[style], as_json=as_json)
    return UNREADABLE[style]


def _against(
    results: list[Path], baseline: list[Path], period: str | None, smallest: float, share: float,
) -> CheckResult:
    """Return whether results are as fast as earlier ones, or as those of a period below folders.

    Raises UsageError without the part that finds these."""
    from hpcbench.answers.baseline import check_baseline, check_runs

    if period is None:
        return check_baseline(results, baseline, smallest)
    finder = offered(CommandSpec).get("check --baseline-range")
    if finder is None:
        raise UsageError("--baseline-range: what finds runs by their time is not installed")
    return check_runs(results, finder.load()(baseline, period), share)


def _separated(given: list[Path]) -> list[Path]:
    """Return files and folders that spaces or, as of `compare`, commas separate."""
    from hpcbench.answers.compare_inputs import separate

    return [path for text in given for path in separate(str(text))]


def _learn(results: list[Path], output: Path | None, share: float) -> None:
    from hpcbench.answers.learned_limits import write_limits

    path, doubts = write_limits(results, output, share)
    say(path)
    for doubt in doubts:
        say(f"warning: {doubt}", sys.stderr)


TUNER = Path("tuner")
"""The word among results that may stand before ``--to``."""
_TUNER = "Tuner table"


def _write_tuner(
    files: list[Path], to: str | None, output: Path | None, *, force: bool, is_mixed: bool,
) -> None:
    """Write the tuner table of results. Raises UsageError without any or without a library, and
    where options of answers are given, too (``is_mixed``)."""
    runs = [path for path in files if path != TUNER]
    if is_mixed or to is None or not runs:
        raise UsageError("a tuner table takes: hpcbench advise RESULTS --to nccl, rccl or "
                         "ncclx, and -o FILE")
    writer = offered(CommandSpec).get("advise --to")
    if writer is None:
        raise UsageError("--to: what writes tuner tables is not installed")
    writer.load()(runs, to, output, force=force)


def _write_proof(proof: Proof, traffic: Path, output: Path, *, force: bool) -> str:
    """Write the sweep that proves an alternative; return the lines on how to run it."""
    from hpcbench.errors import command_line, job_command_line
    from hpcbench.gen_config import Sweep, write_sweep

    about = f"{proof.name} and the present setting, in pairs of passes"
    write_sweep(Sweep(proof.sweep, (about,)), output, force=force)
    return Lines.of((
        f"{output}: {about}; run it, then ask again:",
        f"  {job_command_line(proof.ranks, 'run', output)}",
        f"  {command_line('advise', 'results/latest', '--traffic', traffic)} --only {proof.topic}"))


def advise(
    files: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...",
        help="results.h5 or its folder; several are analysed together.")],
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", metavar="TOPIC", autocompletion=flags.topics,
        help=flags.about_topics())] = None,
    to: Annotated[Optional[str], typer.Option(
        "--to", metavar="LIBRARY", autocompletion=flags.tuners, rich_help_panel=_TUNER,
        help="Write only the tuner table of nccl, rccl or ncclx.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=_TUNER, callback=flags.dash_prints,
        help="File to write; default: standard output.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", help="Replace an existing file.")] = False,
    price: flags.PriceOption = None,
    samples: Annotated[int, typer.Option(
        "--samples", min=1, metavar="N",
        help="Training samples to cost; default: 10000.")] = 10_000,
    traffic: Annotated[Optional[Path], typer.Option(
        "--traffic", metavar="FILE",
        help="A job's recorded calls, of which RESULTS are the replay: why slow, what if?")] = None,
    prove: Annotated[Optional[Path], typer.Option(
        "--prove", metavar="FILE", callback=flags.in_folder,
        help="With --traffic: write a sweep of the best setting and the present.")] = None,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Recommend settings; find stragglers, slow links, drift and cost.

    Examples:
        hpcbench advise results/latest
        hpcbench advise results/latest --traffic traffic.json --prove prove.json
        hpcbench advise results/latest --to nccl -o tuner.csv"""
    from hpcbench.report import answer_lines

    verbosity = flags.verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}" for path in files])
    if to is not None or (TUNER in files and not TUNER.exists()):
        _write_tuner(files, to, output, force=force, is_mixed=bool(only) or as_json)
        return
    if output is not None or (force and prove is None):
        raise UsageError("-o and --force are for: hpcbench advise RESULTS --to nccl")
    if prove is not None and traffic is None:
        raise UsageError("--prove: proves what a recorded job gains; give --traffic traffic.json")
    options = answer_lines.topic_options(price, samples, traffic)
    topics = answer_lines.advice(files, only or (), options, prove=prove is not None)
    if as_json:
        answer_lines.print_advice_json(topics, files)
    else:
        answer_lines.print_advice(topics, verbosity)
    if prove is not None and traffic is not None:
        about = _write_proof(answer_lines.proof(options, topics), traffic, prove, force=force)
        say_all(as_field(str(prove)) if quiet else about, sys.stderr if as_json else None)


_CHARTS = "Charts"


def plot(
    path: Annotated[Path, typer.Argument(
        metavar="RESULTS", help="results.h5, or the folder with it.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output-dir", metavar="DIR", rich_help_panel=flags.FILES, callback=flags.not_dash,
        help="Folder of the images; default: plots/ beside the results.")] = None,
    image_format: Annotated[Optional[str], typer.Option(
        "--format", metavar="FORMAT", autocompletion=flags.image_formats,
        rich_help_panel=flags.FILES, help="png (default), svg or pdf (for --style paper).")] = None,
    style: Annotated[str, typer.Option(
        "--style", metavar="STYLE", autocompletion=flags.plot_styles, rich_help_panel=flags.FILES,
        help="report (default), or paper: one column (3.5 in) wide.")] = "report",
    kind: Annotated[Optional[str], typer.Option(
        "--kind", metavar="KIND", autocompletion=flags.benchmarks, rich_help_panel=_CHARTS,
        help="Only charts of this kind of case, such as training.")] = None,
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", metavar="NAME", rich_help_panel=_CHARTS,
        help="Only charts with this file name or pattern; repeatable.")] = None,
    case: Annotated[Optional[str], typer.Option(
        "--case", metavar="CASE", rich_help_panel=_CHARTS,
        help="Case of the rank x iteration map, by id or label.")] = None,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Draw latency, bandwidth and the rank x iteration map.

    Examples:
        hpcbench plot results/latest
        hpcbench plot results/latest --kind collective --only "all_*"
        hpcbench plot results/latest --style paper -o figures"""
    from hpcbench.reduce.suite_file import refuse_suite
    from hpcbench.report.charts import ChartChoice
    from hpcbench.report.plots import named_style, plot_file

    refuse_suite(path)
    flags.verbosity_of(verbose, quiet).details([f"reads {path.absolute()}"])
    chosen = ChartChoice(kind, tuple(only or ()), case)
    for figure in plot_file(path, output, image_format, chosen, named_style(style)):
        say(figure)


def report(
    files: Annotated[Optional[list[Path]], typer.Argument(
        metavar="[RUN...]", rich_help_panel=flags.FILES,
        help="Runs or suites; several are compared. Default: results/latest.")] = None,
    source: Annotated[Optional[Path], typer.Option(
        "-s", "--source", metavar="DIR", rich_help_panel=flags.FILES,
        help="Report all runs in this folder.")] = None,
    file_format: Annotated[Optional[str], typer.Option(
        "-f", "--format", metavar="FORMAT", rich_help_panel=flags.FILES,
        autocompletion=flags.report_formats,
        help="html, pdf or md; default: by the name of the file.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=flags.FILES, callback=flags.not_dash,
        help="File to write; default: report.html, beside one run's results.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=flags.FILES, help="Replace an existing file.")] = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Write a report with verdict, tables and charts in one file.

    Examples:
        hpcbench report results/latest
        hpcbench report results/latest -o report.md
        hpcbench report before after -o comparison.html"""
    from hpcbench.report.report_file import (
        LATEST,
        chosen_format,
        ids_of,
        is_made_of,
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
    flags.free_target(target, force=force or is_made_of(target))
    verbosity = flags.verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}" for path in paths])
    with open_runs(paths) as runs, verbosity.stage("report"):
        flags.free_target(target, force=force or is_made_of(target, ids_of(runs)))
        say(write_report(runs, chosen, target))
