"""The values that a shell completes behind a flag (docs/commands.md).

Each function takes the beginning of a value, and imports what it needs when it is called: a shell
calls it while somebody types.

Flags that several commands have, the keys of the sweep file that they stand for, and `register`.

A command has --verbose and --quiet as its last parameters.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer import Argument, BadParameter, Option

from hpcbench import __version__
from hpcbench.errors import HpcbenchError
from hpcbench.launch.launcher import announced_rank
from hpcbench.texts import Verbosity, valid_json


def benchmarks(incomplete: str) -> list[str]:
    """Return the kinds of blocks, and their other names."""
    from hpcbench.config.axes import SCALING
    from hpcbench.kinds.registry import kind_aliases, kinds

    return _beginning([*kinds(), SCALING, *kind_aliases()], incomplete)


def models(incomplete: str) -> list[str]:
    return _beginning(_catalogue("models"), incomplete)


def models_with_vocabulary(incomplete: str) -> list[str]:
    found = _catalogue("models")
    return _beginning([name for name, facts in found.items() if "vocab" in facts], incomplete)


def strategies(incomplete: str) -> list[str]:
    return _beginning(_catalogue("strategies"), incomplete)


def _catalogue(group: str) -> dict[str, dict[str, object]]:
    from hpcbench.kinds.registry import catalogue

    return catalogue().get(group, {})


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _one_of(*names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return complete


def _named_in(module: str, names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(getattr(import_module(module), names), incomplete)

    return complete


_AXES = "hpcbench.config.axes"
modes = _named_in(_AXES, "MODES")
requirable = _named_in(_AXES, "REQUIRABLE")
retried = _named_in(_AXES, "RETRIED")
targets = _named_in(_AXES, "TARGETS")
tools = _named_in(_AXES, "PROFILERS")
hardware = _named_in("hpcbench.config.presets", "HARDWARE")
image_formats = _one_of("png", "svg", "pdf")
plot_styles = _one_of("report", "paper")
report_formats = _one_of("html", "pdf", "md")
exit_styles = _one_of("ci", "slurm", "nagios")


MOST_RANKS = 2**17
"""As in config.axes, which a command imports only when it runs."""

VerboseOption = Annotated[bool, Option(
    "--verbose", "-v", help="Say more, on standard error: files, overrides, versions, times of "
    "stages, tracebacks of errors.")]
QuietOption = Annotated[bool, Option(
    "--quiet", "-q",
    help="Print the result only, in its shortest form; errors stay on standard error.")]
JsonOption = Annotated[bool, Option(
    "--json", help="Print JSON, and nothing else, on standard output (docs/commands.md).")]
ExplainOption = Annotated[bool, Option(
    "--explain", help="Print what the columns of the tables mean.")]
OutputOption = Annotated[Optional[Path], Option(
    "-o", "--output-dir", help="Results folder: output.folder.")]

ConfigArgument = Annotated[Optional[Path], Argument(
    help="Sweep file, JSON or YAML. Default: ./config.json, else the packaged one.")]
ConfigOption = Annotated[Optional[Path], Option("--config", "-c", help="The same, as an option.")]

BenchmarkOption = Annotated[Optional[str], Option(
    autocompletion=benchmarks,
    help="Run only the blocks of this kind: collective (or comm), primitive, training (or train), "
    "hardware (or machine), memory. scaling: collectives and trainings, on 1, 2, 4 ... and all "
    "ranks.")]
WarmupOption = Annotated[Optional[int], Option(
    help="Warm-up iterations of every case: measure.warmup.")]
ItersOption = Annotated[Optional[str], Option(
    help="Timed iterations of every case, or auto: measure.iterations.")]
ModeOption = Annotated[Optional[str], Option(
    autocompletion=modes,
    help="Timing mode of every case: isolated, pipelined or barrier_start.")]
PassesOption = Annotated[Optional[int], Option(
    help="Times the whole plan is run: measure.passes.")]
LaunchesOption = Annotated[Optional[int], Option(
    help="Independent repetitions of it with fresh workers: measure.launches.")]
OnlyOption = Annotated[Optional[list[str]], Option(
    help="Keep the cases whose label has this text as whole words, or matches it as a shell "
    "pattern of the whole label: only. Repeatable.")]
ExcludeOption = Annotated[Optional[list[str]], Option(
    help="Drop the cases whose label does: exclude. Repeatable.")]
ModelOption = Annotated[Optional[list[str]], Option(
    autocompletion=models,
    help="Run only trainings, of this model instead of those in blocks: model. Repeatable.")]
StrategyOption = Annotated[Optional[list[str]], Option(
    autocompletion=strategies,
    help="Run only trainings, with this strategy instead of those in blocks: strategy. "
    "Repeatable.")]
SetOption = Annotated[Optional[list[str]], Option(
    "--set", help="Set any key: --set measure.iterations=50. Repeatable.")]

RequireOption = Annotated[Optional[list[str]], Option(
    "--require", autocompletion=requirable,
    help="A backend whose skips are failures, or cuda or mps: require. Repeatable.")]
InlineOption = Annotated[bool, Option(
    "--inline", help="Run the worker in the MPI process, for a debugger.")]
RetryOption = Annotated[Optional[list[str]], Option(
    "--retry", metavar="STATUS[,STATUS...]", autocompletion=retried,
    help="With --resume: run cases again that are failed, wrong, timeout or skipped. What they "
    "left before is kept beside it. Repeatable.")]

_SWEEP_KEYS = {
    "benchmark": "benchmark", "warmup": "measure.warmup", "iters": "measure.iterations",
    "mode": "measure.mode", "passes": "measure.passes", "launches": "measure.launches",
    "only": "only", "exclude": "exclude", "model": "model", "strategy": "strategy"}
"""Parameter of a command -> the key of the sweep file that it stands for."""


def config_path(argument: Path | None, option: Path | None) -> Path | None:
    """Return the sweep file that was given. Raises BadParameter if it was in both ways."""
    if argument is not None and option is not None:
        raise BadParameter("give the config once: as an argument or with -c")
    return argument or option


def sweep_overrides(context: typer.Context, **others: object) -> list[tuple[str, object]]:
    """Return (key path, value) pairs of a command's flags and ``others``, with __ for a dot."""
    flags = context.params
    given = {key: flags[name] for name, key in _SWEEP_KEYS.items()}
    iters = flags["iters"]  # other text than a number: the config's check says so
    given["measure.iterations"] = int(iters) if iters and iters.isdecimal() else iters
    given |= {name.replace("__", "."): value for name, value in others.items()}
    return overrides_of(given, flags["assignments"])


