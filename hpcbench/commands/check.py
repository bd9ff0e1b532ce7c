"""``hpcbench check``: the gate for CI, for Slurm's prolog or NHC, and for Nagios."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import JsonOption, grouped
from hpcbench.texts import say
from hpcbench.verbosity import Verbosity


@dataclass(frozen=True, slots=True)
class GateFlags:
    """What results must hold, and what the exit code says."""

    limits: Annotated[Optional[Path], typer.Option(
        "--limits", help="A YAML file of limits (docs/check.md).")] = None
    baseline: Annotated[Optional[list[Path]], typer.Option(
        "--baseline", help="Results to be as fast as. Repeatable.")] = None
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0,
        help="With --baseline: smallest change that matters, as a share.")] = 0.03
    style: Annotated[str, typer.Option(
        "--exit-style", autocompletion=completion.exit_styles,
        help="ci, slurm or nagios: what the exit code says.")] = "ci"


@dataclass(frozen=True, slots=True)
class LearnFlags:
    """Limits from clean runs."""

    learn: Annotated[bool, typer.Option(
        "--learn", help="Write limits from these results, which are clean runs, to -o.")] = False
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", help="With --learn: the file of limits; it must not exist.")] = None
    share: Annotated[float, typer.Option(
        "--share", min=0.1, max=0.999,
        help="With --learn: share of launches that hold a limit.")] = 0.75


@grouped
def check(
    results: Annotated[list[Path], typer.Argument(
        help="results.h5, or its folder; several of equal jobs count as one.")],
    gate: GateFlags, learning: LearnFlags, as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Check results against limits or a baseline; only stored results are read.

    Examples:
        hpcbench check results/latest --limits limits.yaml
        hpcbench check new/results.h5 --baseline old1 --baseline old2 --exit-style slurm
        hpcbench check --learn run1 run2 run3 -o limits.yaml
    """
    from hpcbench.analysis.gate import STYLES, UNREADABLE, check_baseline, check_file
    from hpcbench.analysis.learn import write_limits
    from hpcbench.errors import UsageError
    from hpcbench.masking import masked
    from hpcbench.report.check_lines import PREFIX, print_checked, print_checked_json

    if gate.style not in STYLES:
        raise UsageError(f"--exit-style {gate.style}: allowed are {', '.join(STYLES)}")
    try:
        if sum((gate.limits is not None, bool(gate.baseline), learning.learn)) != 1:
            raise UsageError("give one of --limits FILE, --baseline FILE and --learn")
        if learning.learn:
            say(write_limits(results, learning.output, learning.share))
            return
        checked = (check_file(results, gate.limits) if gate.limits is not None
                   else check_baseline(results, gate.baseline or [], gate.smallest))
    except Exception as error:  # an error of any kind is no evidence against a node
        if gate.style == "ci":
            raise
        told = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        say(f"{PREFIX} UNREADABLE {masked(told, os.environ)}", sys.stderr)
        raise typer.Exit(UNREADABLE[gate.style]) from None
    if as_json:
        print_checked_json(checked)
    else:
        print_checked(checked, quiet=verbosity.is_quiet)
    raise typer.Exit(STYLES[gate.style][checked.outcome])
