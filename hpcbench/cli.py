"""The program: its commands under their names; `__main__` turns errors into a line and a code.

Every command imports what it needs when it runs, so that ``--help`` stays instant and a laptop
without torch or MPI can read results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from hpcbench import __version__
from hpcbench.commands.flags import examples_text, register
from hpcbench.commands.generate import gen_config, gen_data, list_, schema
from hpcbench.commands.jobs import plan, profile, run, suite, validate
from hpcbench.commands.results import (
    advise,
    anonymize,
    check,
    compare,
    plot,
    reduce,
    report,
    show,
)

app = typer.Typer(
    name="hpcbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Benchmark collectives and training strategies of distributed deep learning under MPI. "
    "Messages name pages of hpcbench's repository: docs/....",
    epilog=examples_text((
        "mpirun -np 4 python -m hpcbench validate", "hpcbench plan --world-size 4",
        "mpirun -np 4 python -m hpcbench run", "hpcbench show results/latest")),
)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": run, "suite": suite, "profile": profile, "plan": plan, "reduce": reduce, "show": show,
    "plot": plot, "report": report, "compare": compare, "check": check, "advise": advise,
    "anonymize": anonymize, "validate": validate, "list": list_, "gen-config": gen_config,
    "gen-data": gen_data, "schema": schema,
}
for _name, _command in COMMANDS.items():
    register(app, _name, _command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hpcbench {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass
