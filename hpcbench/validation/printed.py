"""What ``hpcbench validate`` prints: a table on a terminal, plain lines in a log, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
        print(rendered(lines, as_json=True, ranks=ranks, nodes=nodes), flush=True)
    elif console.is_terminal:
        table = Table("", "subject", "found", "fix", title=f"hpcbench {__version__} validate")
        for line in lines:
            table.add_row(Text(line.state.value, style=_STYLES[line.state]), Text(line.subject),
                          Text(line.found), Text(line.fix))
        console.print(table)
        console.print(_total(_counts(lines)))
    else:
        print(f"hpcbench {__version__} validate: {plural(ranks, 'rank')} on "
              f"{plural(nodes, 'node')}")
        print(rendered(lines, as_json=False), flush=True)


def rendered(lines: Sequence[Line], *, as_json: bool, **job: int) -> str:
    """Return the lines as plain text with their total, or as JSON with what ``job`` says."""
    counts = _counts(lines)
    if as_json:
        return json.dumps({"hpcbench": __version__, **job, "counts": counts,
                           "lines": [asdict(line) for line in lines]}, indent=1)
    width = max((len(line.subject) for line in lines), default=0)
    text = [f"{line.state.value:<4}  {line.subject:<{width}}  {line.found}"
            + (f"\n{'':<{width + 8}}fix: {line.fix}" if line.fix else "") for line in lines]
    return "\n".join([*text, _total(counts)])


def _counts(lines: Sequence[Line]) -> dict[str, int]:
    counts = Counter(line.state for line in lines)
    return {state.value: counts[state] for state in State}


def _total(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
