"""``hpcbench list``: what can be measured."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcbench.commands.flags import JsonOption
from hpcbench.verbosity import Verbosity


def list_(
    probe: Annotated[bool, typer.Option(
        "--probe/--no-probe", help="Ask this machine which backends it has.")] = True,
    as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """List what can be measured: collectives, primitives, models, strategies; and backends here.

    Examples:
        hpcbench list
        hpcbench list --no-probe --quiet
        hpcbench list --json | jq ".models | keys"
    """
    from hpcbench.report.listing import print_listing

    print_listing(probe=probe, as_json=as_json, verbosity=verbosity)
