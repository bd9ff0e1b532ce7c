"""How the machine changed while the sweep ran: the canary's runs, from the notes of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcbench.plan.canary import canary_case
from hpcbench.reduce.results import Canary, CanaryRun, Finding
from hpcbench.reduce.timing import summarise
from hpcbench.trace.source import TraceSource

MOST_DRIFT = 0.03


def canary_of(sources: Mapping[int, TraceSource], world_size: int) -> Canary | None:
    """Return the canary's series, or None if none was recorded.

    ``sources`` maps rank to trace. A run is the k-th of its pass; one that some rank of the world
    did not record, or that was not ok, has no time.
    """
    found: dict[tuple[int, int, int], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for rank, source in sources.items():
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for note in source.notes:
            if note.kind == "canary":
                turn = int(note.data["launch"]), int(note.data["pass_index"])
                found[turn + (counts[turn],)][rank] = note.data
                counts[turn] += 1
    if not found:
        return None
    whole = {key: notes for key, notes in sorted(found.items()) if _is_ok(notes, world_size)}
    runs = _runs(whole)
    drift = runs[-1].median_s / runs[0].median_s - 1 if len(runs) > 1 else None
    label = canary_case(world_size, 0.0, 0.0).label
    return Canary(label, tuple(runs), len(found) - len(runs), drift,
                  ("drifting",) if drift is not None and _drifted(runs, drift) else ())


def _is_ok(notes: Mapping[int, Mapping[str, Any]], world_size: int) -> bool:
    """Return whether all ranks have as many samples of it."""
    counts = {len(note["durations_ns"]) for note in notes.values()}
    return (len(notes) == world_size and len(counts) == 1 and 0 not in counts
            and all(note["status"] == "ok" for note in notes.values()))


def _runs(found: Mapping[tuple[int, int, int], Mapping[int, Mapping[str, Any]]]) -> list[CanaryRun]:
    runs: list[CanaryRun] = []
    first_ns = None
    for (launch, pass_index, _), notes in found.items():
        at_ns = int(notes[min(notes)]["at_ns"])
        first_ns = at_ns if first_ns is None else first_ns
        durations_ns = np.array([note["durations_ns"] for note in notes.values()], dtype=np.int64)
        times = summarise(durations_ns.max(axis=0) / 1e9)
        runs.append(CanaryRun(launch, pass_index, (at_ns - first_ns) / 1e9, times.n,
                              times.median_s, times.ci_low_s, times.ci_high_s))
    return runs


def _drifted(runs: Sequence[CanaryRun], drift: float) -> bool:
    first, last = sorted((runs[0], runs[-1]), key=lambda run: run.median_s)
    apart = (first.ci_high_s is not None and last.ci_low_s is not None
             and first.ci_high_s < last.ci_low_s)
    return abs(drift) > MOST_DRIFT and apart


def canary_findings(canary: Canary | None) -> Iterator[Finding]:
    """Yield HB145 if the canary drifted."""
    if canary is None or "drifting" not in canary.quality or canary.drift is None:
        return
    first, last = canary.runs[0], canary.runs[-1]
    yield Finding("HB145", "note", f"the machine drifted during the sweep: {canary.label} took "
                  f"{first.median_s * 1e6:.4g} us at first and {last.median_s * 1e6:.4g} us "
                  f"{last.since_start_s:.0f} s later ({100 * canary.drift:+.1f} %, the intervals "
                  "are disjoint): compare cases of one pass only, or run on a quiet machine")
