"""``hpcbench list``: what can be measured."""

from __future__ import annotations

from typing import Annotated

import typer


def list_(
    probe: Annotated[bool, typer.Option(
        "--probe/--no-probe", help="Ask this machine which backends it has.")] = True,
) -> None:
    """List what can be measured: collectives, primitives, models, strategies; and backends here."""
    from hpcbench.report.listing import print_listing

    print_listing(probe=probe)
