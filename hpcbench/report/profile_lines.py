"""Prints a profile: findings first, then how ranks compare, then where the files are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.errors import command_line
from hpcbench.kinds.registry import presenter_of
from hpcbench.reduce.results import Results
from hpcbench.report.results_lines import (
    closing_lines,
    fault_lines,
    items_by_kind,
    outcome_lines,
)
from hpcbench.report.table_lines import table_lines, tone_line
from hpcbench.report.terminal import print_lines
from hpcbench.texts import from_json
from hpcbench.units import plural
from hpcbench.views.profile import any_profile
from hpcbench.views.table import Line, Table

CAPTURED = Path("profile") / "profile.json"
"""What recorded traces say of themselves, in the results folder: {schema_version, lines}."""
MOST_LINES = 12


def print_profile(results: Results, folder: Path) -> None:
    """Print what a profiled run found, at most a screen of it."""
    shown = list(_shown(results))
    lines = [line for line in shown if isinstance(line, Line)]
    tables = [table for table in shown if isinstance(table, Table)]
    print_lines(chain(
        _head(results), map(tone_line, lines), chain.from_iterable(map(table_lines, tables)),
        outcome_lines(results), _captured_lines(folder), closing_lines(results, folder),
        [Text(f"all tables: {command_line('show', folder)}")]))


def _head(results: Results) -> Iterator[Text]:
    run = results.run
    target = results.plan.config.get("profiling", {}).get("target")
    yield Text(f"{run.name}  run {run.run_id}  profile of {target or 'all cases'} on "
               f"{plural(run.world_size, 'rank')}", style="bold")
    yield from fault_lines(results)


def _shown(results: Results) -> Iterator[Line | Table]:
    """Yield what each kind says of its cases."""
    for kind, items in items_by_kind(results.cases).items():
        presenter = presenter_of(kind)
        said = None if kind in results.missing_kinds else presenter.profile(
            items, results.derived.get(kind, {}))
        yield from any_profile(items) if said is None else said


def _captured_lines(folder: Path) -> Iterator[Text]:
    """Yield what was said of recorded traces, if there are any."""
    try:
        said = from_json((folder / CAPTURED).read_bytes())["lines"]
        lines = [str(line) for line in said[:MOST_LINES]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError) as error:
        lines = [f"{folder / CAPTURED} cannot be read ({type(error).__name__}: {error})"]
    yield Text()
    yield from map(Text, lines)
