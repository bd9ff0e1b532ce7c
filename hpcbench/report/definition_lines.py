"""What the times of a run are: said above its tables, and column by column with --explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.kinds.registry import presenter_of
from hpcbench.reduce.precision import FEWEST_LAUNCHES, FEWEST_PASSES
from hpcbench.reduce.qualities import QUALITIES
from hpcbench.reduce.results import FOLDS, CaseResult, Results
from hpcbench.report.results_lines import items_by_kind
from hpcbench.units import format_seconds, plural
from hpcbench.views.columns import TABLED
from hpcbench.views.ending import flag_meaning
from hpcbench.views.said_once import NOT, Shared
from hpcbench.views.timing import (
    INTERVAL_TITLE,
    MODES,
    clock_text,
    launches_title,
    mode_and_fold,
    repeats_text,
    timed_text,
)
from hpcbench.views.words import distinct


def how_lines(results: Results, shared: Shared) -> Iterator[str]:
    """Yield what holds for nearly all rows: repeats, clock, order, mode and flags."""
    ran = _ran(results)
    yield (f"{repeats_text(results.plan)}, after {_warmups_text(ran)}; {clock_text(results, ran)}"
           f"{_order_text(results)}")
    if shared.timed:
        folds = {timed_text(item): item for item in ran}
        meaning = FOLDS[mode_and_fold(folds[shared.timed])[1]] if shared.timed in folds else ""
        yield (f"times are {shared.timed} ({meaning})"
               + ("" if len(folds) == 1 else ", unless a heading names another mode"))
    if shared.words:
        told = ", ".join(f"{word} ({count} of {shared.n_rows} rows)"
                         for word, count in shared.words.items())
        some = next((word for word, count in shared.words.items() if count < shared.n_rows), None)
        yield f"flags: {told}" + (f"; other rows say: {NOT} {some}" if some else "")


def _ran(results: Results) -> Sequence[CaseResult]:
    return [item for item in results.cases if item.status in TABLED] or results.cases


def _warmups_text(ran: Sequence[CaseResult]) -> str:
    """Return ``1 warm-up``, or ``5,10 warm-ups``."""
    counts = sorted({item.case.warmup for item in ran})
    return plural(counts[0], "warm-up") if len(counts) == 1 else f"{distinct(counts)} warm-ups"


def definition_lines(results: Results) -> Iterator[str]:
    """Yield what the columns mean: mode and fold, which samples, interval, rates, clock."""
    ran = _ran(results)
    for mode, fold in dict.fromkeys(mode_and_fold(item) for item in ran):
        batches = distinct(sorted({item.case.batch for item in ran if item.case.mode == mode}))
        calls = f" ({batches} calls a sample)" if mode == "pipelined" else ""
        yield f"mode {mode}: {MODES[mode]}{calls};"
        yield f"  its time, fold {fold}: {FOLDS[fold]}"
    judged = any(item.timing is not None for item in results.cases)
    yield (f"time p50 = median over the n timed samples of {repeats_text(results.plan)}, "
           f"after {_warmups_text(ran)}"
           + (f"; {_left_out(results)}" if judged else ""))
    yield f"95 % interval = {INTERVAL_TITLE}, from its lower to its upper end;"
    yield ("  - where there is none (n < 6), ? where it cannot be trusted (n < 20, dependent "
           f"samples, passes that differ); from {FEWEST_PASSES} passes on these give one of their "
           "medians instead;")
    if launches := launches_title(results.cases):
        yield (f"  of several launches it is one of their medians, and there is none of fewer than "
               f"{FEWEST_LAUNCHES};")
        yield f"launches = {launches}"
    yield from dict.fromkeys(  # kinds share some
        line for kind, items in items_by_kind(ran).items() if kind not in results.missing_kinds
        for line in presenter_of(kind).definitions(items, results.derived.get(kind, {})))
    if checks := _clock_checks(results):
        yield f"clocks were synchronised{checks}"
    used = {word for item in ran if item.timing for word in item.timing.quality}
    for word in (word for word in QUALITIES if word in used):
        yield f"flag {flag_meaning(word)}"


def _left_out(results: Results) -> str:
    """Return which timed samples count."""
    counts = {item.timing.all_count for item in results.cases if item.timing}
    auto = "samples before the steady state are left out"
    if counts == {True}:
        return "all of them count"
    return auto if counts == {False} else f"{auto} unless the number of iterations was given"


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
    return f"; order of cases: {measure['order']}{seed}"


