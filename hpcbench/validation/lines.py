"""The lines of the verdict, and how they are printed: a table on a terminal, plain, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from rich.table import Table
from rich.text import Text

from hpcbench import __version__
from hpcbench.report.terminal import open_console
from hpcbench.texts import printable, say, to_json
from hpcbench.units import plural, rank_list

SCHEMA_VERSION = 1
"""Of the JSON document."""


class State(str, Enum):
    """Whether a subject is as it should be; only ``fail`` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


_STYLES: Mapping[State, str] = MappingProxyType({
    State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.NOT_APPLICABLE: "dim"})


@dataclass(frozen=True, slots=True)
class Line:
    """The state of one subject and how to fix it; ``fix`` is "" where nothing is to do."""

    subject: str
    state: State
    found: str
    fix: str = ""


def ok(subject: str, found: str) -> Line:
    """Return a line about what is as it should be."""
    return Line(subject, State.OK, found)


def warn(subject: str, found: str, fix: str) -> Line:
    """Return a line about what costs speed or some cases, and how to fix it."""
    return Line(subject, State.WARN, found, fix)


def fail(subject: str, found: str, fix: str) -> Line:
    """Return a line about what stops a run or spoils its results, and how to fix it."""
    return Line(subject, State.FAIL, found, fix)


def not_applicable(subject: str, why: str) -> Line:
    """Return a line about what this job has not, and why."""
    return Line(subject, State.NOT_APPLICABLE, why)


def spread(groups: Mapping[Any, list[int]]) -> str:
    """Return ``8 cores on rank 0-2, 1 core on rank 3``; the value alone if all ranks have it."""
    if len(groups) == 1:
        return str(next(iter(groups)))
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())


def show(lines: Sequence[Line], ranks: int, nodes: int, *, as_json: bool) -> None:
    """Print the verdict on standard output."""
    console = open_console()
    if as_json:
        say(rendered(lines, as_json=True, ranks=ranks, nodes=nodes))
    elif console.is_terminal:
        table = Table("", "subject", "found", "fix", title=f"hpcbench {__version__} validate")
        for line in lines:
            table.add_row(Text(line.state.value, style=_STYLES[line.state]), Text(line.subject),
                          Text(printable(line.found)), Text(line.fix))
        console.print(table)
        console.print(_total(_counts(lines)))
    else:
        say(f"hpcbench {__version__} validate: {plural(ranks, 'rank')} on "
            f"{plural(nodes, 'node')}")
        say(rendered(lines, as_json=False))


def show_problems(lines: Sequence[Line]) -> None:
    """Print the warnings and the failures on standard output; nothing if there are none."""
    if problems := [line for line in lines if line.state in (State.WARN, State.FAIL)]:
        say("\n".join(_texts(problems)))


def rendered(lines: Sequence[Line], *, as_json: bool, **job: int) -> str:
    """Return the lines as plain text with their total, or as JSON with what ``job`` says."""
    counts = _counts(lines)
    if as_json:
        return to_json({"schema": "hpcbench.validate", "schema_version": SCHEMA_VERSION,
                        "hpcbench": __version__, **job, "counts": counts,
                        "lines": [asdict(line) for line in lines]}, indent=1)
    return "\n".join([*_texts(lines), _total(counts)])


def _texts(lines: Sequence[Line]) -> list[str]:
    """Return each line with its fix below it, subjects aligned."""
    width = max((len(line.subject) for line in lines), default=0)
    return [f"{line.state.value:<4}  {line.subject:<{width}}  {line.found}"
            + (f"\n{'':<{width + 8}}fix: {line.fix}" if line.fix else "") for line in lines]


def _counts(lines: Sequence[Line]) -> dict[str, int]:
    counts = Counter(line.state for line in lines)
    return {state.value: counts[state] for state in State}


def _total(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
