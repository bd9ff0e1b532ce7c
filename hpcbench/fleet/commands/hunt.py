"""``hpcbench hunt``: which nodes of an allocation are bad."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands.flags import (
    OutputOption,
    QuietOption,
    VerboseOption,
    verbosity_of,
)
from hpcbench.errors import UsageError

_GROUP, _LIMITS = "Hunt", "What is expected"
_PARTNERS = 2


def hunt(
    output: OutputOption = None,
    stage_seconds: Annotated[float, typer.Option(
        "--stage-seconds", min=1, max=3600, metavar="S", rich_help_panel=_GROUP,
        help="Time of each stage's measurements; default: 45.")] = 45.0,
    time_limit: Annotated[float, typer.Option(
        "--time-limit", min=1, max=3600, metavar="S", rich_help_panel=_GROUP,
        help="A measurement that takes longer hangs; default: 30.")] = 30.0,
    sign_in: Annotated[float, typer.Option(
        "--sign-in", min=1, max=3600, metavar="S", rich_help_panel=_GROUP,
        help="A rank that comes later is missing; default: 60.")] = 60.0,
    only: Annotated[str, typer.Option(
        "--only", metavar="NODE", rich_help_panel=_GROUP,
        help="Judge this node alone, after a repair.")] = "",
    partner: Annotated[Optional[list[str]], typer.Option(
        "--partner", metavar="NODE", rich_help_panel=_GROUP,
        help="With --only: a node known as good; give two.")] = None,
    in_turn: Annotated[bool, typer.Option(
        "--in-turn", rich_help_panel=_GROUP,
        help="Groups measure one after another: for nodes that share cores.")] = False,
    expected: Annotated[Optional[Path], typer.Option(
        "--expected", metavar="FILE", rich_help_panel=_LIMITS,
        help="Sweep file whose hardware.num_devices each node has.")] = None,
    minimum: Annotated[Optional[Path], typer.Option(
        "--minimum", metavar="FILE", rich_help_panel=_LIMITS,
        help="Least rates: a list of {collective, ranks, size, gb_per_s}.")] = None,
    reference: Annotated[Optional[Path], typer.Option(
        "--reference", metavar="FILE", rich_help_panel=_LIMITS,
        help="hunt.json of an earlier hunt: what good nodes reached.")] = None,
    vouch: Annotated[Optional[list[str]], typer.Option(
        "--vouch", metavar="NODE", rich_help_panel=_LIMITS,
        help="With --reference: a node that it could not judge, good by your word.")] = None,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Find the bad nodes of an allocation, without MPI: alone, in pairs, in growing groups.

    Exit code 0: all nodes are good; 1: some are bad or suspect; 3: some were not tested. A node
    that dies must not end the job step: srun --no-kill python -m hpcbench hunt.

    Examples:
        mpirun -np 4 python -m hpcbench hunt -o hunts
        mpirun -np 4 python -m hpcbench hunt --stage-seconds 60 --expected sweep.yaml
        mpirun -np 4 python -m hpcbench hunt --only n17 --partner n3 --partner n4"""
    from hpcbench.fleet.hunt.given import limits_of
    from hpcbench.fleet.hunt.job import HuntRequest, hunt_job
    from hpcbench.fleet.hunt.keeping import keeper

    partners = tuple(partner or ())
    if partners and (not only or len({*partners, only}) != _PARTNERS + 1):
        raise UsageError("--partner: give --only NODE, and two other nodes as partners")
    request = HuntRequest(output or Path("results"), stage_seconds, time_limit, sign_in, only,
                          partners, in_turn)
    if vouch and reference is None:
        raise UsageError("--vouch: give --reference FILE, the hunt.json that has this node")
    limits = limits_of(expected, minimum, reference, vouch or ())
    raise typer.Exit(hunt_job(
        request, keeper(request.folder, limits, verbosity_of(verbose, quiet)), os.environ))
