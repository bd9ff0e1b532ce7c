"""The deriver of recorded jobs: the time of a replay beside that of the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from hpcbench.kinds.replay.plan.planner import Replay
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import (
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    IsolatedForm,
    ReadSamples,
    columns_of,
    texts,
)
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.columns import PURE


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """The time of a replay over that of its record; None where gaps of the record are unknown."""

    replayed_over_recorded: Annotated[
        float | None, "median_s over the time from the first issue to the last in the record, of "
        "its slowest rank"] = None
    replayed_over_recorded_low: Annotated[
        float | None, "the same of the ends of the interval of median_s"] = None
    replayed_over_recorded_high: Annotated[
        float | None, "the same of the ends of the interval of median_s"] = None


def replay_of(item: CaseResult) -> Replay:
    """Return the replay of a case. Raises TypeError for another kind."""
    if not isinstance(item.case.workload, Replay):
        raise TypeError(f"{item.case.label} is not a replay")
    return item.case.workload


class ReplayDeriver(Deriver):
    """Derives ratios to the record."""

    record = ReplayRecord
    columns = (
        *texts(gaps="gaps of a replay: recorded, together or none",
               traffic_sha256="first 16 hex digits of the SHA-256 of the replayed record"),
        CaseColumn("replayed_calls", PURE, "calls of a replay, each once for all its ranks", int),
        CaseColumn("replayed_bytes", "bytes", "of these calls, as nccl-tests counts them", int),
        CaseColumn("recorded_s", "s", "from the first of these calls to the last in the record"),
        *columns_of(ReplayRecord))

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, ReplayRecord]:
        return {item.case.case_id: _record(item) for item in items if item.statistics is not None}

    def facts(
        self, item: CaseResult, record: ReplayRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        work = replay_of(item)
        if work.form_id:
            yield IsolatedForm(work.form_id, work.callers)
        yield ColumnValues(lambda: own_values(work))


def recorded_s(work: Replay) -> float | None:
    return None if work.recorded_ns is None else work.recorded_ns / 1e9


def own_values(work: Replay) -> dict[str, Any]:
    """Return the columns that follow from the workload alone."""
    return {"gaps": work.gaps, "traffic_sha256": work.sha256, "replayed_calls": work.n_calls,
            "replayed_bytes": work.size_bytes, "recorded_s": recorded_s(work)}


def _record(item: CaseResult) -> ReplayRecord:
    assert item.statistics is not None
    stats, recorded = item.statistics, recorded_s(replay_of(item))
    if not recorded:
        return ReplayRecord()
    return ReplayRecord(*(None if time_s is None else time_s / recorded for time_s in (
        stats.median_s, stats.ci_low_s, stats.ci_high_s)))
