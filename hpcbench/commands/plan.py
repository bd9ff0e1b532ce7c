"""``hpcbench plan``: what a run would do."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcbench.commands.flags import MOST_RANKS, ConfigFlags, SweepFlags, grouped
from hpcbench.commands.run import dry_run_here


@grouped
def plan(
    source: ConfigFlags,
    world_size: Annotated[int, typer.Option(min=1, max=MOST_RANKS, help="Ranks to plan for.")] = 4,
    probe: Annotated[bool, typer.Option(
        "--probe", help="Ask this machine, in a separate process, what it has.")] = False,
    dry: Annotated[bool, typer.Option(
        "--dry-run", help="Then do what run --dry-run does, which needs torch.")] = False,
    *, sweep: SweepFlags,
) -> None:
    """Print cases, order, skips and a time estimate; needs no MPI, torch or GPU."""
    from hpcbench.config.load import load_config
    from hpcbench.plan.expand import make_plan
    from hpcbench.report.console import print_plan

    overrides, path = sweep.overrides(), source.path()
    job = make_plan(load_config(path, overrides), world_size)
    if probe:
        from hpcbench.launch.probe import resolve_here

        job = resolve_here(job)
    print_plan(job)
    if dry:
        dry_run_here(path, overrides, world_size)
