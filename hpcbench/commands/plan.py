"""``hpcbench plan``: what a run would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from hpcbench.commands.flags import MOST_RANKS, ConfigFlags, JsonOption, SweepFlags, grouped
from hpcbench.commands.run import dry_run_here
from hpcbench.verbosity import Verbosity


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """For which job a plan is, and what is asked of this machine."""

    world_size: Annotated[int, typer.Option(min=1, max=MOST_RANKS, help="Ranks to plan for.")] = 4
    probe: Annotated[bool, typer.Option(
        "--probe", help="Ask this machine, in a separate process, what it has.")] = False
    dry: Annotated[bool, typer.Option(
        "--dry-run", help="Then do what run --dry-run does, which needs torch.")] = False


@grouped
def plan(
    source: ConfigFlags, how: PlanFlags, as_json: JsonOption = False,
    *, sweep: SweepFlags, verbosity: Verbosity,
) -> None:
    """Print cases, order, skips and a time estimate; needs no MPI, torch or GPU.

    Examples:
        hpcbench plan
        hpcbench plan sweep.json --world-size 64 --probe
        hpcbench plan --only all_reduce --json | jq ".cases[].label"
    """
    if how.dry and as_json:
        raise typer.BadParameter("--json prints the plan; leave --dry-run away")
    from hpcbench.config.load import load_config
    from hpcbench.config.sources import source_lines
    from hpcbench.plan.expand import make_plan
    from hpcbench.report.console import print_plan
    from hpcbench.report.plan_document import print_plan_document

    overrides, path = sweep.overrides(), source.path()
    verbosity.details(source_lines(path, overrides))
    with verbosity.stage("plan"):
        job = make_plan(load_config(path, overrides), how.world_size)
    if how.probe:
        from hpcbench.launch.probe import resolve_here

        with verbosity.stage("probe"):
            job = resolve_here(job)
    if as_json:
        print_plan_document(job)
    else:
        print_plan(job, verbosity)
    if how.dry:
        dry_run_here(path, overrides, how.world_size, verbosity)
