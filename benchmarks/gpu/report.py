"""The verdicts of a session: verdicts.json for programs, verdicts.md for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu.machine import Machine
from gpu.record import Record, write_json
from gpu.steps import Goal

VERDICTS = ("met", "missed", "failed", "cannot tell", "skipped", "not run")


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
    return ["# Verdicts", "", f"GPUs: {', '.join(names) or 'none'}. {', '.join(versions)}.",
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


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
