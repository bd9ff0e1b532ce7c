"""``hpcbench validate``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hpcbench.commands.flags import (
    JOB,
    ConfigArgument,
    ConfigOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SetOption,
    VerboseOption,
    config_path,
    overrides_of,
    verbosity_of,
)
from hpcbench.texts import stored_path


def validate(
    config: ConfigArgument = None, config_option: ConfigOption = None,
    output: OutputOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    timeout: Annotated[float, typer.Option(
        min=1, max=3600, metavar="SECONDS", rich_help_panel=JOB,
        help="Time limit for each rank's answer; default: 60.")] = 60.0,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Check machine and launch before a run.

    With a sweep file also the needs of that sweep. Exit code 1 if a check fails.

    Examples:
        mpirun -np 4 python -m hpcbench validate
        mpirun -np 4 python -m hpcbench validate sweep.json --quiet
        mpirun -np 4 python -m hpcbench validate --json | jq ".counts"
    """
    from hpcbench.validation.validate import ValidationRequest, validate_command

    sys.stderr = sys.__stderr__
    folder = stored_path(output) if output else None
    overrides = overrides_of({"output.folder": folder}, assignments)
    request = ValidationRequest(config_path(config, config_option), overrides, as_json, timeout,
                                verbosity_of(verbose, quiet))
    raise typer.Exit(validate_command(request))
