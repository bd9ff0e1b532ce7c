"""What every command gets when it is registered: --verbose, --quiet, and examples in its help."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from typing import Annotated, get_type_hints

import typer

from hpcbench import __version__
from hpcbench.errors import HpcbenchError
from hpcbench.launch.ranks.launcher_variables import announced_rank
from hpcbench.verbosity import Verbosity

_EXAMPLES = "Examples:"
_FLAGS = (
    Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more, on standard error: files, "
                           "overrides, versions, times of stages, tracebacks of errors.")]),
    Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result only, in its shortest form; "
                           "errors stay on standard error.")]),
)


def register(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command to the program.

    Its docstring is its help. What follows a line ``Examples:`` in it is printed below the options,
    one command a line.
    """
    about, examples = help_and_examples(command)
    app.command(name=name, help=about, epilog=examples_text(examples))(with_verbosity(command))


def examples_text(examples: Iterable[str]) -> str:
    """Return examples as typer prints them below a help: in rich's markup, a line each."""
    return "\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in examples)])


def help_and_examples(command: Callable[..., None]) -> tuple[str, list[str]]:
    """Return a command's docstring up to its examples, and the examples."""
    about, _, examples = cleandoc(command.__doc__ or "").partition(f"\n{_EXAMPLES}\n")
    return about.strip(), [line.strip() for line in examples.splitlines() if line.strip()]


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has --verbose and --quiet, too, for typer.

    A parameter of type `Verbosity`, if there is one, gets what they say. In every command
    --verbose adds versions, the time of the whole, and the traceback of an error.
    """
    hints = get_type_hints(command, include_extras=True)
    own = {one.name: one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name])
           for one in signature(command).parameters.values()}
    takers = [name for name, one in own.items() if one.annotation is Verbosity]
    parameters = [*(one for name, one in own.items() if name not in takers), *_FLAGS]

    @wraps(command)
    def with_flags(*, verbose: bool, quiet: bool, **given: object) -> None:
        verbosity = _verbosity(verbose=verbose, quiet=quiet)
        verbosity.details(_versions())
        with verbosity.stage("whole command"):
            try:
                command(**given, **dict.fromkeys(takers, verbosity))
            except (HpcbenchError, OSError):
                verbosity.traceback()
                raise

    with_flags.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_flags


def _versions() -> Iterator[str]:
    yield f"hpcbench {__version__}, Python {platform.python_version()}, {platform.platform()}"


def _verbosity(*, verbose: bool, quiet: bool) -> Verbosity:
    """Return what the flags say; of many ranks only the first tells details."""
    if verbose and quiet:
        raise typer.BadParameter("give --verbose or --quiet, not both")
    if verbose and announced_rank(os.environ) == 0:
        return Verbosity.VERBOSE
    return Verbosity.QUIET if quiet else Verbosity.NORMAL
