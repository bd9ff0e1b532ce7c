"""Flags that several commands have, and the keys of the sweep file that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Optional

import typer

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


def sweep_keys(
    benchmark: str | None, warmup: int | None, iters: str | None, mode: str | None,
    passes: int | None, launches: int | None, only: str | None, model: list[str] | None,
    strategy: list[str] | None,
) -> dict[str, object]:
    """Return key path -> value of the flags that a plan depends on; None where not given."""
    is_number = iters is not None and iters.isdecimal()  # other text: the config's check tells
    return {
        "benchmark": benchmark, "measure.warmup": warmup,
        "measure.iterations": int(iters or 0) if is_number else iters, "measure.mode": mode,
        "measure.passes": passes, "measure.launches": launches, "only": only,
        "model": model or None, "strategy": strategy or None}


def _assignment(text: str) -> tuple[str, object]:
    from hpcbench.config.load import parse_assignment

    return parse_assignment(text)


def one_config(argument: Path | None, option: Path | None) -> Path | None:
    """Return the sweep file that was given in either way. Raises BadParameter if in both."""
    if argument is not None and option is not None:
        raise typer.BadParameter("give the config once: as an argument or with -c")
    return argument or option
