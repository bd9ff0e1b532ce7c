"""The lines above the tables of results: the run, and what the columns mean."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hpcbench.kinds.registry import presenter_of
from hpcbench.reduce.results import FOLDS, Results
from hpcbench.report.spans import items_by_kind
from hpcbench.units import format_seconds
from hpcbench.views.columns import TABLED
from hpcbench.views.timing import INTERVAL_TITLE, MODES, clock_text, mode_and_fold, repeats_text
from hpcbench.views.words import distinct, plural


def run_lines(results: Results) -> Iterator[Text]:
    """Yield who ran what, where, with which versions, and what the columns mean."""
    run = results.run
    when = run.started_at or "at an unknown time"
    yield Text(f"{run.name}  run {run.run_id}  started {when}", style="bold")
    nodes = ", ".join(run.nodes[:4]) + (", ..." if len(run.nodes) > 4 else "")
    yield Text(f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')} ({nodes})")
    yield Text(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    yield from (Text(line) for line in _definitions(results))


def _definitions(results: Results) -> Iterator[str]:
    """Yield what the columns mean: mode and fold, which samples, interval, rates, clock."""
    ran = [item for item in results.cases if item.status in TABLED] or results.cases
    for mode, fold in dict.fromkeys(mode_and_fold(item) for item in ran):
        batches = distinct(sorted({item.case.batch for item in ran if item.case.mode == mode}))
        calls = f" ({batches} calls a sample)" if mode == "pipelined" else ""
        yield f"mode {mode}: {MODES[mode]}{calls}"
        yield f"  its time, fold {fold}: {FOLDS[fold]}"
    warmups = distinct(sorted({item.case.warmup for item in ran}))
    yield (f"time p50 = median over the n timed samples of {repeats_text(results.plan)}, "
           f"after {warmups} warm-ups" + _steady_words(results))
    yield f"CI = {INTERVAL_TITLE}: its farther end, in % of the median;"
    yield ("  - where there is none (n < 6), ? where it is not sound (n < 20, dependent samples, "
           "passes that differ)")
    for kind, items in items_by_kind(ran).items():
        if kind not in results.missing_kinds:
            yield from presenter_of(kind).definitions(items, results.derived.get(kind, {}))
    order = _order_text(results)
    yield clock_text(results, ran) + _clock_checks(results) + (f"; {order}" if order else "")


def _steady_words(results: Results) -> str:
    judged = any(item.timing is not None for item in results.cases)
    return "; samples before the steady state are left out" if judged else ""


def _clock_checks(results: Results) -> str:
    """Return the results of the checks of the synchronisation, where there was one."""
    clocks = results.clocks
    if clocks is None or not clocks.n_syncs:
        return ""
    error = "unchecked" if clocks.check_error_s is None else format_seconds(clocks.check_error_s)
    drift = "" if clocks.drift_ppm is None else f", drift {clocks.drift_ppm:.3g} ppm"
    return f" (largest error in checks {error}{drift})"


def _order_text(results: Results) -> str:
    measure = results.plan.config.get("measure", {})
    if "order" not in measure:
        return ""
    seed = f", seed {measure['seed']}" if measure["order"] == "shuffled" else ""
    return f"order of cases: {measure['order']}{seed}"
