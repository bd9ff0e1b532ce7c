"""``hpcbench reduce`` and ``show``: what is left of a run is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcbench.commands.flags import ExplainOption, JsonOption
from hpcbench.measure.garbage import rare_collection
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
    from hpcbench.analysis.thresholds import final_code
    from hpcbench.measure.allocation import usable_cores
    from hpcbench.measure.kernel_files import KernelFiles
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
    from hpcbench.report.console import print_results
    from hpcbench.report.suite_lines import print_suite
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
