"""Flags that several commands have, and the keys of the sweep file that they stand for.

What every command gets when it is registered: --verbose, --quiet, and examples in its help.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, Optional, get_type_hints

import typer
from typer import Argument, BadParameter, Option

from hpcbench import __version__
from hpcbench.commands import completion
from hpcbench.errors import HpcbenchError
from hpcbench.launch.launcher import announced_rank
from hpcbench.texts import valid_json
from hpcbench.verbosity import Verbosity

MOST_RANKS = 2**17
"""As in config.axes, which a command imports only when it runs."""

SetOption = Annotated[Optional[list[str]], Option(
    "--set", help="Set any key: --set measure.iterations=50. Repeatable.")]
OutputOption = Annotated[Optional[Path], Option(
    "-o", "--output-dir", help="Results folder: output.folder.")]

JsonOption = Annotated[bool, Option(
    "--json", help="Print JSON, and nothing else, on standard output (docs/commands.md).")]

RequireOption = Annotated[Optional[list[str]], Option(
    "--require", autocompletion=completion.requirable,
    help="A backend whose skips are failures, or cuda or mps: require. Repeatable.")]
InlineOption = Annotated[bool, Option(
    "--inline", help="Run the worker in the MPI process, for a debugger.")]

RetryOption = Annotated[Optional[list[str]], Option(
    "--retry", metavar="STATUS[,STATUS...]", autocompletion=completion.retried,
    help="With --resume: run cases again that are failed, wrong, timeout or skipped. What they "
    "left before is kept beside it. Repeatable.")]


def statuses_to_retry(given: list[str] | None, *, resumes: bool) -> tuple[str, ...]:
    """Return the statuses that --retry names. Raises BadParameter for others, or no --resume."""
    if given and not resumes:
        raise BadParameter("--retry is for --resume: it runs cases of that run again")
    from hpcbench.config.axes import RETRIED

    named = tuple(dict.fromkeys(word.strip() for text in given or () for word in text.split(",")))
    if unknown := [word for word in named if word not in RETRIED]:
        raise BadParameter(f"--retry {unknown[0]}: a status is one of {', '.join(RETRIED)}, "
                           "several with commas between them")
    return named


def overrides_of(
    shorthands: Mapping[str, object], assignments: list[str] | None
) -> list[tuple[str, object]]:
    """Return (key path, value) pairs; the shorthands come first, so that --set wins."""
    given = [(key, valid_json(value)) for key, value in shorthands.items() if value is not None]
    if not assignments:
        return given
    from hpcbench.config.load import parse_assignment

    return [*given, *map(parse_assignment, assignments)]


@dataclass(frozen=True, slots=True)
class ConfigFlags:
    """The sweep file, in either way."""

    config: Annotated[Optional[Path], Argument(
        help="Sweep file, JSON or YAML. Default: ./config.json, else the packaged one.")] = None
    config_option: Annotated[Optional[Path], Option(
        "--config", "-c", help="The same, as an option.")] = None

    def path(self) -> Path | None:
        """Return the sweep file that was given. Raises BadParameter if it was in both ways."""
        if self.config is not None and self.config_option is not None:
            raise BadParameter("give the config once: as an argument or with -c")
        return self.config or self.config_option


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """The flags that a plan depends on; None where not given."""

    benchmark: Annotated[Optional[str], Option(
        autocompletion=completion.benchmarks,
        help="Run only the blocks of this kind: collective (or comm), primitive, "
        "training (or train), hardware (or machine), memory. scaling: collectives and trainings, "
        "on 1, 2, 4 ... and all ranks."
        )] = None
    warmup: Annotated[Optional[int], Option(
        help="Warm-up iterations of every case: measure.warmup.")] = None
    iters: Annotated[Optional[str], Option(
        help="Timed iterations of every case, or auto: measure.iterations.")] = None
    mode: Annotated[Optional[str], Option(
        autocompletion=completion.modes,
        help="Timing mode of every case: isolated, pipelined or barrier_start.")] = None
    passes: Annotated[Optional[int], Option(
        help="Times the whole plan is run: measure.passes.")] = None
    launches: Annotated[Optional[int], Option(
        help="Independent repetitions of it with fresh workers: measure.launches.")] = None
    only: Annotated[Optional[list[str]], Option(
        help="Keep the cases whose label has this text as whole words, or matches it as a shell "
        "pattern of the whole label: only. Repeatable.")] = None
    exclude: Annotated[Optional[list[str]], Option(
        help="Drop the cases whose label does: exclude. Repeatable.")] = None
    model: Annotated[Optional[list[str]], Option(
        autocompletion=completion.models,
        help="Run only trainings, of this model instead of those in blocks: model. "
        "Repeatable.")] = None
    strategy: Annotated[Optional[list[str]], Option(
        autocompletion=completion.strategies,
        help="Run only trainings, with this strategy instead of those in blocks: strategy. "
        "Repeatable.")] = None
    assignments: SetOption = None

    def overrides(self, **others: object) -> list[tuple[str, object]]:
        """Return (key path, value) pairs of these flags and ``others``, with __ for a dot."""
        iters = self.iters  # other text than a number: the config's check says so
        return overrides_of({
            "benchmark": self.benchmark, "measure.warmup": self.warmup,
            "measure.iterations": int(iters) if iters and iters.isdecimal() else iters,
            "measure.mode": self.mode, "measure.passes": self.passes,
            "measure.launches": self.launches, "only": self.only or None,
            "exclude": self.exclude or None, "model": self.model or None,
            "strategy": self.strategy or None,
            **{name.replace("__", "."): value for name, value in others.items()},
        }, self.assignments)


ExplainOption = Annotated[bool, Option(
    "--explain", help="Print what the columns of the tables mean.")]


@dataclass(frozen=True, slots=True)
class RunFlags:
    """How a run treats its cases, whether it is a dry one, and whether it goes on with another."""

    require: RequireOption = None
    inline: InlineOption = False
    dry: Annotated[bool, Option(
        "--dry-run", help="Set up and call every case once as rank 0, alone: "
        "no MPI, no communication, no measurement, no results.")] = False
    world_size: Annotated[Optional[int], Option(
        min=1, max=MOST_RANKS, help="Ranks of a dry run; default 4.")] = None
    resume: Annotated[Optional[Path], Option(
        metavar="[DIR]", help="Go on where the run in this results folder ended; begin it there if "
        "the folder is new or empty. Without DIR: the newest run in output.folder.")] = None
    fail_below: Annotated[Optional[list[str]], Option(
        "--fail-below", help="Exit code 1 if a rate is less, such as "
        "all_reduce:4MiB:busbw=1.2GB/s: fail_below. Repeatable.")] = None
    retry: RetryOption = None
    force: Annotated[bool, Option(
        "--force", help="With --resume: in spite of a changed plan or software, "
        "which the results then tell.")] = False
    explain: ExplainOption = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter a flag for typer, in place of those of its groups.

    A group is a parameter whose type is a dataclass of flags.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    expanded: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            expanded.append(parameter.replace(
                kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))
        else:
            flags = get_type_hints(group, include_extras=True)
            expanded += [Parameter(flag.name, Parameter.KEYWORD_ONLY, default=flag.default,
                                   annotation=flags[flag.name]) for flag in fields(group)]

    @wraps(command)
    def regrouped(**given: object) -> None:
        made = {name: group(**{flag.name: given.pop(flag.name) for flag in fields(group)})
                for name, group in groups.items()}
        command(**made, **given)

    regrouped.__signature__ = Signature(expanded)  # type: ignore[attr-defined]
    regrouped.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return regrouped


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
