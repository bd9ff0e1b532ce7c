"""What this version can measure, and which backends this machine has."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from hpcbench.config.names import BACKENDS, DTYPE_BYTES, OPS, ORDERS, SPLITS
from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.operations.collectives import collectives
from hpcbench.report.table_lines import listing_lines
from hpcbench.report.terminal import open_console
from hpcbench.views.table import Line
from hpcbench.views.timing import MODES, USUAL_FOLDS

NO_TORCH = "torch is not installed here: pip install 'hpcbench[run]'"


def print_listing(*, probe: bool) -> None:
    """Print what there is; with ``probe`` ask this machine, in a process of its own."""
    machine = _probe() if probe else None
    console = open_console()
    for line in _lines(machine):
        console.print(line, soft_wrap=True)


def _probe() -> Mapping[str, Any] | None:
    """Return what this machine has, or None where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    from hpcbench.launch.probe import probe_here

    return probe_here()


def _lines(machine: Mapping[str, Any] | None) -> Iterator[Text]:
    dtypes = [f"{name} ({size} B)" for name, size in DTYPE_BYTES.items()]
    for title, names in (("collectives", collectives()), ("dtypes", dtypes), ("ops", OPS),
                         ("splits", SPLITS), ("orders", ORDERS)):
        yield Text(f"{title:<17}{', '.join(names)}")
    yield Text()
    for kind in kinds():
        presenter = presenter_of(kind)
        items = list(presenter.listing())
        if presenter.problem:
            items.append(Line(f"kind {kind}: {presenter.problem}", "warning"))
        yield from (line for item in items for line in listing_lines(item))
        yield from [Text()] if items else []
    yield Text("timing modes", style="bold")
    for name, meaning in MODES.items():
        yield Text(f"  {name:<15}{meaning}; fold {USUAL_FOLDS[name]}")
    yield Text()
    yield Text("backends", style="bold")
    for name in BACKENDS:
        yield _backend_line(name, machine)
    yield from _machine_lines(machine)


def _backend_line(name: str, machine: Mapping[str, Any] | None) -> Text:
    reason = machine["backends"][name] if machine else None
    if reason:
        return Text(f"  {name:<15}not available: {reason}", style="yellow")
    if machine is None:
        return Text(f"  {name:<15}not probed")
    return Text(f"  {name:<15}available", style="green")


def _machine_lines(machine: Mapping[str, Any] | None) -> Iterator[Text]:
    if machine is None:
        if importlib.util.find_spec("torch") is None:
            yield Text(f"  {NO_TORCH}", style="yellow")
        return
    yield Text()
    yield Text("devices", style="bold")
    for name, reason in machine["devices"].items():
        yield Text(f"  {name:<15}{f'not available: {reason}' if reason else 'available'}",
                   style="yellow" if reason else "green")
    yield Text()
    yield Text("versions", style="bold")
    for name, version in machine["versions"].items():
        yield Text(f"  {name:<15}{version}")
