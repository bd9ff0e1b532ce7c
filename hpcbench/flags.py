"""Flags that several commands have, and the keys of the sweep file that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Optional, get_type_hints

import typer

MOST_RANKS = 2**17
"""As in config.axes, which a command imports only when it runs."""

ConfigArgument = Annotated[
    Optional[Path],
    typer.Argument(help="Sweep file, JSON or YAML. Default: ./config.json, else the packaged one."),
]
ConfigOption = Annotated[
    Optional[Path], typer.Option("--config", "-c", help="The same, as an option.")
]
BenchmarkOption = Annotated[
    Optional[str],
    typer.Option(help="Run only the blocks of this kind: collective (or comm), primitive, "
                 "training (or train)."),
]
ModelOption = Annotated[
    Optional[list[str]], typer.Option(help="Run only trainings of this model: model. Repeatable."),
]
StrategyOption = Annotated[
    Optional[list[str]],
    typer.Option(help="Run only trainings with this strategy: strategy. Repeatable."),
]
WarmupOption = Annotated[
    Optional[int], typer.Option(help="Warm-up iterations of every case: measure.warmup.")
]
ItersOption = Annotated[
    Optional[str],
    typer.Option(help="Timed iterations of every case, or auto: measure.iterations."),
]
ModeOption = Annotated[
    Optional[str],
    typer.Option(help="Timing mode of every case: isolated, pipelined or barrier_start."),
]
PassesOption = Annotated[
    Optional[int], typer.Option(help="Times the whole plan is run: measure.passes.")
]
LaunchesOption = Annotated[
    Optional[int],
    typer.Option(help="Independent repetitions of it with fresh workers: measure.launches."),
]
OnlyOption = Annotated[
    Optional[str], typer.Option(help="Keep the cases whose label matches this shell pattern: only.")
]
SetOption = Annotated[
    Optional[list[str]],
    typer.Option("--set", help="Set any key: --set measure.iterations=50. Repeatable."),
]
OutputOption = Annotated[
    Optional[Path], typer.Option("-o", "--output-dir", help="Results folder: output.folder.")
]


def overrides_of(
    shorthands: Mapping[str, object], assignments: list[str] | None
) -> list[tuple[str, object]]:
    """Return (key path, value) pairs; the shorthands come first, so that --set wins."""
    given = [(key, value) for key, value in shorthands.items() if value is not None]
    return given + [_assignment(text) for text in assignments or []]


@dataclass(frozen=True, slots=True)
class ConfigFlags:
    """The sweep file, in either way."""

    config: ConfigArgument = None
    config_option: ConfigOption = None

    def path(self) -> Path | None:
        """Return the sweep file that was given. Raises BadParameter if it was in both ways."""
        return one_config(self.config, self.config_option)


@dataclass(frozen=True, slots=True)
class SweepFlags:
    """The flags that a plan depends on; None where not given."""

    benchmark: BenchmarkOption = None
    warmup: WarmupOption = None
    iters: ItersOption = None
    mode: ModeOption = None
    passes: PassesOption = None
    launches: LaunchesOption = None
    only: OnlyOption = None
    model: ModelOption = None
    strategy: StrategyOption = None
    assignments: SetOption = None

    def overrides(self, **others: object) -> list[tuple[str, object]]:
        """Return (key path, value) pairs of these flags and ``others``, with __ for a dot."""
        iters = self.iters  # other text than a number: the config's check says so
        return overrides_of({
            "benchmark": self.benchmark, "measure.warmup": self.warmup,
            "measure.iterations": int(iters) if iters and iters.isdecimal() else iters,
            "measure.mode": self.mode, "measure.passes": self.passes,
            "measure.launches": self.launches, "only": self.only, "model": self.model or None,
            "strategy": self.strategy or None,
            **{name.replace("__", "."): value for name, value in others.items()},
        }, self.assignments)


@dataclass(frozen=True, slots=True)
class RunFlags:
    """How a run treats its cases."""

    require: Annotated[
        Optional[list[str]],
        typer.Option(help="A backend whose skips are failures: require. Repeatable."),
    ] = None
    inline: Annotated[
        bool, typer.Option("--inline", help="Run the worker in the MPI process, for a debugger.")
    ] = False


@dataclass(frozen=True, slots=True)
class DryRunFlags:
    """Whether a run is a dry one, and of how many ranks."""

    dry: Annotated[
        bool, typer.Option("--dry-run", help="Set up and call every case once as rank 0, alone: "
                           "no MPI, no communication, no measurement, no results.")
    ] = False
    world_size: Annotated[
        Optional[int], typer.Option(min=1, max=MOST_RANKS, help="Ranks of a dry run; default 4.")
    ] = None


@dataclass(frozen=True, slots=True)
class ResumeFlags:
    """Whether a run goes on where an earlier one ended."""

    resume: Annotated[
        Optional[Path], typer.Option(metavar="[DIR]", help="Go on where the run in this results "
                                     "folder ended; begin it there if the folder is new or empty. "
                                     "Without DIR: the newest run in output.folder.")
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="With --resume: in spite of a changed plan or software, "
                           "which the results then tell.")
    ] = False


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


def _assignment(text: str) -> tuple[str, object]:
    from hpcbench.config.load import parse_assignment

    return parse_assignment(text)


def one_config(argument: Path | None, option: Path | None) -> Path | None:
    """Return the sweep file that was given in either way. Raises BadParameter if in both."""
    if argument is not None and option is not None:
        raise typer.BadParameter("give the config once: as an argument or with -c")
    return argument or option
