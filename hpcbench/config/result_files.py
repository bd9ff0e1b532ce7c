"""Results that are given as a sweep file by mistake: what they are, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbench.errors import command_line

_SEALED = re.compile(rb"format (hpcbench-[a-z]+)\n")
"""How files of hpcbench begin that `trace.container` seals."""
_JOURNAL = b"\x89HBJ\r\n\x1a\n"
"""How journals of hpcbench begin (`trace.frames`)."""
_CSV = b"case_id,"
"""How ``summary.csv`` begins (`report.summary`)."""
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEAD_BYTES = 4096
_CHROME = "a Chrome trace of a profiler"
_SUMMARY = "the summary of a run"
_SUMMARY_SCHEMA = "hpcbench.summary"
_PRINTED = "hpcbench."
"""How ``schema`` begins in what commands print as JSON, and in the file of a suite."""
_FOREIGN = "hpcbench reads its own results only; give the config that they were made from"
_OWN = MappingProxyType({"hpcbench-results": "the results of a run", "hpcbench-trace": "a trace"})


def results_in_bytes(data: bytes, file: Path) -> str | None:
    """Return which results a binary file holds and how to read them, or None."""
    if found := _SEALED.match(data):
        kind = found[1].decode()
        folder = file if kind == "hpcbench-results" else _run_of(file)
        return _line(_OWN.get(kind, "a file of a run"), _how(folder))
    if data.startswith(_JOURNAL):
        return _line("the journal of a run",
                     f"{command_line('reduce', _run_of(file))} makes results of it")
    if data.startswith(_CSV):
        return _line("the table of cases of a run", _how(file.parent))
    if data.startswith(_HDF5):
        return _line("an HDF5 file", "give a JSON or YAML sweep file")
    return None


def results_in_head(file: Path) -> str | None:
    """Return the same of a file that is too large to be parsed, by how it begins; None: unknown."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    if b'"traceEvents"' in head:
        return _line(_CHROME, _FOREIGN)
    if b'"hpcbench.summary"' in head:
        return _line(_SUMMARY, _how(file.parent))
    return results_in_bytes(head, file)


def results_in(data: Any, file: Path) -> str | None:
    """Return which results a parsed file holds and how to read them, or None."""
    first = data[0] if isinstance(data, list) and data else data
    if not isinstance(first, Mapping) or "benchmarks" in first:
        return None
    schema = str(first.get("schema", ""))
    if schema.startswith(_PRINTED) and schema != _SUMMARY_SCHEMA:
        return _line(f"JSON of hpcbench {schema.removeprefix(_PRINTED)}",
                     "give a sweep file; hpcbench gen-config makes one")
    return next((_line(what, _how(file.parent) if own else _FOREIGN)
                 for what, own, has in _KNOWN if has(first)), None)


def _line(what: str, how: str) -> str:
    return f"looks like {what}, not a config; {how}"


def _how(place: Path) -> str:
    """Return the command that shows a run, and where its configuration is."""
    folder = place.parent if place.suffix == ".h5" else place
    return f"{command_line('show', place)} prints it, and {folder / 'config.json'} is its config"


def _run_of(trace: Path) -> Path:
    """Return the folder of the run that a trace or journal in ``traces/`` is of."""
    return trace.parent.parent if trace.parent.name == "traces" else trace.parent


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: set(names) <= data.keys()


_KNOWN: tuple[tuple[str, bool, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("the plan of a run", True, _has("plan_hash", "cases", "passes")),
    (_SUMMARY, True, lambda data: data.get("schema") == _SUMMARY_SCHEMA),
    ("results of nccl-tests (-J)", False, lambda data: "results" in data and bool(
        data.keys() & {"average_bus_bandwidth", "out_of_bounds", "nccl_version"})),
    (_CHROME, False,
     lambda data: "traceEvents" in data or {"ph", "ts"} <= data.keys()),
    ("results of a benchmark", False, _has("timestamp", "results")),
    ("results of a benchmark", False, _has("world_size", "results")),
)
"""What the data are, whether they are hpcbench's own, and whether some data are that."""
