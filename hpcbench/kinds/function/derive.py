"""The deriver of functions: rates from what a function reports of a call, and speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.operations.collectives import collectives
from hpcbench.reduce import metric
from hpcbench.reduce.kind_facts import Deriver, settings
from hpcbench.reduce.records import pass_medians_s
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.overlap import speedup
from hpcbench.units import grouped


def call_of(item: CaseResult) -> FunctionCall:
    """Return the function call of a case. Raises TypeError for another kind."""
    if not isinstance(item.case.workload, FunctionCall):
        raise TypeError(f"{item.case.label} is not a function")
    return item.case.workload


RATES = (
    metric.metric("rank_flops_per_s", "flops of a call over median_s, mean of the ranks",
                  title="per rank", show=metric.Show.TFLOP_PER_S, better="more", optional=True),
    metric.metric("rank_bytes_per_s", "bytes of a call over median_s, mean of the ranks",
                  title="per rank", show=metric.Show.GB_PER_S, better="more", optional=True),
    metric.metric("busbw_bytes_per_s",
                  "rank_bytes_per_s x the busbw factor of the collective it names",
                  title="busbw", show=metric.Show.GB_PER_S, better="more", optional=True))
SPEEDUP, _SPEEDUP_PASSES = metric.metrics_over_passes(
    "speedup_over_baseline", "t_p(baseline) / t_p", title="speed-up", show=metric.Show.RATIO,
    better="more", optional=True)
METRICS = (
    *metric.planned(metric.word("function", "benchmarked function"),
                    metric.word("compare", "what functions that are compared have alike")),
    metric.word("arguments", "its arguments: NAME=VALUE, separated by spaces",
                of=lambda item: settings(call_of(item).shown.items())),
    metric.word("file_sha256", "first 16 hex digits of the SHA-256 of its file",
                of=lambda item: call_of(item).sha256),
    *RATES, SPEEDUP, _SPEEDUP_PASSES)


class FunctionDeriver(Deriver):
    """Derives rates from what a function reports, and the speed-up over the baseline of its
    ``compare`` at the same backend, device, ranks and shared arguments."""

    version = 2
    columns = METRICS

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> metric.Records:
        timed = [item for item in items if item.statistics is not None]
        return {item.case.case_id: _values(item, base)
                for same in grouped((_task(item), item) for item in timed).values()
                for base in [next((one for one in same if call_of(one).baseline), None)]
                for item in same}


def _task(item: CaseResult) -> tuple[object, ...]:
    """Return the key that is equal for cases with the same baseline."""
    case, work = item.case, call_of(item)
    return (case.backend, case.device, case.world_size, case.mode, case.env, case.cuda_graph,
            repr(work.problem()))


def _values(item: CaseResult, base: CaseResult | None) -> metric.Values:
    assert item.statistics is not None
    median_s = item.statistics.median_s
    flops, rank_bytes = _mean(item, "flops"), _mean(item, "bytes")
    of_rank = rank_bytes / median_s if rank_bytes else None
    spec = collectives().get(str(item.detail.get("0", {}).get("collective", "")))
    factor = spec.busbw_factor(item.case.group_size) if spec else None
    return {
        "rank_flops_per_s": flops / median_s if flops else None, "rank_bytes_per_s": of_rank,
        "busbw_bytes_per_s": of_rank * factor if of_rank and factor is not None else None,
        **metric.values_over_passes(SPEEDUP.name, None if base in (None, item) else speedup(
            pass_medians_s(item), pass_medians_s(base)))}


def _mean(item: CaseResult, name: str) -> float | None:
    """Return the mean over ranks of a reported value; None unless all ranks report it."""
    values = [rank[name] for rank in item.detail.values() if name in rank]
    return sum(values) / len(values) if len(values) == item.case.world_size else None
