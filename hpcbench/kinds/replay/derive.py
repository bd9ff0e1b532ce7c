"""The deriver of recorded jobs: the time of a replay beside that of the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.replay.plan import Replay
from hpcbench.reduce.kind_facts import Deriver, Fact, IsolatedForm, ReadSamples
from hpcbench.reduce.metric import Records, Show, Values, metric, whole, word
from hpcbench.reduce.results import CaseResult


def replay_of(item: CaseResult) -> Replay:
    """Return the replay of a case. Raises TypeError for another kind."""
    if not isinstance(item.case.workload, Replay):
        raise TypeError(f"{item.case.label} is not a replay")
    return item.case.workload


def recorded_s(work: Replay) -> float | None:
    return None if work.recorded_ns is None else work.recorded_ns / 1e9


RECORDED = metric(
    "recorded_s", "from the first issue to the last in the record, of its slowest rank",
    of=lambda item: recorded_s(replay_of(item)), title="recorded", show=Show.US, apart=True,
    optional=True)
RATIO = metric(
    "replayed_over_recorded", "median_s / recorded_s", title="replayed/recorded", show=Show.RATIO,
    better="less", optional=True)
ENDS = tuple(metric(f"replayed_over_recorded_{end}", f"ci_{end}_s / recorded_s")
             for end in ("low", "high"))
METRICS = (
    word("gaps", "gaps of a replay: recorded, together or none",
         of=lambda item: replay_of(item).gaps),
    word("traffic_sha256", "first 16 hex digits of the SHA-256 of the replayed record",
         of=lambda item: replay_of(item).sha256),
    whole("replayed_calls", "calls of a replay, each once for all its ranks",
          of=lambda item: replay_of(item).n_calls),
    whole("replayed_bytes", "of these calls, as nccl-tests counts them",
          of=lambda item: replay_of(item).size_bytes),
    RECORDED, RATIO, *ENDS)


class ReplayDeriver(Deriver):
    """Derives ratios to the record; there are none where gaps of the record are unknown."""

    version = 2
    columns = METRICS

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: _values(item) for item in items if item.statistics is not None}

    def facts(
        self, item: CaseResult, record: Values | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        work = replay_of(item)
        if work.form_id:
            yield IsolatedForm(work.form_id, work.callers)


def _values(item: CaseResult) -> Values:
    assert item.statistics is not None
    stats, recorded = item.statistics, recorded_s(replay_of(item))
    return {one.name: time_s / recorded for one, time_s in zip(
        (RATIO, *ENDS), (stats.median_s, stats.ci_low_s, stats.ci_high_s), strict=True)
        if recorded and time_s is not None}
