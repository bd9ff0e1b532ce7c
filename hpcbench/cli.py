"""The program: its commands under their names, and its help; `__main__` turns errors into codes.

Every command imports what it needs when it runs, so that ``--help`` stays instant and a laptop
without torch or MPI can read results."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from inspect import cleandoc
from textwrap import wrap
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from hpcbench import __version__
from hpcbench.commands.flags import PRINTED, RECOMMEND, verbosity_of
from hpcbench.commands.generate import gen_config, gen_data, list_, schema
from hpcbench.commands.jobs import plan, profile, run, suite
from hpcbench.commands.results import (
    advise,
    check,
    compare,
    plot,
    reduce,
    report,
    show,
)
from hpcbench.errors import ExitCode, HpcbenchError, UsageError
from hpcbench.registry import CommandSpec, TopicSpec, offered
from hpcbench.units import grouped

_OWN: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Measure": {"plan": plan, "run": run, "suite": suite, "profile": profile},
    "Read results": {"show": show, "report": report, "plot": plot, "compare": compare,
                     "check": check, "advise": advise, "reduce": reduce},
    "Other tools": {},
    "Prepare": {"list": list_, "gen-config": gen_config, "gen-data": gen_data, "schema": schema},
}


class _Commands(Mapping[str, Callable[..., None]]):
    """Name -> function: our own, then what parts and packages offer, loaded when it is asked for.

    Offers are looked for only where a name is none of our own."""

    own = {name: command for group in _OWN.values() for name, command in group.items()}

    def __getitem__(self, name: str) -> Callable[..., None]:
        if name in self.own:
            return self.own[name]
        command: Callable[..., None] = _offered()[name].load()
        return command

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in _offered()

    def __iter__(self) -> Iterator[str]:
        return (name for names in _headings().values() for name in names)

    def __len__(self) -> int:
        return len(self.own) + len(_offered())


def _offered() -> Mapping[str, CommandSpec]:
    return {name: spec for name, spec in offered(CommandSpec).items()
            if spec.heading and name not in _Commands.own}


def _headings() -> Mapping[str, Sequence[str]]:
    """Return the headings of the program's help, each with the commands below it."""
    others = grouped((spec.heading, name) for name, spec in _offered().items())
    return {heading: sorted((*_OWN.get(heading, ()), *others.get(heading, ())), key=_is_later)
            for heading in (*_OWN, *(others.keys() - _OWN.keys()))}


def _is_later(name: str) -> bool:
    return name in _Commands.own or not _offered()[name].is_first


COMMANDS: Mapping[str, Callable[..., None]] = _Commands()
_MOST_NAMES = 30
"""Columns of an option's names and value in a help; longer ones have a line of their own."""
_OF_SEVERAL: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(("show", "plot"), "hpcbench compare A B C, or hpcbench export A B C --to csv"),
    "run": "hpcbench suite A.json B.yaml"})
"""Command on one run or sweep -> what takes several."""
_WRONG_USAGE: Any = typer.BadParameter.__mro__[1]
"""What typer raises for all words that it cannot take; it exports only what derives from it."""


