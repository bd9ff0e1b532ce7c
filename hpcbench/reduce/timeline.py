"""When each rank was where in chosen samples of a case, on a clock that all ranks read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import counts, is_timed
from hpcbench.trace.schema import ARRIVAL


@dataclass(frozen=True, slots=True)
class RankCourse:
    """One rank in one sample: it begins ``begin_s`` after the first rank, and spends ``parts``.

    A part is a name and its seconds; what is in no phase of a step is the part ``""``.
    """

    rank: int
    begin_s: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class SampleCourse:
    """All ranks in one sample: ``number`` is its place among all samples of the case."""

    word: str
    number: int
    ranks: tuple[RankCourse, ...]


def courses_of(samples: CaseSamples) -> tuple[SampleCourse, ...]:
    """Return the middle and the longest of the samples that count; of one sample that alone.

    The stamps have to be of one clock. There is nothing where no sample counts.
    """
    counted = counts(samples.use) if samples.use is not None else is_timed(samples)
    places = np.flatnonzero(counted)
    if not places.size:
        return ()
    time_ns = samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)
    ordered = places[np.argsort(time_ns[places], kind="stable")]
    chosen = {"middle": int(ordered[(len(ordered) - 1) // 2]), "longest": int(ordered[-1])}
    return tuple(SampleCourse(word, at, _ranks(samples, at)) for word, at in chosen.items()
                 if word == "middle" or at != chosen["middle"])


def _ranks(samples: CaseSamples, at: int) -> tuple[RankCourse, ...]:
    begin_ns = samples.start_ns[:, at].min()
    found = []
    for row, rank in enumerate(samples.ranks):
        whole_s = float(samples.end_ns[row, at] - samples.start_ns[row, at]) / 1e9
        parts = [(name, float(values[row, at]) / 1e9) for name, values in samples.phases.items()
                 if not name.startswith(ARRIVAL)]
        rest_s = max(whole_s - sum(seconds for _, seconds in parts), 0.0)
        found.append(RankCourse(rank, float(samples.start_ns[row, at] - begin_ns) / 1e9,
                                (*parts, ("", rest_s))))
    return tuple(found)
