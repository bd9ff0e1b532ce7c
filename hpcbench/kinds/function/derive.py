"""The deriver of functions: rates from what a function reports of a call, and speed-ups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.operations.collectives import collectives
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import (
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    ReadSamples,
    columns_of,
    texts,
)
from hpcbench.reduce.records import pass_medians_s
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.overlap import OverPasses, speedup
from hpcbench.trace.columns import PURE
from hpcbench.units import grouped


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """Rates of a case with times; None where the function does not report their values.

    ``speedup`` is over the baseline of its ``compare``, at the same backend, device, ranks and
    shared arguments.
    """

    rank_flops_per_s: Annotated[
        float | None, "flops of a call over median_s, mean of the ranks"] = None
    rank_bytes_per_s: Annotated[
        float | None, "bytes of a call over median_s, mean of the ranks"] = None
    busbw_bytes_per_s: Annotated[
        float | None, "rank_bytes_per_s x the busbw factor of the collective it names"] = None
    speedup: OverPasses | None = None


OF_FUNCTION = texts(
    function="benchmarked function", arguments="its arguments: NAME=VALUE, separated by spaces",
    compare="what functions that are compared have alike", file_sha256="first 16 hex digits of "
    "the SHA-256 of its file")


def call_of(item: CaseResult) -> FunctionCall:
    """Return the function call of a case. Raises TypeError for another kind."""
    if not isinstance(item.case.workload, FunctionCall):
        raise TypeError(f"{item.case.label} is not a function")
    return item.case.workload


class FunctionDeriver(Deriver):
    """Derives rates and speed-ups."""

    record = FunctionRecord
    columns = (*OF_FUNCTION, *columns_of(FunctionRecord), CaseColumn(
        "speedup_over_baseline", PURE, "time of the baseline over this time; NaN if it may be "
        "chance"))

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, FunctionRecord]:
        timed = [item for item in items if item.statistics is not None]
        return {item.case.case_id: _record(item, base)
                for same in grouped((_task(item), item) for item in timed).values()
                for base in [next((one for one in same if call_of(one).baseline), None)]
                for item in same}

    def facts(
        self, item: CaseResult, record: FunctionRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        work = call_of(item)
        yield ColumnValues(lambda: {
            "function": work.function, "compare": work.compare, "file_sha256": work.sha256,
            "arguments": [f"{name}={value}" for name, value in work.shown.items()],
            "speedup_over_baseline": record.speedup.median if record and record.speedup
            and record.speedup.tells else None})


def _task(item: CaseResult) -> tuple[object, ...]:
    """Return the key that is equal for cases with the same baseline."""
    case, work = item.case, call_of(item)
    return (case.backend, case.device, case.world_size, case.mode, case.env, case.cuda_graph,
            repr(work.problem()))


def _record(item: CaseResult, base: CaseResult | None) -> FunctionRecord:
    assert item.statistics is not None
    median_s = item.statistics.median_s
    rank_bytes = _mean(item, "bytes")
    of_rank = rank_bytes / median_s if rank_bytes else None
    spec = collectives().get(str(item.detail.get("0", {}).get("collective", "")))
    factor = spec.busbw_factor(item.case.group_size) if spec else None
    flops = _mean(item, "flops")
    return FunctionRecord(
        flops / median_s if flops else None, of_rank,
        of_rank * factor if of_rank and factor is not None else None,
        speedup(pass_medians_s(item), pass_medians_s(base)) if base not in (None, item) else None)


def _mean(item: CaseResult, name: str) -> float | None:
    """Return the mean over ranks of a reported value; None unless all ranks report it."""
    values = [rank[name] for rank in item.detail.values() if name in rank]
    return sum(values) / len(values) if len(values) == item.case.world_size else None
