"""The verdicts of a session: verdicts.json for programs, verdicts.md for people."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu.machine import Machine
from gpu.record import Record, write_json
from gpu.steps import Goal

VERDICTS = ("met", "missed", "failed", "cannot tell", "skipped", "not run")
_WIDTH = 120
"""Characters of a line of the table where there is no terminal."""


@dataclass(frozen=True)
class Verdict:
    """What a goal came to: one of VERDICTS, and the figures or the reason."""

    goal: str
    text: str
    step: str
    verdict: str
    detail: str


def without_results(goal: Goal, record: Record) -> Verdict | None:
    """Return the verdict where the step has left nothing to judge, else None."""
    if record.state == "done":
        return None
    verdict = {"skipped": "skipped", "cut": "not run", "not run": "not run"}.get(
        record.state, "failed")
    return Verdict(goal.id, goal.text, record.name, verdict, record.reason or record.state)


def write_report(
    folder: Path, machine: Machine, records: Sequence[Record], verdicts: Sequence[Verdict],
) -> None:
    """Write both files; each is absent or whole."""
    counts = Counter(item.verdict for item in verdicts)
    write_json(folder / "verdicts.json", {
        "format": "hpcbench.gpu_verdicts", "schema_version": 1, "machine": asdict(machine),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "steps": [asdict(record) for record in records],
        "verdicts": [asdict(verdict) for verdict in verdicts]})
    beside = folder / ".verdicts.md.new"
    beside.write_text("\n".join(_lines(machine, records, verdicts)) + "\n", encoding="utf-8")
    beside.replace(folder / "verdicts.md")


def _lines(
    machine: Machine, records: Sequence[Record], verdicts: Sequence[Verdict],
) -> list[str]:
    names = [f"{count} x {name}" for name, count in Counter(machine.names).items()]
    versions = [f"{name} {version}" for name, version in sorted(machine.versions.items())]
    return ["# Verdicts", "", f"GPUs: {', '.join(names) or 'none'}. "
            f"Cores: {machine.cores}. {', '.join(versions)}.",
            summary(verdicts), "", "| goal | verdict | figures or reason | step |",
            "|---|---|---|---|",
            *(f"| {_cell(item.text)} | **{item.verdict}** | {_cell(item.detail)} | {item.step} |"
              for item in verdicts),
            "", "| step | state | s | reason |", "|---|---|---|---|",
            *(f"| {item.name} | {item.state} | {item.seconds:g} | {_cell(item.reason)} |"
              for item in records)]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many goals came to what, in one line."""
    counts = Counter(item.verdict for item in verdicts)
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{len(verdicts)} goals: {', '.join(told) or 'none'}."


def print_table(verdicts: Sequence[Verdict]) -> None:
    """Print goal, figure and verdict of each goal, as wide as the terminal is."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("goal", ratio=2)
    table.add_column("figures or reason", ratio=3)
    table.add_column("verdict", no_wrap=True)
    for item in verdicts:
        table.add_row(Text(item.text), Text(" ".join(item.detail.split())), Text(item.verdict))
    console.print(table)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
