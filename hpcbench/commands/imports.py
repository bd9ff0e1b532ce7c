"""The commands for files that other programs wrote: ``hpcbench lint``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import JsonOption, QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import ExitCode

CollectiveOption = Annotated[str, typer.Option(
    "--collective", metavar="NAME", autocompletion=completion.collectives,
    help="The collective of tables that name none.")]


def lint(
    files: Annotated[list[Path], typer.Argument(
        metavar="FILE...", help="Output of another program: text, JSON or CSV; also .gz.")],
    link: Annotated[Optional[float], typer.Option(
        "--link", min=0.001, metavar="GB/S",
        help="Report rates above this declared rate of a link.")] = None,
    collective: CollectiveOption = "",
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Check another program's tables against their own arithmetic.

    Examples:
        hpcbench lint nccl.log
        hpcbench lint node1.log node2.log.gz --link 450
    """
    from hpcbench.formats.linted import Linting
    from hpcbench.formats.reading.names import known_collective
    from hpcbench.report.terminal import print_document

    verbosity = verbosity_of(verbose, quiet)
    linting = Linting(known_collective(collective), link, is_quiet=verbosity.is_quiet, as_json=as_json)
    for file in files:
        verbosity.details([f"reads {file.absolute()}"])
        linting.read(file)
    if as_json:
        print_document(linting.document())
    elif not verbosity.is_quiet:
        verbosity.announce(linting.summary())
    raise typer.Exit(ExitCode.FINDINGS if linting.count else ExitCode.OK)
