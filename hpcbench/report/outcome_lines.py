"""The lines below the tables of results: what was not ok, findings, totals and files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.spans import span_line
from hpcbench.report.table_lines import STATUS_STYLES
from hpcbench.views.words import plural

LABELS_SHOWN = 5
EVIDENCE_LINES = 6
SHOWN_FINDINGS = 3
OUTPUTS = ("results.h5", "summary.json", "summary.csv", "plots", "traces")


def outcome_lines(results: Results) -> Iterator[Text]:
    """Yield everything that is not ok, grouped by status, rank to blame and reason."""
    for status in ("wrong", "failed", "timeout", "skipped", "not_run"):
        items = [item for item in results.cases if item.status == status]
        if not items:
            continue
        yield Text()
        yield Text(f"{status}: {len(items)} of {plural(len(results.cases), 'case')}",
                   style=STATUS_STYLES[status])
        groups: dict[tuple[str, int | None], list[CaseResult]] = defaultdict(list)
        for item in items:
            groups[item.reason, item.blamed_rank].append(item)
        for (reason, rank), group in groups.items():
            yield from _reason_lines(reason, rank, group)


def _reason_lines(reason: str, rank: int | None, group: list[CaseResult]) -> Iterator[Text]:
    blamed = "" if rank is None or "rank" in reason else f"rank {rank}: "
    yield Text(f"{len(group):>6} x  {blamed}{reason}")
    if group[0].status in ("skipped", "not_run"):
        yield Text(f"           {span_line([item.case for item in group])}", style="dim")
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
    files = [name for name in OUTPUTS if (folder / name).exists()]
    yield Text(f"in {folder}: {', '.join(files) if files else 'no files yet'}")
