"""``hpcbench history``: series over all runs below a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpcbench.commands.flags import QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import FileError
from hpcbench.measurement.process import rare_collection
from hpcbench.texts import as_field, say


@rare_collection()
def history(
    folders: Annotated[list[Path], typer.Argument(
        metavar="DIR...", help="Folders; all runs below them count.")],
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Show since when each case is faster or slower, over all runs below folders.

    Examples:
        hpcbench history results
        hpcbench history nightly/2026 nightly/2027"""
    from hpcbench.fleet.history.runs import read_runs, results_below

    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"reads all runs below {folder.absolute()}" for folder in folders])
    runs, left_out = read_runs(results_below(folders))
    for line in left_out:
        say(f"hpcbench: left out: {line}", sys.stderr)
    if not runs:
        raise FileError(f"{folders[0]}: no run with a start time below it")
    for run in runs:
        say(f"{as_field(run.run_id)} {as_field(str(run.path))}")
