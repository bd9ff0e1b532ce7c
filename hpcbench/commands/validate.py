"""``hpcbench validate``: is this machine, and this launch, ready for a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hpcbench.commands.flags import (
    ConfigFlags,
    JsonOption,
    OutputOption,
    SetOption,
    grouped,
    overrides_of,
)
from hpcbench.texts import stored_path
from hpcbench.verbosity import Verbosity


@grouped
def validate(
    source: ConfigFlags,
    output: OutputOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    timeout: Annotated[float, typer.Option(
        min=1, max=3600, help="Seconds in which each rank has to answer.")] = 60.0,
    *, verbosity: Verbosity,
) -> None:
    """Check machine and launch before a run: mpirun -np 4 python -m hpcbench validate.

    With a sweep file also what that sweep needs. Exit code 1 if a check fails.

    Examples:
        mpirun -np 4 python -m hpcbench validate
        mpirun -np 4 python -m hpcbench validate sweep.json --quiet
        mpirun -np 4 python -m hpcbench validate --json | jq ".counts"
    """
    from hpcbench.validation.validate import ValidationRequest, validate_command

    sys.stderr = sys.__stderr__
    folder = stored_path(output) if output else None
    overrides = overrides_of({"output.folder": folder}, assignments)
    request = ValidationRequest(source.path(), overrides, as_json, timeout, verbosity)
    raise typer.Exit(validate_command(request))