def overrides_of(
    shorthands: Mapping[str, object], assignments: Iterable[str] | None
) -> list[tuple[str, object]]:
    """Return (key path, value) pairs; the shorthands come first, so that --set wins."""
    given = [(key, valid_json(list(value) if isinstance(value, tuple) else value))
             for key, value in shorthands.items() if value not in (None, [], ())]
    if not assignments:
        return given
    from hpcbench.config.load import parse_assignment

    return [*given, *map(parse_assignment, assignments)]


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


def verbosity_of(verbose: bool, quiet: bool) -> Verbosity:
    """Return what the flags say; of many ranks only the first tells details."""
    if verbose and quiet:
        raise BadParameter("give --verbose or --quiet, not both")
    if verbose and announced_rank(os.environ) == 0:
        return Verbosity.VERBOSE
    return Verbosity.QUIET if quiet else Verbosity.NORMAL


def register(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command to the program.

    Its docstring is its help. What follows a line ``Examples:`` in it is printed below the options,
    one command a line. In every command --verbose adds versions, the time of the whole, and the
    traceback of an error.
    """
    @wraps(command)
    def with_details(**given: Any) -> None:
        verbosity = verbosity_of(given["verbose"], given["quiet"])
        verbosity.details([f"hpcbench {__version__}, Python {platform.python_version()}, "
                           f"{platform.platform()}"] if verbosity.is_verbose else ())
        with verbosity.stage("whole command"):
            try:
                command(**given)
            except (HpcbenchError, OSError):
                verbosity.traceback()
                raise

    about, examples = help_and_examples(command)
    app.command(name=name, help=about, epilog=examples_text(examples))(with_details)


def examples_text(examples: Iterable[str]) -> str:
    """Return examples as typer prints them below a help: in rich's markup, a line each."""
    return "\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in examples)])


def help_and_examples(command: Callable[..., None]) -> tuple[str, list[str]]:
    """Return a command's docstring up to its examples, and the examples."""
    about, _, examples = cleandoc(command.__doc__ or "").partition("\nExamples:\n")
    return about.strip(), [line.strip() for line in examples.splitlines() if line.strip()]
