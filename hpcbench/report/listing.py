"""What this version can measure, and which backends this machine has."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from hpcbench.config.names import BACKENDS, DTYPE_BYTES, OPS, ORDERS, SPLITS
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import load_preset
from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.operations.collectives import collectives
from hpcbench.report.table_lines import listing_lines
from hpcbench.report.terminal import print_lines
from hpcbench.views.table import Line
from hpcbench.views.timing import MODES, USUAL_FOLDS

NO_TORCH = "torch is not installed here: pip install 'hpcbench[run]'"


def print_listing(*, probe: bool) -> None:
    """Print what there is; with ``probe`` ask this machine, in a process of its own."""
    machine: Mapping[str, Any] | None = None
    if probe and importlib.util.find_spec("torch"):
        from hpcbench.launch.probe import probe_here

        machine = probe_here()
    print_lines(_lines(machine))


def _lines(machine: Mapping[str, Any] | None) -> Iterator[Text]:
    """Yield what there is; ``machine`` is None where it was not asked, or has no torch."""
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
        yield _line(name, f"{meaning}; fold {USUAL_FOLDS[name]}")
    yield Text()
    yield Text("hardware of gen-config", style="bold")
    for name in HARDWARE:
        yield _line(name, load_preset(name).about)
    yield Text()
    yield Text("backends", style="bold")
    for name in BACKENDS:
        yield _available(name, machine["backends"]) if machine else _line(name, "not probed")
    if machine:
        yield Text()
        yield Text("devices", style="bold")
        yield from (_available(name, machine["devices"]) for name in machine["devices"])
        yield Text()
        yield Text("versions", style="bold")
        yield from (_line(name, version) for name, version in machine["versions"].items())
    elif not importlib.util.find_spec("torch"):
        yield Text(f"  {NO_TORCH}", style="yellow")


def _line(name: str, text: str, style: str = "") -> Text:
    return Text(f"  {name:<15}{text}", style=style)


def _available(name: str, reasons: Mapping[str, str | None]) -> Text:
    """Return whether this machine has something, and why not."""
    reason = reasons[name]
    return (_line(name, f"not available: {reason}", "yellow") if reason else
            _line(name, "available", "green"))
