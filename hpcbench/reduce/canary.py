"""How the machine changed while the sweep ran: the canary's runs, from the notes of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from hpcbench.plan.case import CANARY_ID, planned_canary
from hpcbench.reduce.results import Canary, CanaryRun, Finding
from hpcbench.reduce.timing import summarise
from hpcbench.statistics.steady import steady_drift
from hpcbench.trace.container import expected_content
from hpcbench.trace.source import TraceSource, noted

CANARY_NOTE = "canary"

_Run = tuple[int, list[int]]
"""One run as one rank noted it: when it began, and its durations in ns, none unless it was ok."""
_RunIndex = tuple[int, int, int]
"""Launch, pass, and the number of the run in it."""


def canary_of(sources: Mapping[int, TraceSource], world_size: int) -> Canary | None:
    """Return the canary's series, or None if none was recorded.

    ``sources`` maps rank to trace. A run that some rank of the world did not record, or that was
    not ok, has no time. Raises UnreadableTrace for notes of another kind of canary.
    """
    runs_by_index: dict[_RunIndex, dict[int, _Run]] = defaultdict(dict)
    for rank, source in sources.items():
        counts: Counter[tuple[int, int]] = Counter()
        with expected_content(source.path):
            for data in noted(source, CANARY_NOTE):
                turn = int(data["launch"]), int(data["pass_index"])
                index = (*turn, counts[turn])
                counts[turn] += 1
                times = data["durations_ns"] if data["status"] == "ok" else ()
                runs_by_index[index][rank] = int(data["at_ns"]), [*map(int, times)]
    if not runs_by_index:
        return None
    series = tuple(_series({index: runs for index, runs in sorted(runs_by_index.items())
                            if _is_ok(runs, world_size)}))
    drift = steady_drift(np.array([run.median_s for run in series]),
                         np.array([run.since_start_s for run in series]))
    canary = planned_canary(world_size)
    return Canary(canary.label if canary else CANARY_ID, series,
                  len(runs_by_index) - len(series), drift.change if drift else None,
                  ("drifting",) if drift and drift.significant else (),
                  drift.tau if drift else None)


def _is_ok(runs: Mapping[int, _Run], world_size: int) -> bool:
    """Return whether all ranks have as many samples of it, that took some time."""
    counts = {len(durations_ns) for _, durations_ns in runs.values()}
    return (len(runs) == world_size and len(counts) == 1
            and all(min(durations_ns, default=0) > 0 for _, durations_ns in runs.values()))


def _series(runs_by_index: Mapping[_RunIndex, Mapping[int, _Run]]) -> Iterator[CanaryRun]:
    first_ns = None
    for (launch, pass_index, _), runs in runs_by_index.items():
        at_ns, _ = runs[min(runs)]
        first_ns = at_ns if first_ns is None else first_ns
        durations_ns = np.array([durations_ns for _, durations_ns in runs.values()], dtype=np.int64)
        times = summarise(durations_ns.max(axis=0) / 1e9)
        yield CanaryRun(launch, pass_index, (at_ns - first_ns) / 1e9, times.n, times.median_s,
                        times.ci_low_s, times.ci_high_s)


def canary_findings(canary: Canary) -> Iterator[Finding]:
    """Yield HB145 if the canary drifted, HB147 if it was not always ok."""
    if canary.n_not_ok:
        yield Finding("HB147", "note", f"{canary.n_not_ok} of {canary.n_not_ok + len(canary.runs)} "
                      f"runs of the canary ({canary.label}) were not ok on every rank: what the "
                      "machine did around them is unknown; see the traces' notes")
    if canary.drift is not None and "drifting" in canary.quality:
        duration_s = canary.runs[-1].since_start_s
        yield Finding("HB145", "note", f"the machine drifted during the sweep: {canary.label} "
                      f"changed by {100 * canary.drift:+.1f} % over {len(canary.runs)} runs in "
                      f"{duration_s:.0f} s (Kendall's tau {canary.tau:+.2f}; of runs that do not "
                      "drift at most 1 % are reported): compare cases of one pass only, or run on "
                      "a quiet machine")
