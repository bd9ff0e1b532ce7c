"""``hpcbench plot``: the figures of a results file.

``hpcbench report``: all that results say, in one file.

``hpcbench anonymize``: a copy of a run without the names of machines and people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import UsageError
from hpcbench.measure.process import rare_collection
from hpcbench.texts import say


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
    from hpcbench.errors import FileError, UsageError
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
