"""Flags that several commands have, and the values that a shell completes behind them.

A function of completion takes the beginning of a value, and imports what it needs when a shell
calls it. A command has --verbose and --quiet as its last parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Optional

import typer
from typer import Argument, Option

from hpcbench.errors import FileError, UsageError
from hpcbench.launch.launcher import announced_rank
from hpcbench.registry import TopicSpec, offered
from hpcbench.texts import Verbosity, valid_json


def benchmarks(incomplete: str) -> list[str]:
    """Return the kinds of blocks, and their other names."""
    from hpcbench.config.axes import SCALING
    from hpcbench.kinds.registry import kind_aliases, kinds

    return _beginning([*kinds(), SCALING, *kind_aliases()], incomplete)


def models_with_vocabulary(incomplete: str) -> list[str]:
    found = _catalogue("models")
    return _beginning([name for name, facts in found.items() if "vocab" in facts], incomplete)


def _catalogue(group: str) -> dict[str, dict[str, object]]:
    from hpcbench.kinds.registry import catalogue

    return catalogue().get(group, {})


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def one_of(*names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return complete


def listed(group: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(_catalogue(group), incomplete)

    return complete


def named_in(module: str, names: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _beginning(getattr(import_module(module), names), incomplete)

    return complete


models, collectives, strategies = map(listed, ("models", "collectives", "strategies"))
_AXES = "hpcbench.config.axes"
modes = named_in(_AXES, "MODES")
requirable = named_in(_AXES, "REQUIRABLE")
retried = named_in(_AXES, "RETRIED")
targets = named_in(_AXES, "TARGETS")
tools = named_in(_AXES, "PROFILERS")
hardware = named_in("hpcbench.config.presets", "HARDWARE")
image_formats = one_of("png", "svg", "pdf")
plot_styles = one_of("report", "paper")
report_formats = one_of("html", "pdf", "md")
tuners = one_of("nccl", "rccl", "ncclx")
exit_styles = one_of("ci", "slurm", "nagios", "npd", "gpud")
dtypes = named_in(_AXES, "DTYPES")
RECOMMEND = "recommend"
"""The first topic of ``advise``; parts and packages offer others."""


def topics(incomplete: str) -> list[str]:
    return _beginning((RECOMMEND, *offered(TopicSpec)), incomplete)


def about_topics() -> str:
    others = offered(TopicSpec).values()
    names = [RECOMMEND, *(one.name for one in others if not one.is_recorded)]
    recorded = [one.name for one in others if one.is_recorded]
    return f"Only {', '.join(names)}" + f"; with --traffic {', '.join(recorded)}" * bool(
        recorded) + "."


MOST_RANKS = 2**17
"""As in config.axes, which a command imports only when it runs."""
FILES, CASES, MEASUREMENT, JOB, RESUMING, PRINTED = (
    "Files", "Cases", "Measurement", "Job", "Resume", "Output")
"""Titles of the groups of options in a help."""


def in_folder(output: Path | None) -> Path | None:
    """Return a path to write. Raises FileError if it is below a file, before any work is done."""
    above = next((path for path in (output.parents if output else ()) if path.exists()), None)
    if above is not None and not above.is_dir():
        raise FileError(f"{output}: {above} is a file, not a folder: give a path in a folder")
    return output


def dash_prints(output: Path | None) -> Path | None:
    """Return the file of an ``-o`` without which a command prints: ``-`` prints, too."""
    return None if output == Path("-") else in_folder(output)


def not_dash(output: Path | None) -> Path | None:
    """Return the file or folder of an ``-o``. Raises UsageError for ``-``: nothing is printed."""
    if output == Path("-"):
        raise UsageError("- is standard output, and this command writes files; give a path")
    return in_folder(output)


VerboseOption = Annotated[bool, Option(
    "--verbose", "-v", rich_help_panel=PRINTED,
    help="Print every column and detail; tracebacks on stderr.")]
QuietOption = Annotated[bool, Option(
    "--quiet", "-q", rich_help_panel=PRINTED, help="Print the result only, in its shortest form.")]
JsonOption = Annotated[bool, Option(
    "--json", rich_help_panel=PRINTED, help="Print JSON only (docs/commands.md).")]
PriceOption = Annotated[Optional[float], Option(
    "--price", min=0.0, max=1e9, metavar="PRICE", help="Price of a device for an hour.")]
ExplainOption = Annotated[bool, Option(
    "--explain", rich_help_panel=PRINTED, help="Explain the columns of the tables.")]
OutputOption = Annotated[Optional[Path], Option(
    "-o", "--output-dir", metavar="DIR", rich_help_panel=FILES, callback=not_dash,
    help="Make the results folder here (output.folder).")]

ConfigArgument = Annotated[Optional[Path], Argument(
    metavar="[CONFIG]", rich_help_panel=FILES,
    help="Sweep file: JSON, YAML, .py. Default: ./config.json, else a built-in.")]
ConfigOption = Annotated[Optional[Path], Option(
    "--config", "-c", metavar="CONFIG", rich_help_panel=FILES, help="The same, as an option.")]

BenchmarkOption = Annotated[Optional[str], Option(
    metavar="KIND", autocompletion=benchmarks, rich_help_panel=CASES,
    help="Only collective, primitive, training, hardware, memory, function, replay.")]
OnlyOption = Annotated[Optional[list[str]], Option(
    metavar="TEXT", rich_help_panel=CASES,
    help="Only cases matching this text or pattern; repeatable.")]
ExcludeOption = Annotated[Optional[list[str]], Option(
    metavar="TEXT", rich_help_panel=CASES,
    help="Exclude cases matching this text or pattern; repeatable.")]
ModelOption = Annotated[Optional[list[str]], Option(
    metavar="NAME", autocompletion=models, rich_help_panel=CASES,
    help="Only trainings, and of this model; repeatable.")]
StrategyOption = Annotated[Optional[list[str]], Option(
    metavar="NAME", autocompletion=strategies, rich_help_panel=CASES,
    help="Only trainings, and with this strategy; repeatable.")]
SetOption = Annotated[Optional[list[str]], Option(
    "--set", metavar="KEY=VALUE", rich_help_panel=CASES,
    help="Set any key: measure.iterations=50; repeatable.")]

WarmupOption = Annotated[Optional[int], Option(
    metavar="N", rich_help_panel=MEASUREMENT, help="Warm-up iterations of each case.")]
ItersOption = Annotated[Optional[str], Option(
    "--iters", "--iterations", metavar="N", rich_help_panel=MEASUREMENT,
    help="Timed iterations of each case, or auto.")]
ModeOption = Annotated[Optional[str], Option(
    metavar="MODE", autocompletion=modes, rich_help_panel=MEASUREMENT,
    help="Timing mode: isolated, pipelined or barrier_start.")]
PassesOption = Annotated[Optional[int], Option(
    metavar="N", rich_help_panel=MEASUREMENT, help="Passes over all cases, with the same workers.")]
LaunchesOption = Annotated[Optional[int], Option(
    metavar="N", rich_help_panel=MEASUREMENT, help="Repetitions of all passes, with new workers.")]

RequireOption = Annotated[Optional[list[str]], Option(
    "--require", metavar="NAME", autocompletion=requirable, rich_help_panel=JOB,
    help="Fail where this backend, cuda or mps is missing; repeatable.")]
InlineOption = Annotated[bool, Option(
    "--inline", rich_help_panel=JOB, help="Run the worker in the MPI process, for a debugger.")]
RetryOption = Annotated[Optional[list[str]], Option(
    "--retry", metavar="STATUS,...", autocompletion=retried, rich_help_panel=RESUMING,
    help="Run failed, wrong, timeout or skipped cases again; repeatable.")]

_SWEEP_KEYS = {
    "benchmark": "benchmark", "warmup": "measure.warmup", "iters": "measure.iterations",
    "mode": "measure.mode", "passes": "measure.passes", "launches": "measure.launches",
    "only": "only", "exclude": "exclude", "model": "model", "strategy": "strategy"}
"""Parameter of a command -> the key of the sweep file that it stands for."""


def config_path(argument: Path | None, option: Path | None) -> Path | None:
    """Return the sweep file that was given. Raises UsageError if it was in both ways."""
    if argument is not None and option is not None:
        raise UsageError("give the config once: as an argument or with -c")
    return argument or option


def sweep_overrides(context: typer.Context, **others: object) -> list[tuple[str, object]]:
    """Return (key path, value) pairs of a command's flags and ``others``, with __ for a dot."""
    flags = context.params
    given = {key: flags[name] for name, key in _SWEEP_KEYS.items()}
    iters = flags["iters"]  # the config's check refuses other text than a number
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
    """Return the statuses that --retry names. Raises UsageError for others, or no --resume."""
    if given and not resumes:
        raise UsageError("--retry is for --resume: it runs cases of that run again")
    from hpcbench.config.axes import RETRIED

    named = tuple(dict.fromkeys(word.strip() for text in given or () for word in text.split(",")))
    if unknown := [word for word in named if word not in RETRIED]:
        raise UsageError(f"--retry {unknown[0]}: a status is one of {', '.join(RETRIED)}, "
                           "several with commas between them")
    return named


def verbosity_of(verbose: bool, quiet: bool) -> Verbosity:
    """Return the verbosity of the flags; of many ranks only rank 0 prints details."""
    if verbose and quiet:
        raise UsageError("give --verbose or --quiet, not both")
    if verbose and announced_rank(os.environ) == 0:
        return Verbosity.VERBOSE
    return Verbosity.QUIET if quiet else Verbosity.NORMAL


def free_target(path: Path, *, force: bool) -> Path:
    """Return the path of the file to write. Raises FileError if it is there, or is a folder."""
    if path.is_dir():
        raise FileError(f"{path}: is a folder; give -o a file in it")
    if path.exists() and not force:
        raise FileError(f"{path}: is there already; give --force to replace it, or -o FILE")
    return path