class _Summary(TyperGroup):
    """The program's help in 24 lines of 80 columns: commands not our own share a line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _OnDemand()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; without a command print the help, as wrong usage."""
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx))
            ctx.exit(ExitCode.USAGE)
        with _in_a_line(ctx):
            return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a topic of ``advise`` is answered with the line that it takes."""
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            _refuse(args[0])
        with _in_a_line(ctx):
            return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = [f"Usage: {ctx.command_path} [--version] [--install-completion] COMMAND ...",
                 str(self.help)]
        for title, names in _headings().items():
            if names and not _OWN.get(title):  # the screen has 24 lines
                lines.append(f"{title}: {', '.join(names)}")
            elif names:
                lines += [f"{title}:", *_rows(((
                    name, help_and_examples(COMMANDS[name])[0].split("\n")[0])
                    for name in names), 10)]
        lines.append("Start: mpirun -np 4 python -m hpcbench run. Options: hpcbench COMMAND --help")
        formatter.write("\n".join(lines) + "\n")


def _refuse(word: str) -> None:
    """Raise UsageError for a word that is a topic of ``advise``, or an offer that cannot be used.
    """
    topic, offers = offered(TopicSpec).get(word), offered(CommandSpec)
    if word == RECOMMEND or topic:
        traffic = "--traffic FILE " if topic and topic.is_recorded else ""
        raise UsageError(f"{word} is a topic: hpcbench advise RESULTS {traffic}--only {word}")
    if word in offers.broken:
        raise UsageError(f"{word}: cannot be used: {offers.broken[word]}")


class _Command(TyperCommand):
    """A command whose options are grouped by purpose, a line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; refuse words that are no value of anything: an empty path would be the folder
        here. Those behind ``--`` are another program's."""
        own = args[:args.index("--")] if "--" in args else args
        for before, word in zip(["", *own], own, strict=False):
            is_flag = word.startswith("--")
            name, given, value = word.partition("=") if is_flag else (before, "=", word)
            if "\0" in word or (given and not value):
                place = f"{name}: " if name.startswith("-") else ""
                raise UsageError(f"{place}{'a null byte' if value else 'an empty word'} is no "
                                 "value: write one, or leave the option out")
        example, *_ = str(self.epilog).splitlines()
        with _in_a_line(ctx, self.name, example):
            return list(super().parse_args(ctx, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        groups = grouped(
            (getattr(one, "rich_help_panel", None) or (
                PRINTED if "--help" in one.opts else "Options"),
             (_names(one), getattr(one, "help", None) or ""))
            for one in self.get_params(ctx))
        if PRINTED in groups:
            groups[PRINTED] = groups.pop(PRINTED)  # last
        arguments = [_names(one) for one in self.params if one.param_type_name == "argument"]
        lines = [" ".join([f"Usage: {ctx.command_path} [OPTIONS]", *arguments]),
                 *str(self.help).splitlines()]
        width = max((len(name) for rows in groups.values() for name, _ in rows
                     if len(name) <= _MOST_NAMES), default=0)
        for title, rows in groups.items():
            lines += [f"{title}:", *_rows(rows, width)]
        lines += ["Examples:", *(f"  {line}" for line in str(self.epilog).splitlines())]
        formatter.write("\n".join(lines) + "\n")


@contextmanager
def _in_a_line(ctx: Any, command: str | None = None, example: str = "") -> Iterator[None]:
    """Raise UsageError where typer would draw a box; what is missing is shown in an example."""
    try:
        yield
    except _WRONG_USAGE as error:
        problem = error.format_message().rstrip(".")
        yours = [f"{command}:"] if command else []
        remedy = [f"such as {example};"] if problem.startswith("Missing") else [
            f"of several: {of_several};"] if "extra argument" in problem and (
                of_several := _OF_SEVERAL.get(command or "")) else []
        raise UsageError(" ".join([*yours, f"{problem[:1].lower()}{problem[1:]};", *remedy,
                                   f"see {ctx.command_path} --help"])) from None


def _names(parameter: Any) -> str:
    """Return ``-c, --config FILE`` of an option, ``CONFIG`` of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join(sorted((*parameter.opts, *parameter.secondary_opts), key=len))
    value = "" if parameter.is_flag else parameter.metavar or "N"
    return f"{names} {value}".rstrip()


def _rows(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of names and what they mean, the names in ``width`` columns."""
    for name, meaning in rows:
        first, *more = wrap(meaning, shutil.get_terminal_size().columns - width - 4) or [""]
        if len(name) > width:
            yield f"  {name}"
            name = ""
        yield f"  {name:{width}}  {first}".rstrip()
        yield from (f"  {'':{width}}  {line}" for line in more)


def help_and_examples(command: Callable[..., None]) -> tuple[str, list[str]]:
    """Return a command's docstring up to its examples, and the examples, one a line."""
    about, _, examples = cleandoc(command.__doc__ or "").partition("\nExamples:\n")
    return about.strip(), [line.strip() for line in examples.splitlines() if line.strip()]


def _with_details(command: Callable[..., None]) -> Callable[..., None]:
    """Add to --verbose versions, the time of the whole, and the traceback of an error."""
    @wraps(command)
    def with_details(**options: Any) -> None:
        verbosity = verbosity_of(options["verbose"], options["quiet"])
        verbosity.details([f"hpcbench {__version__}, Python {platform.python_version()}, "
                           f"{platform.platform()}"] if verbosity.is_verbose else ())
        with verbosity.stage("whole command"):
            try:
                command(**options)
            except (HpcbenchError, OSError):
                verbosity.traceback()
                raise

    return with_details


class _OnDemand(Mapping[str, Any]):
    """The commands under their names, each built when it is asked for: all of them take 40 ms."""

    def __getitem__(self, name: str) -> Any:
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _built(name: str) -> Any:
    """Return a command of the command line. Raises KeyError."""
    about, examples = help_and_examples(COMMANDS[name])
    return get_command_from_info(
        CommandInfo(name, cls=_Command, help=about, epilog="\n".join(examples),
                    callback=_with_details(COMMANDS[name])),
        pretty_exceptions_short=app.pretty_exceptions_short, rich_markup_mode=app.rich_markup_mode)


app = typer.Typer(
    name="hpcbench", cls=_Summary, pretty_exceptions_enable=False,
    help="Benchmark distributed deep learning under MPI (docs/... are in the repository).")


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
