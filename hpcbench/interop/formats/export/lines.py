"""Lines that one expression reads: figures of merit, and SuperBench's summary of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpcbench.interop.formats.export.cases import (
    Exported,
    ExportedRun,
    ExportRequest,
    chosen_metrics,
    joined,
    not_measured,
    plain_number,
)
from hpcbench.texts import to_json

BENCHMARK = "hpcbench"


def as_fom(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return ``NAME: VALUE UNIT`` a line, no number with an exponent; first how cases ended."""
    run = runs[0]
    ended = Counter(case.item.status for case in run.cases)
    lines = [f"{BENCHMARK}.{status}: {ended[status]} cases"
             for status in ("ok", "wrong", "failed", "timeout")]
    values = [f"{case.slug}.{one.name}: {plain_number(one.value)} {one.unit}"
              for case in run.measured for one in chosen_metrics(case, request)]
    return Exported(joined([*lines, *values]),
                    (*not_measured(run),))


def as_superbench(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return results-summary.jsonl: an object for each node, with all numbers of its run."""
    lines, notes = [], []
    for run in runs:
        numbers = dict(_numbers(run, request))
        nodes = run.results.run.nodes or ("unknown",)
        lines += [to_json({"node": node, **numbers}, allow_nan=False) for node in nodes if numbers]
        if len(nodes) > 1:
            notes.append(f"run {run.results.run.run_id}: its {len(nodes)} nodes have the same "
                         "numbers, those of the job")
    return Exported(joined(lines),
                    tuple(one for run in runs for one in not_measured(run)), tuple(notes))


def _numbers(run: ExportedRun, request: ExportRequest) -> Iterator[tuple[str, float]]:
    """Yield ``hpcbench/CASE_METRIC:0`` and its number, and return codes, 1 for bad cases."""
    bad = [case for case in run.cases if case.is_bad]
    if bad or run.measured:
        yield f"{BENCHMARK}/return_code:0", int(bool(bad))
    for case in bad:
        yield f"{BENCHMARK}/{case.slug}_return_code:0", 1
    for case in run.measured:
        for one in chosen_metrics(case, request):
            yield f"{BENCHMARK}/{case.slug}_{one.name}:0", one.value
