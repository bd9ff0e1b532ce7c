"""What ``hpcbench validate`` prints: a table on a terminal, plain lines in a log, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from rich.table import Table
from rich.text import Text

from hpcbench import __version__
from hpcbench.report.terminal import open_console
from hpcbench.validation.lines import Line, State
from hpcbench.views.words import plural

_STYLES: Mapping[State, str] = MappingProxyType({
    State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.NOT_APPLICABLE: "dim"})


def show(lines: Sequence[Line], ranks: int, nodes: int, *, as_json: bool) -> None:
    """Print the verdict on standard output."""
    console = open_console()
    if as_json:
        print(json.dumps({"hpcbench": __version__, "ranks": ranks, "nodes": nodes,
                          "counts": _counts(lines),
                          "lines": [line.to_json() for line in lines]}, indent=1), flush=True)
    elif console.is_terminal:
        console.print(_table(lines))
        console.print(_total(lines))
    else:
        print(f"hpcbench {__version__} validate: {plural(ranks, 'rank')} on "
              f"{plural(nodes, 'node')}")
        print(rendered(lines, as_json=False), flush=True)


def rendered(lines: Sequence[Line], *, as_json: bool) -> str:
    """Return the lines as plain text with their total, or as JSON."""
    if as_json:
        return json.dumps({"hpcbench": __version__, "counts": _counts(lines),
                           "lines": [line.to_json() for line in lines]}, indent=1)
    return "\n".join([*_plain(lines), _total(lines)])


def _plain(lines: Sequence[Line]) -> Iterator[str]:
    width = max((len(line.subject) for line in lines), default=0)
    for line in lines:
        yield f"{line.state.value:<4}  {line.subject:<{width}}  {line.found}"
        if line.fix:
            yield f"{'':<{width + 8}}fix: {line.fix}"


def _table(lines: Sequence[Line]) -> Table:
    table = Table("", "subject", "found", "fix", title=f"hpcbench {__version__} validate")
    for line in lines:
        table.add_row(Text(line.state.value, style=_STYLES[line.state]), Text(line.subject),
                      Text(line.found), Text(line.fix))
    return table


def _counts(lines: Sequence[Line]) -> dict[str, int]:
    counts = Counter(line.state for line in lines)
    return {state.value: counts[state] for state in State}


def _total(lines: Sequence[Line]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _counts(lines).items())
