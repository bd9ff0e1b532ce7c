"""The lines of the results tables, and of what stands below them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from hpcbench.kinds.collective.derive.rates import bandwidth
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.primitive.present.result_lines import DEFINITIONS
from hpcbench.kinds.training.present.result_lines import training_definitions
from hpcbench.measure.library_log import UNKNOWN
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import FOLDS, CaseResult, Results
from hpcbench.report.tables import STYLES, TABLED, wrong_cell
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    form_text,
    format_gb_per_s,
    format_us,
    header_lines,
    in_place_cell,
    plural,
    row_line,
    summarise_cases,
    type_cell,
)
from hpcbench.views.timing import (
    INTERVAL_TITLE,
    MODES,
    clock_text,
    flag_cell,
    fold_of,
    interval_cell,
    mode_and_fold,
    repeats_text,
)
from hpcbench.units import format_seconds

LABELS_SHOWN = 5
EVIDENCE_LINES = 6
SHOWN_FINDINGS = 3
OUTPUTS = ("results.h5", "summary.json", "summary.csv", "plots", "traces")
COLUMNS = (
    Column("size", "(B)"), Column("count", "(elem)"), Column("type", words=True),
    Column("redop", words=True), Column("root"), Column("place", words=True),
    Column("time p50", "(us)"), Column("CI", "+-%"), Column("p95", "(us)"),
    Column("algbw", "(GB/s)"), Column("busbw", "(GB/s)"), Column("#wrong"), Column("n"),
    Column("status", words=True), Column("launches", "(p50, us)"), Column("flags", words=True),
    Column("library", words=True),
)
ALWAYS = 14
"""So many of COLUMNS are shown although no row has anything in them."""


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
    kinds = {item.case.kind for item in ran}
    if "collective" in kinds:
        yield "algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B"
    if "primitive" in kinds:
        yield from DEFINITIONS
    if "training" in kinds:
        yield from training_definitions(ran)
    order = _order_text(results)
    yield clock_text(results, ran) + _clock_checks(results) + (f"; {order}" if order else "")


def _steady_words(results: Results) -> str:
    judged = any(item.timing is not None for item in results.cases)
    return "; samples before the steady state are left out" if judged else ""


def _clock_checks(results: Results) -> str:
    """Return what the checks of the synchronisation found, where there was one."""
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


def block_lines(name: str, items: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield one block's table: a group of rows per collective, backend, device, ranks and mode."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    rows = {item.case.case_id: _row(item) for group in groups.values() for item in group}
    shown = [at for at in range(len(COLUMNS))
             if at < ALWAYS or any(row[at] for row in rows.values())]
    columns = [COLUMNS[at] for at in shown]
    cells = {key: [row[at] for at in shown] for key, row in rows.items()}
    widths = column_widths(columns, cells.values())
    yield Text()
    yield Text(f"block {name}", style="bold")
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    for title, group in groups.items():
        yield Text(title, style="cyan")
        for item in sorted(group, key=_row_order):
            line = row_line(columns, widths, cells[item.case.case_id])
            yield Text(line, style=STYLES[item.status])


def _group_title(item: CaseResult) -> str:
    case = item.case
    parts = (collective_of(case).collective, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}",
             form_text(case), device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row_order(item: CaseResult) -> tuple[str, str, int, bool, int, int]:
    work = collective_of(item.case)
    return (work.dtype, work.op or "", work.root or 0, bool(work.in_place), work.size_bytes,
            item.case.index)


def _row(item: CaseResult) -> list[str]:
    case, work, stats = item.case, collective_of(item.case), item.statistics
    rates = bandwidth(work, case.world_size, stats.median_s) if stats else None
    return [
        str(work.size_bytes), str(work.count), type_cell(case), work.op or MISSING,
        MISSING if work.root is None else str(work.root), in_place_cell(case),
        format_us(stats.median_s if stats else None), interval_cell(stats),
        format_us(stats.p95_s if stats else None),
        format_gb_per_s(rates.algbw_bytes_per_s if rates else None),
        format_gb_per_s(rates.busbw_bytes_per_s if rates else None),
        wrong_cell(item), str(stats.n) if stats else MISSING, item.status,
        _launches_cell(item), flag_cell(item), _library_cell(item),
    ]


def _library_cell(item: CaseResult) -> str:
    """Return ``RING SIMPLE, 8 channels, P2P/CUMEM``: what libraries told of it, if they did."""
    told = {name: text for name, text in (item.library or {}).items() if text != UNKNOWN}
    call = " ".join(told[name] for name in ("algorithm", "protocol") if name in told)
    channels = f"{told['channels']} channels" if "channels" in told else ""
    return ", ".join(text for text in (call, channels, told.get("transport")) if text)


def _launches_cell(item: CaseResult) -> str:
    """Return the least and the greatest median of a launch; nothing for a single launch."""
    medians = item.timing.launch_medians_s if item.timing else ()
    return f"{format_us(min(medians))}..{format_us(max(medians))}" if len(medians) > 1 else ""


def outcome_lines(results: Results) -> Iterator[Text]:
    """Yield everything that is not ok, grouped by status, rank to blame and reason."""
    for status in ("wrong", "failed", "timeout", "skipped", "not_run"):
        items = [item for item in results.cases if item.status == status]
        if not items:
            continue
        yield Text()
        yield Text(f"{status}: {len(items)} of {plural(len(results.cases), 'case')}",
                   style=STYLES[status])
        groups: dict[tuple[str, int | None], list[CaseResult]] = defaultdict(list)
        for item in items:
            groups[item.reason, item.blamed_rank].append(item)
        for (reason, rank), group in groups.items():
            yield from _reason_lines(reason, rank, group)


def _reason_lines(reason: str, rank: int | None, group: list[CaseResult]) -> Iterator[Text]:
    blamed = "" if rank is None or "rank" in reason else f"rank {rank}: "
    yield Text(f"{len(group):>6} x  {blamed}{reason}")
    if group[0].status in ("skipped", "not_run"):
        yield Text(f"           {summarise_cases([item.case for item in group])}", style="dim")
        return
    for item in group[:LABELS_SHOWN]:
        yield Text(f"           {item.case.case_id}  {item.case.label}", style="dim")
    if len(group) > LABELS_SHOWN:
        yield Text(f"           and {len(group) - LABELS_SHOWN} more, see summary.csv", style="dim")
    yield from evidence_lines(group[0])


def evidence_lines(item: CaseResult) -> Iterator[Text]:
    """Yield what a worker left behind: the blamed rank's, or, if it is silent, another's stack."""
    blamed = str(item.blamed_rank)
    for rank in sorted(item.detail, key=lambda name: (name != blamed, int(name))):
        left = item.detail[rank]
        title, lines = "stack", str(left.get("stacks", "")).splitlines()[:EVIDENCE_LINES]
        if not lines and rank == blamed:
            title = "its last output"
            lines = str(left.get("output", "")).splitlines()[-EVIDENCE_LINES:]
        if lines:
            yield Text(f"           rank {rank}, {title}:", style="dim")
            yield from (Text(f"             {line}", style="dim") for line in lines)
            return


def finding_lines(results: Results) -> Iterator[Text]:
    """Yield what the checks found, by code; of many alike the first, the rest are in the files."""
    if results.findings:
        yield Text()
        yield Text("findings (docs/checks.md)", style="bold")
    alike: dict[tuple[str, str], list[str]] = {}
    for finding in results.findings:
        alike.setdefault((finding.code, finding.scope), []).append(finding.message)
    for (code, scope), messages in alike.items():
        style = "" if scope == "note" else "red"
        for message in messages[:SHOWN_FINDINGS]:
            yield Text(f"  {code}  [{scope}] {message}", style=style)
        if len(messages) > SHOWN_FINDINGS:
            yield Text(f"  {code}  [{scope}] and {len(messages) - SHOWN_FINDINGS} more like it: "
                       "see summary.json", style=style)


def closing_lines(results: Results, folder: Path) -> Iterator[Text]:
    """Yield the totals, which always add up, and the files that exist."""
    counts = Counter(item.status for item in results.cases)
    sums = " + ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield Text()
    yield Text(f"planned {len(results.plan.cases)} = {sums}", style="bold")
    found = [name for name in OUTPUTS if (folder / name).exists()]
    yield Text(f"in {folder}: {', '.join(found) if found else 'no files yet'}")
