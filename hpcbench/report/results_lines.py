"""The lines around the tables of results: the run above; quality, outcomes and totals below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plan_lines import in_order, note_lines, rule_line
from hpcbench.report.table_lines import STATUS_STYLES
from hpcbench.units import grouped, plural
from hpcbench.views.faults import injected_text
from hpcbench.views.links import declared_links
from hpcbench.views.rules import by_rule
from hpcbench.views.table import Column, Show

NOT_OK = ("wrong", "failed", "timeout", "skipped", "not_run")
FAILED = ("wrong", "failed", "timeout", "not_run")
"""Statuses that no skip of the plan explains."""
LEFT_OUT = ("skipped", "not_run")
"""Statuses of cases that did not run."""
LABELS_SHOWN = 5
EVIDENCE_LINES = 6
CRASH, CRASHED_THREAD = "Fatal Python error:", "Current thread"
"""How Python's faulthandler begins, and the part on the thread that crashed, of which the most
recent frame comes first; other threads may come before it."""
SHOWN_FINDINGS = 3
OUTPUTS = ("report.html", "results.h5", "summary.json", "summary.csv", "plots", "traces", "profile")
_INDENT = " " * 11
_START_UP_COLUMNS = (
    Column("backend", "backend"), Column("ranks", "ranks", Show.COUNT),
    Column("communicator", "group opened in", Show.DURATION, better="less"),
    Column("first_call", "first call", Show.DURATION, better="less"),
    Column("ends", "passes ended"),
)


def run_lines(results: Results) -> Iterator[Text]:
    """Yield who ran what, where, and with which versions."""
    run = results.run
    when = run.started_at or "at an unknown time"
    yield Text(f"{run.name}  run {run.run_id or 'of unknown id'}  started {when}", style="bold")
    nodes = ", ".join(run.nodes[:4]) + (", ..." if len(run.nodes) > 4 else "")
    where = f"on {plural(len(run.nodes), 'node')} ({nodes})" if nodes else (
        "on unknown nodes: there is no trace of any rank")
    yield Text(f"{plural(run.world_size, 'rank')} {where}")
    if run.versions:
        yield Text(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    if links := declared_links(results.plan.config):
        yield Text(links)
    yield from fault_lines(results)
    yield from note_lines(results.plan)


def fault_lines(results: Results) -> Iterator[Text]:
    """Yield which faults were injected."""
    if text := injected_text(results.run):
        yield Text(text, style="bold red")


def title_lines(results: Results) -> Iterator[Text]:
    """Yield the title of the tables, where the config gives one."""
    if title := results.plan.config.get("title"):
        yield Text()
        yield Text(title, style="bold")


def outcome_lines(
    results: Results, statuses: Sequence[str] = NOT_OK, *, full: bool = False,
) -> Iterator[Text]:
    """Yield everything that is not ok, grouped by status, rank to blame and reason.

    ``full``: every case by its label, and all that a worker left behind.
    """
    for status in statuses:
        same = [item for item in results.cases if item.status == status]
        if not same:
            continue
        yield Text()
        yield Text(f"{status}: {len(same)} of {plural(len(results.cases), 'case')}",
                   style=STATUS_STYLES[status])
        if status in LEFT_OUT and not full:
            yield from left_out_lines(same)
            continue
        groups = grouped(((item.reason, item.blamed_rank), item) for item in same)
        for (reason, rank), group in groups.items():
            blamed = "" if rank is None or "rank" in reason else f"rank {rank}: "
            yield Text(f"{len(group):>6} x  {blamed}{reason}")
            yield from (Text(f"{_INDENT}{line}", style="dim")
                        for line in _group_lines(group, full=full))


def left_out_lines(items: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield one line a rule: how many cases were left out for it, and what they span."""
    for rule, same in by_rule(((item.reason, item) for item in items),
                              lambda item: item.case).items():
        yield rule_line(rule, [item.case for item in same])


def _group_lines(group: list[CaseResult], *, full: bool) -> Iterator[str]:
    """Yield which cases have one outcome, and what a worker of the first left behind."""
    shown = group if full else group[:LABELS_SHOWN]
    for item in shown:
        yield f"{item.case.case_id}  {item.case.label}"
    if len(group) > len(shown):
        yield f"and {len(group) - len(shown)} more, see summary.csv"
    if group[0].status not in LEFT_OUT:
        yield from evidence_of(group[0], None if full else EVIDENCE_LINES)


def evidence_of(item: CaseResult, most: int | None) -> Iterator[str]:
    """Yield what a worker left behind: the blamed rank's, or, if it is silent, another's stack."""
    blamed = str(item.blamed_rank)
    for rank in sorted(item.detail, key=lambda name: (name != blamed, int(name))):
        left = item.detail[rank]
        title, lines = "stack", str(left.get("stacks", "")).splitlines()[:most]
        if not lines and rank == blamed:
            title = "its last output"
            lines = str(left.get("output", "")).splitlines()
            lines = lines if most is None else _telling(lines, most)
        if lines:
            yield f"rank {rank}, {title}:"
            yield from (f"  {line}" for line in lines)
            return


def _telling(lines: list[str], most: int) -> list[str]:
    """Return the last lines; of a crash its name and the frames nearest to it, which come first."""
    crash = next((at for at, line in enumerate(lines) if line.startswith(CRASH)), None)
    if crash is None:
        return lines[-most:]
    told = [line for line in lines[crash + 1:] if line.strip()]
    thread = next((at for at, line in enumerate(told) if line.startswith(CRASHED_THREAD)), 0)
    return [lines[crash], *told[thread:]][:most]


def finding_lines(results: Results, *, full: bool = False) -> Iterator[Text]:
    """Yield what the checks found, by code; of many alike the first, the rest are in the files.

    ``full``: all of them.
    """
    if results.findings:
        yield Text()
        yield Text("findings (docs/checks.md)", style="bold")
    alike = grouped(((finding.code, finding.scope), finding.message)
                    for finding in results.findings)
    for (code, scope), messages in alike.items():
        shown = list(messages) if full else messages[:SHOWN_FINDINGS]
        if len(messages) > len(shown):
            shown.append(f"and {len(messages) - SHOWN_FINDINGS} more like it: see summary.json")
        for message in shown:
            yield Text(f"  {code}  [{scope}] {message}", style="" if scope == "note" else "red")


def closing_lines(results: Results, folder: Path) -> Iterator[Text]:
    """Yield the totals, which always add up, and the files that exist in a run's folder.

    A results file on its own is given as ``folder``.
    """
    counts = Counter(item.status for item in results.cases)
    sums = " + ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield Text(f"planned {len(results.plan.cases)} = {sums}", style="bold")
    yield from fault_lines(results)
    if folder.is_file():
        yield Text(f"read from {folder}")
        return
    drawn = any(item.status == "ok" for item in results.cases)  # else plots are of earlier results
    files = [name for name in OUTPUTS if (folder / name).exists() and (drawn or name != "plots")]
    yield Text(f"in {folder}: {', '.join(files) if files else 'no files yet'}")


def items_by_kind(items: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of each kind, in the order of `in_order`."""
    of_kind = grouped((item.case.kind, item) for item in items)
    return {kind: of_kind[kind] for kind in in_order(of_kind)}
