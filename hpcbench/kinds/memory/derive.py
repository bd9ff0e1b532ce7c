"""The deriver of memory: the use of the rank with most, beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hpcbench.kinds.memory import plan as workload
from hpcbench.kinds.memory.plan import PARTS
from hpcbench.kinds.training.derive.deriver import OF_TRAINING
from hpcbench.kinds.training.plan.memory import Memory
from hpcbench.kinds.training.plan.predict import is_predicted, predict
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.workload import TRIES
from hpcbench.reduce.kind_facts import Deriver
from hpcbench.reduce.metric import Metric, Records, Show, Values, metric, whole, word
from hpcbench.reduce.results import CaseResult

_MIB: Mapping[str, Any] = {"show": Show.MIB, "shown_unit": "MiB"}
_BATCH: Mapping[str, Any] = {"show": Show.COUNT, "shown_unit": "replica"}
TITLES = {part: part for part in PARTS} | {"optimizer_state": "optimizer"}
"""Part -> its title."""
HELD = tuple(whole(f"{part}_bytes", "part of the peak", title=TITLES[part], **_MIB)
             for part in PARTS)
PREDICTED = tuple(whole(
    f"{part}_bytes_of_peak_predicted", "predicted part of the peak",
    "bytes", title=TITLES[part], **_MIB) for part in PARTS)
"""What is temporary there are the buffers of a prediction."""
OVERHEAD = whole("overhead_bytes", "taken by the allocator beyond the peak", title="overhead",
                 better="less", optional=True, **_MIB)
PEAK = whole("peak_bytes", "most that a rank held at once", title="peak", better="less",
             **_MIB)
PEAK_PREDICTED = whole("predicted_peak_bytes", "predicted of the rank with most",
                       title="predicted", optional=True, **_MIB)
DEVIATION = metric("deviation", "peak_bytes / predicted_peak_bytes - 1", title="deviation",
                   show=Show.PERCENT, optional=True)
UTILISATION = metric("utilisation", "peak_bytes / capacity_bytes", title="of capacity",
                     show=Show.PERCENT, optional=True)
EFFICIENCY = metric("efficiency", "least_bytes / used_bytes", title="efficiency", show=Show.RATIO,
                    better="more", optional=True)
MOMENT = word("peak_moment_predicted", "when in a step",
              title="at the")
LARGEST = whole("largest_batch", "search: most samples of a replica that fitted on every rank",
                title="largest batch", better="more", **_BATCH)
TOO_LARGE = whole("too_large_batch", "the fewest tried that did not fit", title="too large",
                  **_BATCH)
ENDED = word("too_large_ended", "how that ended: out of memory, died",
             title="ended", optional=True)
LARGEST_PREDICTED = whole(
    "predicted_largest_batch", "the most predicted to fit",
    title="predicted", optional=True, **_BATCH)
LARGEST_DEVIATION = metric(
    "batch_deviation", "largest_batch / predicted_largest_batch - 1", title="deviation",
    show=Show.PERCENT, optional=True)
TRIED = whole("tries", "search: batches that were tried", title="tries",
              show=Show.COUNT)
LIMIT = whole("limit_bytes", "search: what a training may take; least of all ranks",
              title="limit", **_MIB)
OWN = (
    *HELD, PEAK, word("peak_of", "what is counted"), *PREDICTED, OVERHEAD, PEAK_PREDICTED,
    DEVIATION, whole("capacity_bytes", "memory that it could have"),
    word("capacity_of", "its source"), UTILISATION,
    whole("least_bytes", "parameters, gradients and states of the model, each once"),
    whole("used_bytes", "peaks of all ranks together"), EFFICIENCY,
    whole("peak_rank", "rank with most"), MOMENT, LARGEST, TOO_LARGE, ENDED, LARGEST_PREDICTED,
    LARGEST_DEVIATION, TRIED, LIMIT)
"""What a case measures, in the order of the summaries."""


def tries_of(item: CaseResult) -> list[Mapping[str, Any]]:
    tries: list[Mapping[str, Any]] = item.detail.get("0", {}).get(TRIES, [])
    return tries


def measured_training(item: CaseResult) -> Training:
    """Return the training that the numbers of a case describe; a search gives the one it found."""
    work = workload.work_of(item.case)
    fits = workload.bracket_of(tries_of(item))[0] if work.search else 0
    return workload.with_batch(work.training, fits) if fits else work.training


def as_training(item: CaseResult) -> CaseResult:
    return replace(item, case=replace(item.case, workload=measured_training(item)))


def _of_measured(one: Metric, item: CaseResult) -> Any:
    assert one.of is not None
    return one.of(as_training(item))


class MemoryDeriver(Deriver):
    """Derives deviations, utilisation and efficiency."""

    version = 3
    columns = (*(replace(one, of=partial(_of_measured, one)) for one in OF_TRAINING), *OWN)

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: _values(item) for item in items}


def _values(item: CaseResult) -> Values:
    """Return the values of the rank with the highest peak; in a search, of the largest batch."""
    ranks = {int(rank): left for rank, left in item.detail.items() if "held" in left}
    is_search = workload.work_of(item.case).search is not None
    if item.status != "ok" or not ranks or (is_search and not tries_of(item)):
        return {}  # without its tries the batch of a search is unknown
    peaks = {rank: sum(int(left["held"][part]) for part in PARTS) for rank, left in ranks.items()}
    rank = max(peaks, key=lambda one: (peaks[one], -one))
    peak, held, capacity = peaks[rank], ranks[rank]["held"], ranks[rank]["capacity"]
    overhead = held["overhead"]
    work = measured_training(item)
    is_known = is_predicted(work)
    memory = predict(work).memory if is_known else Memory()
    least = workload.least_bytes(work) if is_known else None
    used = sum(peaks.values()) if len(ranks) == item.case.world_size else None
    return {
        **{one.name: int(held[part]) for one, part in zip(HELD, PARTS, strict=True)},
        PEAK.name: peak, "peak_of": held["of"], "peak_rank": rank,
        # a process that takes what it had before grows by less than it holds
        OVERHEAD.name: overhead if overhead is not None and overhead >= 0 else None,
        **(dict(zip((one.name for one in (*PREDICTED, PEAK_PREDICTED, MOMENT)),
                    (*memory.parts().values(), memory.total, memory.moment), strict=True))
           if is_known else {}),
        DEVIATION.name: peak / memory.total - 1 if memory.total else None,
        "capacity_bytes": capacity["bytes"], "capacity_of": capacity["of"],
        UTILISATION.name: peak / capacity["bytes"] if capacity["bytes"] else None,
        "least_bytes": least, "used_bytes": used,
        EFFICIENCY.name: least / used if least and used else None,
        **(_searched(item, min(left["capacity"]["bytes"] for left in ranks.values()))
           if is_search else {})}


def _searched(item: CaseResult, limit_bytes: int) -> Values:
    """Return the result of a search, whose batches are samples of a replica."""
    work, tries = workload.work_of(item.case), tries_of(item)
    assert work.search is not None
    fits, failed = workload.bracket_of(tries)
    expected = workload.predicted_largest(work.training, work.search.unit, limit_bytes)
    return {LARGEST.name: fits, TOO_LARGE.name: failed and failed["batch"],
            ENDED.name: failed and failed["ended"], TRIED.name: len(tries), LIMIT.name: limit_bytes,
            LARGEST_PREDICTED.name: expected,
            LARGEST_DEVIATION.name: fits / expected - 1 if expected else None}
