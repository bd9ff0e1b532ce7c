"""A run that was resumed has several attempts, each with traces and clocks of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbench.plan.case import Plan
from hpcbench.reduce.clocks import rank_clocks
from hpcbench.reduce.intake import Intake, choose_traces, majority, open_traces
from hpcbench.reduce.passes import Attempt
from hpcbench.reduce.results import Finding
from hpcbench.trace.attempts import attempt_folders
from hpcbench.trace.source import RESUMED_NOTE, STOPPED_NOTE, TraceSource, never_ended
from hpcbench.units import rank_list


@dataclass(frozen=True, slots=True)
class Attempts:
    """The traces of each attempt in order, the newest last, and the findings about all of them."""

    intakes: tuple[Intake, ...]
    findings: tuple[Finding, ...]

    @property
    def newest(self) -> Intake:
        """Return the last one that left a usable trace, or the last."""
        return next((item for item in reversed(self.intakes) if item.sources), self.intakes[-1])

    @property
    def sources(self) -> Iterator[TraceSource]:
        """Yield every trace in use."""
        for intake in self.intakes:
            yield from intake.sources.values()


Opened = Sequence[tuple[Sequence[TraceSource], Sequence[Finding]]]
"""Of each attempt the traces that can be read, and findings for the others."""


def open_attempts(traces: Path) -> Opened:
    """Open the traces of every attempt of a run."""
    return [open_traces(folder) for folder in attempt_folders(traces)]


def choose_attempts(
    opened: Opened, plan: Plan, *, allow_mixed: bool, accepted: Collection[str] | None = None,
) -> Attempts:
    """Return of every attempt the traces that belong to the run, and what is wrong with others.

    ``accepted`` are hashes of plans that do, too; by default those that later attempts name.
    """
    intakes: list[Intake] = []
    accepted = _accepted_plans(opened) if accepted is None else accepted
    for number, (sources, _) in enumerate(opened):
        intakes.append(choose_traces(
            sources, plan, allow_mixed=allow_mixed, accepted=accepted, run_id=_run_id(intakes),
            resumed=number + 1 < len(opened)))
    unreadable = [finding for _, findings in opened for finding in findings]
    findings = [finding for intake in intakes for finding in intake.findings]
    return Attempts(tuple(intakes), (*unreadable, *findings, *_resumptions(intakes)))


def _run_id(intakes: Sequence[Intake]) -> str | None:
    run_ids = [source.header.run_id for intake in intakes for source in intake.sources.values()]
    return majority(run_ids) if run_ids else None


def _accepted_plans(opened: Opened) -> frozenset[str]:
    """Return the hashes of earlier plans that somebody wanted to go on from, all the same."""
    notes = (note for sources, _ in opened for source in sources for note in source.notes)
    return frozenset(str(plan) for note in notes if note.kind == RESUMED_NOTE
                     for plan in note.data["earlier_plans"])


def _resumptions(intakes: Sequence[Intake]) -> Iterator[Finding]:
    """Yield HB150 for each attempt that was resumed, HB151 for what changed in between."""
    for number, (earlier, later) in enumerate(zip(intakes, intakes[1:], strict=False)):
        first = later.sources.get(0)
        notes = [] if first is None else [
            note.data for note in first.notes if note.kind == RESUMED_NOTE]
        resumption = notes[0] if notes else {}
        left = (f", {resumption['left']} of {resumption['planned']} runs of cases were left"
                if resumption else "")
        yield Finding("HB150", "note", f"attempt {number} {how_ended(earlier.sources)}{left}; "
                      f"attempt {number + 1} went on: cases of different attempts are compared "
                      "across a change of processes, maybe of machines")
        for change in resumption.get("changes", ()):
            yield Finding("HB151", "note", f"resumed with --force in spite of a change: {change}: "
                          "attempts may differ because of it; run it afresh for a comparison")


def how_ended(sources: Mapping[int, TraceSource]) -> str:
    """Return how an attempt ended, in words."""
    if not sources:
        return "left no usable trace"
    signals = {str(note.data["signal"]) for source in sources.values() for note in source.notes
               if note.kind == STOPPED_NOTE}
    if signals:
        return f"was stopped by {', '.join(sorted(signals))}"
    dead = [rank for rank, source in sources.items() if never_ended(source)]
    return f"was ended from outside (rank {rank_list(dead)})" if dead else "came to its end"


def contexts(attempts: Attempts) -> tuple[Attempt, ...]:
    """Return what cases of each attempt are judged against."""
    return tuple(Attempt(
        present=frozenset(intake.sources),
        stopped=frozenset(rank for rank, source in intake.sources.items()
                          if never_ended(source) and all(item.torn for item in source.damage)),
        clocks=rank_clocks(intake.sources.values()),
        nodes={rank: source.header.node for rank, source in intake.sources.items()})
        for intake in attempts.intakes)
