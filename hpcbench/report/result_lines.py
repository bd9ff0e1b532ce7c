"""The lines of the results tables, and of what stands below them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from hpcbench.analysis.bandwidth import bandwidth
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import FOLD, CaseResult, Results
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
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
    transport_text,
    type_cell,
)

STYLES = {"ok": "", "wrong": "bold red", "failed": "red", "timeout": "red", "skipped": "yellow",
          "not_run": "yellow"}
TABLED = ("ok", "wrong", "failed", "timeout")
LABELS_SHOWN = 5
EVIDENCE_LINES = 6
SHOWN_FINDINGS = 3
OUTPUTS = ("results.h5", "summary.json", "summary.csv", "plots", "traces")
COLUMNS = (
    Column("size", "(B)"), Column("count", "(elem)"), Column("type", words=True),
    Column("redop", words=True), Column("root"), Column("in-place", words=True),
    Column("time p50", "(us)"), Column("p95", "(us)"), Column("algbw", "(GB/s)"),
    Column("busbw", "(GB/s)"), Column("#wrong"), Column("n"), Column("status", words=True),
)


def run_lines(results: Results) -> Iterator[Text]:
    """Yield who ran what, where, with which versions, and what the time column means."""
    run = results.run
    when = run.started_at or "at an unknown time"
    yield Text(f"{run.name}  run {run.run_id}  started {when}", style="bold")
    nodes = ", ".join(run.nodes[:4]) + (", ..." if len(run.nodes) > 4 else "")
    yield Text(f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')} ({nodes})")
    yield Text(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    modes = distinct(sorted({item.case.mode for item in results.cases}))
    warmups = distinct(sorted({item.case.warmup for item in results.cases}))
    yield Text(f"mode {modes}: time p50 = median over the n timed iterations of the {FOLD} of "
               f"end - start, after {warmups} warm-ups")
    yield Text("algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B")


def block_lines(name: str, items: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield one block's table: a group of rows per collective, backend, device and ranks."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    rows = {item.case.case_id: _row(item) for group in groups.values() for item in group}
    widths = column_widths(COLUMNS, rows.values())
    header = header_lines(COLUMNS, widths)
    yield Text()
    yield Text(f"block {name}", style="bold")
    for line in header:
        yield Text(line, style="dim")
    for title, group in groups.items():
        yield Text(title, style="cyan")
        for item in sorted(group, key=_row_order):
            line = row_line(COLUMNS, widths, rows[item.case.case_id])
            yield Text(line, style=STYLES[item.status])


def _group_title(item: CaseResult) -> str:
    case = item.case
    title = f"{case.workload.collective}  {case.backend} ({device_type(item)})  "
    title += plural(case.world_size, "rank")
    title += "".join(f"  {text}" for text in (form_text(case), transport_text(item)) if text)
    return f"{title}  {env_text(case)}".rstrip()


def _row_order(item: CaseResult) -> tuple[str, str, int, bool, int, int]:
    work = item.case.workload
    return (work.dtype, work.op or "", work.root or 0, bool(work.in_place), work.size_bytes,
            item.case.index)


def _row(item: CaseResult) -> list[str]:
    case, work, stats = item.case, item.case.workload, item.statistics
    rates = bandwidth(work, case.world_size, stats.median_s) if stats else None
    return [
        str(work.size_bytes), str(work.count), type_cell(case), work.op or MISSING,
        MISSING if work.root is None else str(work.root), in_place_cell(case),
        format_us(stats.median_s if stats else None), format_us(stats.p95_s if stats else None),
        format_gb_per_s(rates.algbw_bytes_per_s if rates else None),
        format_gb_per_s(rates.busbw_bytes_per_s if rates else None),
        _wrong_cell(item), str(stats.n) if stats else MISSING, item.status,
    ]


def _wrong_cell(item: CaseResult) -> str:
    if item.case.workload.collective == "barrier":
        return MISSING
    if item.n_wrong is not None:
        return str(item.n_wrong)
    return MISSING if item.case.validate else "unchecked"


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
