"""Results of trainings built in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcbench.kinds.training.plan.models import flops, shape_of
from hpcbench.kinds.training.plan.spec import adapters_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.records import Observations, with_records
from hpcbench.reduce.results import CaseResult, Phase, Results, Steps
from results_factory import make_results, ok
from training_cases import make_training, make_training_case

SHARES = {"data": 0.02, "forward": 0.28, "backward": 0.55, "optimizer": 0.1}
MEMORY = {"parameters": 474_112, "gradients": 474_112, "optimizer_state": 948_224,
          "peak": 9_437_184, "peak_of": "process growth"}


def training_case(strategy: str = "data", *, index: int = 0, **changes: Any) -> Case:
    """Return a case whose FLOPs are those of its model; options come as ``options``."""
    case = changes.pop("case", {})
    work = make_training(strategy, **changes)
    work = replace(work, flops=flops(shape_of(work), work.global_batch, adapters_of(work)))
    return make_training_case(work, index=index, **case)


def trained(
    case: Case, median_s: float = 8e-3, shares: Mapping[str, float] = SHARES, *,
    slow_rank: int | None = None, on: str = "the model", memory: Mapping[str, Any] | None = MEMORY,
) -> CaseResult:
    """Return an ok training. A slow rank needs half as much again for forward; others wait."""
    ranks = tuple(range(case.world_size))
    result = ok(case, median_s)
    phases = tuple(_phase(name, share, median_s, ranks, slow_rank)
                   for name, share in shares.items())
    other_s = (1 - sum(shares.values())) * median_s
    steps = Steps(ranks, (median_s,) * len(ranks), (other_s,) * len(ranks),
                  1 - sum(shares.values()), phases)
    assert result.timing is not None
    parity = {str(rank): {"parity": {"on": on, "share": 0.02 + 0.1 * rank}} for rank in ranks}
    held = None if memory is None else {
        str(rank): {**memory, "peak": memory["peak"] - 2**20 * rank} for rank in ranks}
    return replace(result, memory=held, detail=parity, timing=replace(
        result.timing, steps=steps if shares else None,
        pass_medians_s=(0.97 * median_s, median_s, 1.02 * median_s)))


def _phase(
    name: str, share: float, step_s: float, ranks: tuple[int, ...], slow_rank: int | None
) -> Phase:
    extra = {"forward": 0.5, "backward": -0.5}.get(name, 0.0) if slow_rank is not None else 0.0
    medians = tuple(share * step_s * (1 + extra * (rank == slow_rank)) for rank in ranks)
    alone = len(ranks) == 1
    vote = 0.97 if extra else 0.5
    slowest = slow_rank if extra > 0 else 0
    quickest = slow_rank if extra < 0 else 0
    return Phase(name, share, medians, None if alone else slowest, None if alone else vote,
                 None if alone else quickest, None if alone else vote)


def with_peak(results: Results, **peak_flops: float) -> Results:
    """Return the results of a run whose config declares peaks."""
    plan = replace(results.plan, config={"hardware": {"peak_flops": peak_flops}})
    return with_records(replace(results, plan=plan))


def strategies() -> Results:
    """Return a run with several strategies, one of them wrong, one failed."""
    cases = [
        training_case("single", dp=1, calls=()),
        training_case("data", index=1, options=(("bucket_mb", 1), ("comm_hook", "none"))),
        training_case("data", index=2, options=(("bucket_mb", 25), ("comm_hook", "bf16"))),
        training_case("fsdp", index=3, options=(("reshard", True),), checkpointing="full"),
        training_case("tensor", index=4, dp=1, tp=2, options=(("sequence_parallel", False),)),
        training_case("pipeline", index=5, dp=1, pp=2,
                      options=(("microbatches", 4), ("schedule", "1F1B"))),
        training_case("hybrid", index=6, dp=2, tp=2, options=(("tp", 2),)),
    ]
    pipe = {"data": 0.01, "forward_backward": 0.8, "optimizer": 0.08}
    times = (6.1e-3, 8e-3, 8.4e-3, 11.2e-3, 13e-3, 9.7e-3, 21e-3)
    items = [trained(case, time_s, pipe if training_of(case).pp > 1 else SHARES,
                     slow_rank=1 if at == 2 else None)
             for at, (case, time_s) in enumerate(zip(cases, times, strict=True))]
    return make_results(tuple(items))


class _Seen(Observations):
    """Comparisons as if they had been made of stamps."""

    def __init__(self, by_case: Mapping[str, tuple[Comparison, ...]]) -> None:
        super().__init__()
        self._by_case = by_case

    def of(self, item: CaseResult) -> Mapping[str, Any]:
        return {"comparisons": self._by_case.get(item.case.case_id, ())}


def with_clear(results: Results, case: Case, *names: str, rank: int = 1) -> Results:
    """Return results in which these comparisons of a case clearly name this rank."""
    return with_records(results, observed=_Seen({
        case.case_id: tuple(Comparison(name, 1e-9, rank, 0) for name in names)}))
