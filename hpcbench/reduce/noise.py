"""Which ranks' cores were noisy before the sweep: a pure verdict on all ranks' noise checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hpcbench.reduce.results import Finding
from hpcbench.trace.schema import NOISE_NOTE, Header, Noise
from hpcbench.trace.source import TraceSource
from hpcbench.trace.typed import from_values

NOISY_RANK = 0.005
"""A rank is noisy from 0.5 % stolen time on: half of the 1 % to which the median of a case is
measured by default (measure.precision). Chosen here; no standard says how much is too much."""
NOISY_RATIO = 3.0
"""... and only if it is more than so many times the median of the other ranks: two loops on one
idle machine can differ by a factor of two, and what all ranks suffer is the system's."""
NOISY_SYSTEM = 0.01
"""The whole system is noisy if every rank loses more than 1 %, all of measure.precision."""


def noise_by_rank(sources: Mapping[int, TraceSource]) -> dict[int, Noise]:
    """Return each rank's first noise check, of the ranks that made one."""
    notes = {rank: next((note.data for note in source.notes if note.kind == NOISE_NOTE), None)
             for rank, source in sources.items()}
    return {rank: from_values(Noise, data["detours"]) for rank, data in notes.items() if data}


def noise_findings(by_rank: Mapping[int, Noise], headers: Sequence[Header]) -> Iterator[Finding]:
    """Yield a note for each noisy rank (HB143), and one if the whole system is noisy (HB144)."""
    of = {header.rank: header for header in headers}
    for rank, noise in sorted(by_rank.items()):
        others = [other.stolen_share for number, other in by_rank.items() if number != rank]
        usual = float(np.median(others)) if others else None
        if usual is not None and noise.stolen_share > max(NOISY_RATIO * usual, NOISY_RANK):
            where = f" on {of[rank].hostname}" if rank in of else ""
            yield Finding("HB143", "note", f"rank {rank}{where}: others took "
                          f"{_percent(noise.stolen_share)} of its core before the sweep "
                          f"({noise.n_detours} times, longest {noise.longest_ns / 1000:g} us), of "
                          f"the other ranks' {_percent(usual)}: every collective waits for it; see "
                          "what else runs there, or pin the ranks to other cores")
    shares = [noise.stolen_share for noise in by_rank.values()]
    if shares and min(shares) > NOISY_SYSTEM:
        yield Finding("HB144", "note", f"others took {_percent(min(shares))} to "
                      f"{_percent(max(shares))} of every rank's core before the sweep: times have "
                      f"long tails{_crowding([of[rank] for rank in by_rank if rank in of])}")


def _crowding(headers: Sequence[Header]) -> str:
    """Say how many ranks share how many cores on the fullest node, and what to do."""
    cores: dict[str, set[int]] = {}
    for header in headers:
        process = header.environment.get("process", {})
        cores.setdefault(header.node, set()).update(process.get("affinity", []))
    ranks = Counter(header.node for header in headers)
    if not ranks or not any(cores.values()):
        return "; see what else runs there"
    node = max(ranks, key=lambda name: ranks[name] / max(len(cores[name]), 1))
    host = next(header.hostname for header in headers if header.node == node)
    text = f"; {ranks[node]} rank(s) share {len(cores[node])} core(s) on {host}"
    return text + (": start fewer ranks a node" if ranks[node] >= len(cores[node])
                   else ": see what else runs there")


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
