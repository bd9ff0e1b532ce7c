"""Runs of trainings on several numbers of ranks, built in memory with several launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.answers.answer import Run
from hpcbench.reduce.results import CaseResult, Results
from results_factory import MemorySamples, make_results
from training_results import trained, training_case

LAUNCHES = (1.0, 1.004, 0.996, 1.002, 0.998)
"""Medians of launches over the median of a case: half a percent apart."""


def launched(item: CaseResult, launches: Sequence[float] = LAUNCHES) -> CaseResult:
    """Return the result with so many launches, as times the median."""
    assert item.statistics is not None and item.timing is not None
    medians = tuple(item.statistics.median_s * one for one in launches)
    return replace(item, timing=replace(item.timing, launch_medians_s=medians,
                                        pass_medians_s=medians))


def on_ranks(
    ranks: int, step_s: float, batch: int = 4, strategy: str = "data", *,
    launches: Sequence[float] = LAUNCHES, **changes: Any,
) -> CaseResult:
    """Return a step of data-parallel replicas of one rank each, ``batch`` samples a rank."""
    case = training_case(strategy, index=ranks, dp=changes.pop("dp", ranks), batch_size=batch,
                         **changes)
    return launched(trained(case, step_s), launches)


def run_of(
    *items: CaseResult, path: str = "results", ranks: int = 64, nodes: int = 1,
    process: Mapping[str, Any] | None = None, hardware: Mapping[str, Any] | None = None,
) -> Run:
    """Return the run of a job on so many ranks and nodes, whose ranks have a core each."""
    results = make_results(
        tuple(items), world_size=ranks, nodes=tuple(f"node{at}" for at in range(nodes)),
        environment={"process": {"ranks_a_core": 1.0} if process is None else dict(process)})
    return with_hardware(Run(path, results, MemorySamples(results)), hardware or {})


def with_hardware(run: Run, hardware: Mapping[str, Any]) -> Run:
    """Return the run with that section of the sweep file."""
    results: Results = replace(run.results, plan=replace(
        run.results.plan, config={"hardware": dict(hardware)}))
    return replace(run, results=results)
