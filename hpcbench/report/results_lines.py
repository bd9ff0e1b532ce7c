"""The printed lines of results: those around the tables, the tables of a run, its details."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rich.text import Text

from hpcbench.answers.check import check_own_limits
from hpcbench.answers.topics import flag_meaning
from hpcbench.answers.verdict import checked_text
from hpcbench.errors import command_line, job_command_line
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import RESUME
from hpcbench.reduce.results import (
    CANARY_QUALITIES,
    FEWEST_FOR_DRIFT,
    QUALITIES,
    Canary,
    CaseResult,
    Results,
    RunInfo,
    fold_text,
)
from hpcbench.reduce.spread import launch_spreads, sample_counts, start_ups
from hpcbench.reduce.timing import FEWEST_LAUNCHES, FEWEST_PASSES
from hpcbench.reduce.topology import GpuMatrix, RankPlace, Topology
from hpcbench.report.answer_lines import reason_lines
from hpcbench.report.plan_lines import by_rule, in_order, note_lines, rule_line
from hpcbench.report.terminal import PAGE_COLUMNS, STATUS_STYLES, Sentence, table_lines
from hpcbench.trace.schema import STOP_REASONS
from hpcbench.units import digits, format_seconds, grouped, plural, rank_list, rough_time
from hpcbench.views.columns import (
    TABLED,
    clock_text,
    missing_passes_text,
    passes_text,
    slow_rank_lines,
    telemetry_tables,
)
from hpcbench.views.metric_tables import any_results
from hpcbench.views.presenter import Presenter, presenter_of
from hpcbench.views.table import (
    INTERVAL_TITLE,
    MODES,
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    cell_text,
    declared_links,
    distinct,
    fold_of,
    launches_title,
    mode_and_fold,
    timed_text,
)

NOT_OK = ("wrong", "failed", "timeout", "skipped", "not_run")
FAILED = ("wrong", "failed", "timeout", "not_run")
"""Statuses that no skip of the plan explains."""
LEFT_OUT = ("skipped", "not_run")
"""Statuses of cases that did not run."""
LABELS_SHOWN = 5
EVIDENCE_LINES = 6
CRASH, CRASHED_THREAD = "Fatal Python error:", "Current thread"
"""Beginnings of Python's faulthandler, and of its part on the thread that crashed, whose most
recent frame comes first; other threads may come before it."""
SHOWN_FINDINGS = 3
_INDENT = " " * 11


def header_line(results: Results) -> str:
    """Return the ranks, nodes and versions of a run, and whether its results were checked."""
    run = results.run
    if run.imported:
        return (f"imported: times that {' and '.join(run.imported)} printed, without intervals   "
                f"{_where(run) if run.nodes else plural(run.world_size, 'rank')}")
    versions = [_version_text(name, run.versions[name]) for name in ("torch", "mpi")
                if name in run.versions]
    return "   ".join((f"hpcbench {run.hpcbench_version}", _where(run), *versions,
                       *filter(None, (checked_text(results),))))


def _where(run: RunInfo) -> str:
    nodes = ", ".join(run.nodes[:4]) + (", ..." if len(run.nodes) > 4 else "")
    where = f"{plural(len(run.nodes), 'node')} ({nodes})" if nodes else (
        "unknown nodes (no rank has a trace)")
    return f"{plural(run.world_size, 'rank')} on {where}"


def _version_text(name: str, version: str) -> str:
    """Return ``torch 2.13.0``; for MPI ``MPICH 5.0.2`` or ``Open MPI 5.0.3``."""
    if name != "mpi":
        return f"{name} {version}"
    return re.sub(r" (?:Version:? *|v(?=\d))", " ", version).split(",")[0]


def count_lines(results: Results) -> Iterator[str]:
    """Yield how many cases were measured and are not ok, without zeros, and why some were skipped.
    """
    counts = Counter(item.status for item in results.cases)
    is_resumed = any(finding.code == "HB150" for finding in results.findings)
    took_s = None if is_resumed else results.lasted_s  # some cases may be of an earlier attempt
    parts = [f"{counts['ok']} of {plural(len(results.cases), 'case')} measured"
             + ("" if took_s is None else f" in {rough_time(took_s)}")]
    parts += [f"incomplete: {passes}"] if (passes := missing_passes_text(results)) else []
    parts += [f"{counts[status]} {status.replace('_', ' ')}" for status in FAILED if counts[status]]
    parts += [f"{counts['skipped']} skipped"] if counts["skipped"] else []
    reasons = [f"{len(cases)} x {short_reason(rule)}" for rule, cases in sorted(
        skip_rules(results).items(), key=lambda pair: -len(pair[1]))]
    line = ", ".join(parts)
    if len(text := f"{line}: {', '.join(reasons)}") <= PAGE_COLUMNS:
        yield text if reasons else line
    else:
        yield line
        yield from (f"  {one}" for one in reasons)


def short_reason(text: str) -> str:
    """Return the text before a reason's colon, or the first clause if that is a setting alone."""
    first = text.split(": ")[0]
    return first if len(first.split()) > 2 else re.split("[,;] ", text)[0]


def skip_rules(results: Results) -> Mapping[str, Sequence[Case]]:
    return by_rule((item.reason, item.case) for item in results.cases if item.status == "skipped")


def run_lines(results: Results) -> Iterator[Text]:
    run = results.run
    when = run.started_at or "at an unknown time"
    yield Sentence(f"{run.name}  run {run.run_id or 'of unknown id'}  started {when}", 2, "bold")
    yield Sentence(_where(run), 2)
    if run.versions:
        yield Sentence(", ".join(f"{name} {version}" for name, version in run.versions.items()), 2)
    if links := declared_links(results.plan.config):
        yield Sentence(links)
    yield from fault_lines(results)
    yield from note_lines(results.plan)


def fault_lines(results: Results) -> Iterator[Text]:
    if text := results.run.injected:
        yield Sentence(text, 2, "bold red")


def outcome_lines(
    results: Results, statuses: Sequence[str] = NOT_OK, *, full: bool = False,
) -> Iterator[Text]:
    """Yield the cases that are not ok, by status, rank to blame and reason; ``full``: all labels.
    """
    for status in statuses:
        alike = [item for item in results.cases if item.status == status]
        if not alike:
            continue
        yield Text()
        yield Text(f"{status}: {len(alike)} of {plural(len(results.cases), 'case')}",
                   style=STATUS_STYLES[status])
        if status in LEFT_OUT and not full:
            rules = by_rule((item.reason, item.case) for item in alike)
            yield from (rule_line(rule, cases) for rule, cases in rules.items())
            continue
        groups = grouped(((item.reason, item.blamed_rank), item) for item in alike)
        for (reason, rank), group in groups.items():
            blamed = "" if rank is None or "rank" in reason else f"rank {rank}: "
            yield Sentence(f"{len(group):>6} x  {blamed}{reason}", 10)
            yield from (Sentence(f"{_INDENT}{line}", len(_INDENT) + 4, "dim")
                        for line in _group_lines(group, full=full))


def _group_lines(group: list[CaseResult], *, full: bool) -> Iterator[str]:
    """Yield the cases of one outcome, and the evidence of a worker of the first."""
    shown = group if full else group[:LABELS_SHOWN]
    for item in shown:
        yield f"{item.case.case_id}  {item.case.label}"
    if len(group) > len(shown):
        yield f"and {len(group) - len(shown)} more, see summary.csv"
    if group[0].status not in LEFT_OUT:
        yield from evidence_of(group[0], None if full else EVIDENCE_LINES)


def evidence_of(item: CaseResult, most: int | None) -> Iterator[str]:
    """Yield the blamed rank's stack or last output, or, if it is silent, another's stack."""
    blamed = str(item.blamed_rank)
    for rank in sorted(item.detail, key=lambda name: (name != blamed, int(name))):
        left = item.detail[rank]
        title, lines = "stack", str(left.get("stacks", "")).splitlines()[:most]
        if not lines and rank == blamed:
            title = "its last output"
            lines = str(left.get("output", "")).splitlines()
            lines = lines if most is None else _last_lines(lines, most)
        if lines:
            yield f"rank {rank}, {title}:"
            yield from (f"  {line}" for line in lines)
            return


def _last_lines(lines: list[str], most: int) -> list[str]:
    """Return the last lines; for a crash its name and the nearest frames, which come first."""
    crash = next((at for at, line in enumerate(lines) if line.startswith(CRASH)), None)
    if crash is None:
        return lines[-most:]
    after = [line for line in lines[crash + 1:] if line.strip()]
    thread = next((at for at, line in enumerate(after) if line.startswith(CRASHED_THREAD)), 0)
    return [lines[crash], *after[thread:]][:most]


def finding_lines(results: Results, *, full: bool = False) -> Iterator[Text]:
    """Yield the findings of the checks, by code: the first ones of each, or in ``full`` all."""
    if results.findings:
        yield Text()
        yield Text("findings (explained in docs/checks.md)", style="bold")
    alike = grouped(((finding.code, finding.scope), finding.message)
                    for finding in results.findings)
    for (code, scope), messages in alike.items():
        shown = list(messages) if full else messages[:SHOWN_FINDINGS]
        if len(messages) > len(shown):
            shown.append(f"and {len(messages) - SHOWN_FINDINGS} more: see summary.json")
        for message in shown:
            text = f"warning[{code}]" if scope == "note" else f"error[{code}] ({scope})"
            yield Sentence(f"  {text}: {message}", 4, "" if scope == "note" else "red")


def with_commands(results: Results, folder: Path | str) -> Results:
    """Return the results with their ranks and folder in the commands that their findings name."""
    again = job_command_line(results.run.world_size, "run", "--resume", folder)
    return replace(results, findings=tuple(
        replace(one, message=one.message.replace(RESUME, again)) for one in results.findings))


def closing_lines(results: Results, folder: Path) -> Iterator[Text]:
    """Yield the report and the next commands; ``folder`` may be a results file, too."""
    yield from fault_lines(results)
    parts = {"report": str(folder / "report.html")} if (folder / "report.html").exists() else {}
    parts["details"] = command_line("show", folder, "-v")
    if any(item.timing is not None for item in results.cases):
        parts["next"] = command_line("advise", folder)
    line = "     ".join(f"{name}: {text}" for name, text in parts.items())
    if len(line) <= PAGE_COLUMNS:
        yield Text(line)
    else:
        yield from (Text(f"{f'{name}:':<9}{text}") for name, text in parts.items())


_LIMITS_SHOWN = 3


def limit_lines(results: Results, prefix: str = "") -> Iterator[Line]:
    """Yield each limit of the sweep that does not hold, or after ``prefix`` that they all do."""
    checked = check_own_limits(results)
    if checked is not None:
        yield from (Line(line, "warning") for line in reason_lines(checked))
        if not checked.reasons:
            more = checked.n_limits - _LIMITS_SHOWN
            yield Line(f"{prefix}{plural(checked.n_limits, 'limit')} of the sweep met: "
                       + "; ".join(checked.limits[:_LIMITS_SHOWN])
                       + f"; and {more} more" * (more > 0))


def items_by_kind(items: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    of_kind = grouped((item.case.kind, item) for item in items)
    return {kind: of_kind[kind] for kind in in_order(of_kind)}


def brief_tables_of(results: Results) -> Iterator[Table]:
    """Yield the tables of a run with varying columns only, and without details."""
    passes = f", median of the samples of {passes_text(results)}"
    for tables in _blocks(results, results.cases, ""):
        own = [table for table in tables if table.is_brief]
        for table in own or [table.brief() for table in tables if not table.detail]:
            yield replace(table, title=f"{table.title}{passes}")
    for kind, items in items_by_kind(results.cases).items():
        yield from (table.brief() for table in _overviews(results, kind, items)
                    if table.columns and not table.detail)


def tables_of(results: Results) -> Iterator[Table]:
    """Yield the tables of all blocks in the order of the plan, then the overviews of each kind."""
    yield from (table for tables in _blocks(results, results.cases, "block ") for table in tables
                if not table.is_brief)
    below = [table for kind, items in items_by_kind(results.cases).items()
             for table in _overviews(results, kind, items)]
    yield from (table for table in below if table.columns)
    remarks = grouped((table.lead, table.title) for table in below if not table.columns)
    yield from (Table(", ".join(titles), (), (), lead) for lead, titles in remarks.items())


def tables_of_kind(results: Results, kind: str) -> Iterator[Table]:
    """Yield the tables of a kind: of a block that has one for the end of a run that one, before its
    others, which then are details."""
    items = [item for item in results.cases if item.case.kind == kind]
    for tables in _blocks(results, items, "block "):
        own = [table for table in tables if table.is_brief]
        yield from (table.shared_above() if len(table.rows) > 1 else table for table in own)
        yield from (replace(table, detail=table.detail or bool(own)) for table in tables
                    if not table.is_brief)
    yield from _overviews(results, kind, items)


def _blocks(
    results: Results, items: Sequence[CaseResult], before: str,
) -> Iterator[Sequence[Table]]:
    """Yield the tables of each block, whose titles begin with ``before``."""
    blocks = grouped(((item.case.block, item.case.kind), item) for item in items)
    presenters = {kind: _presenter(results, kind) for _, kind in blocks}
    # a case that the plan skips, such as one of more ranks than the job has, stands first in it
    planned = dict.fromkeys((item.case.block, item.case.kind) for item in items
                            if item.case.skip is None)
    for block, kind in dict.fromkeys((*planned, *blocks)):
        of_block, derived = blocks[block, kind], results.derived.get(kind, {})
        tables = presenters[kind].tables(f"{before}{block}", of_block, derived)
        yield list(any_results(f"{before}{block}", of_block) if tables is None else tables)


def _overviews(results: Results, kind: str, items: Sequence[CaseResult]) -> Iterator[Table]:
    yield from (shown for shown in _presenter(results, kind).overviews(
        items, results.derived.get(kind, {})) if isinstance(shown, Table))


def _presenter(results: Results, kind: str) -> Presenter[Any, Any]:
    """Return a kind's presenter; without records of the kind, that of any kind."""
    return Presenter() if kind in results.missing_kinds else presenter_of(kind)


def how_lines(results: Results) -> Iterator[str]:
    """Yield repeats, clock and order, and the meaning of the modes that tables name."""
    ran = _ran(results)
    yield (f"{passes_text(results)}, after {_warmups_text(ran)}; {clock_text(results, ran)}"
           f"{_order_text(results)}")
    timed = {timed_text(item): fold_of(item) for item in ran if item.statistics is not None}
    yield from (f"{text}: {fold_text(fold)}" for text, fold in timed.items())


def _ran(results: Results) -> Sequence[CaseResult]:
    return [item for item in results.cases if item.status in TABLED] or results.cases


def _warmups_text(ran: Sequence[CaseResult]) -> str:
    counts = sorted({item.case.warmup for item in ran})
    return plural(counts[0], "warm-up") if len(counts) == 1 else (
        f"{' or '.join(map(str, counts))} warm-ups")


def definition_lines(results: Results) -> Iterator[str]:
    """Yield the meaning of the columns: mode and fold, samples, interval, rates, clock, flags."""
    ran = _ran(results)
    for mode, fold in dict.fromkeys(mode_and_fold(item) for item in ran):
        batches = distinct(sorted({item.case.batch for item in ran if item.case.mode == mode}))
        calls = f" ({batches} calls a sample)" if mode == "pipelined" else ""
        yield f"mode {mode}: {MODES[mode]}{calls};"
        yield f"  its time, fold {fold}: {fold_text(fold)}"
    judged = any(item.timing is not None for item in results.cases)
    yield (f"time p50 = median over the n timed samples of {passes_text(results)}, "
           f"after {_warmups_text(ran)}"
           + (f"; {_left_out(results)}" if judged else ""))
    yield f"95 % CI = {INTERVAL_TITLE}, from its lower to its upper end;"
    yield ("  - where there is none (n < 6), ? where it cannot be trusted (n < 20, dependent "
           f"samples, passes that differ); from {FEWEST_PASSES} passes on these give one of their "
           "medians instead;")
    if launches := launches_title(results.cases):
        yield (f"  of several launches it is one of their medians, and there is none of fewer than "
               f"{FEWEST_LAUNCHES};")
        yield f"launches = {launches}"
    yield from dict.fromkeys(  # kinds share some
        shown.text for kind, items in items_by_kind(ran).items()
        if kind not in results.missing_kinds
        for shown in presenter_of(kind).overviews(items, results.derived.get(kind, {}))
        if isinstance(shown, Line) and shown.topic is None)
    if checks := _clock_checks(results):
        yield f"clocks were synchronised{checks}"
    used = {flag for item in ran if item.timing for flag in item.timing.quality}
    for flag in (flag for flag in QUALITIES if flag in used):
        yield f"flag {flag_meaning(flag)}"


def column_lines(tables: Iterable[Table], definitions: Iterable[str]) -> Iterator[str]:
    """Yield the meaning of each column that the ``definitions`` do not give as ``TITLE = ...``;
    those of flags do not count."""
    text = "\n".join(line for line in definitions if not line.startswith("flag "))
    yield from dict.fromkeys(
        f"column {column.title}: {column.meaning}"
        for table in tables for column in table.without_empty().columns
        if column.meaning and not re.search(rf"(?<!\w){re.escape(column.title)}( =|:)", text))


def _left_out(results: Results) -> str:
    counts = {item.timing.all_count for item in results.cases if item.timing}
    auto = "samples before the steady state are left out"
    if counts == {True}:
        return "all of them count"
    return auto if counts == {False} else f"{auto} unless the number of iterations was given"


def _clock_checks(results: Results) -> str:
    clocks = results.clocks
    if clocks is None or not clocks.n_syncs:
        return ""
    error = "unchecked" if clocks.check_error_s is None else format_seconds(clocks.check_error_s)
    drift = "" if clocks.drift_ppm is None else f", drift {digits(clocks.drift_ppm, 3)} ppm"
    return f" (largest error in checks {error}{drift})"


def _order_text(results: Results) -> str:
    measure = results.plan.config.get("measure", {})
    if "order" not in measure:
        return ""
    seed = f", seed {measure['seed']}" if measure["order"] == "shuffled" else ""
    return f"; order of cases: {measure['order']}{seed}"


MOST_PLACES = 64
"""Rows that are shown; results.h5 has all."""
_PLACES = (
    Column("ranks", "ranks"), Column("host", "host"), Column("cpus", "cores", optional=True),
    Column("numa", "NUMA nodes", optional=True), Column("gpu", "GPU", optional=True),
    Column("fabric", "NVLink domain", optional=True),
    Column("switches", "switches", meaning="Slurm's, from the top to the leaf", optional=True))
_LEGEND = (
    "X itself; NV# that many NVLinks; PSB one PCIe switch on their board; PIX one PCIe bridge; "
    "PXB several;",
    "PHB a host bridge; NODE the interconnect within a NUMA node; SYS that between NUMA nodes")


def topology_tables(results: Results) -> Iterator[Table]:
    """Yield the places of ranks, and a matrix for each way in which GPUs of a node are joined."""
    topology = results.topology
    if topology.ranks:
        yield _places_table(topology)
    # matrices that differ in more than names, with the hosts that have them
    matrices = grouped(
        (GpuMatrix((), matrix.cpus, matrix.numa_nodes, matrix.links), one.hostname)
        for one in topology.ranks if one.matrix is not None
        for matrix in (topology.gpus[one.matrix],))
    for matrix, hosts in matrices.items():
        yield _matrix_table(matrix, list(dict.fromkeys(hosts)))


def _places_table(topology: Topology) -> Table:
    """Return a row for each place; ranks that share one stand together."""
    alike = grouped((_place_cells(one), one.rank) for one in topology.ranks)
    rows = [Row((rank_list(ranks), *cells)) for cells, ranks in alike.items()]
    left = len(rows) - MOST_PLACES
    notes = (Line(f"and {left} more places, in results.h5 (/topology)", "quiet"),)
    return Table("where ranks ran", _PLACES, (Group("", tuple(rows[:MOST_PLACES])),),
                 notes=notes if left > 0 else ())


def _place_cells(one: RankPlace) -> tuple[str | None, ...]:
    numa = None if one.numa_nodes is None else rank_list(one.numa_nodes)
    gpu = None if one.gpu is None else f"GPU{one.gpu}"
    return one.hostname, one.cpus, numa, gpu, one.fabric, ".".join(one.switches or ()) or None


def _matrix_table(matrix: GpuMatrix, hosts: list[str]) -> Table:
    """Return the matrix of the GPUs, as nvidia-smi topo -m shows it."""
    names = [f"GPU{number}" for number in range(len(matrix.links))]
    columns = (Column("gpu", ""), *(Column(name.lower(), name) for name in names),
               Column("cpus", "CPU affinity", optional=True),
               Column("numa", "NUMA affinity", Show.COUNT, optional=True))
    rows = tuple(
        Row((name, *(link or "?" for link in links), cpus, numa))
        for name, links, cpus, numa in zip(
            names, matrix.links, matrix.cpus, matrix.numa_nodes, strict=True))
    where = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return Table(f"GPUs of {where}", columns, (Group("", rows),),
                 notes=tuple(Line(text, "quiet") for text in _LEGEND))


_START_UP_COLUMNS = (
    Column("backend", "backend"), Column("ranks", "ranks", Show.COUNT),
    Column("communicator", "group opened in", Show.DURATION, better="less"),
    Column("first_call", "first call", Show.DURATION, better="less"),
    Column("ends", "passes ended"),
)


def detail_lines(results: Results) -> Iterator[Text]:
    """Yield how many samples of each sort there are, slow ranks, start-up, launches, the canary."""
    if any(item.timing is not None for item in results.cases):
        yield Text()
        yield from (Sentence(line, 4) for line in _sample_lines(results))
        yield from map(Sentence, slow_rank_lines(results))
    yield from chain.from_iterable(map(table_lines, start_up_tables(results)))
    yield from _canary_lines(results)
    for table in (*topology_tables(results), *telemetry_tables(results)):
        yield from table_lines(table)


def _sample_lines(results: Results) -> Iterator[str]:
    counts = sample_counts(results.cases)
    # samples that count, and would not if passes had stopped by themselves
    flagged = ((counts["counted_ramp"], "before the steady state"),
               (counts["counted_surplus"], "beyond the shortest steady pass"))
    more = "".join(f", {count} {text}" for count, text in flagged if count)
    yield (f"samples: {counts['counted']} counted ({counts['late']} late, {counts['outlier']} "
           f"above median + 10 MAD{more}); kept but not counted:")
    yield (f"  {counts['warmup']} warm-ups, {counts['ramp']} before the steady state, "
           f"{counts['surplus']} left out so that all passes of a case weigh the same")
    if spreads := launch_spreads(results.cases):
        middle = f"{spreads.middle:.1%} in the median case, and by "
        yield (f"launches differ by {middle if spreads.middle < spreads.widest else ''}"
               f"{spreads.widest:.1%} in {spreads.widest_case.case.label}")


def start_up_tables(results: Results) -> Iterator[Table]:
    """Yield a row for each backend and number of ranks, where cases have times."""
    rows = tuple(Row((
        one.backend, one.world_size, one.communicator_s, one.first_call_s,
        ", ".join(f"{count} {reason}" for reason in STOP_REASONS
                  if (count := one.stop_reasons.get(reason)))))
        for one in start_ups(results.cases))
    if any(item.timing is not None for item in results.cases):
        yield Table("start-up (the longest of any rank and case), and why passes ended",
                    _START_UP_COLUMNS, (Group("", rows),))


def _canary_lines(results: Results) -> Iterator[Text]:
    """Yield the drift of the machine, by the canary; or that it is unknown."""
    canary = results.canary
    configured = results.plan.config.get("measure", {}).get("canary")
    if canary is None:
        if configured is not None:
            why = "none ran" if configured else "switched off"
            yield Sentence(f"canary (a small all_reduce between cases): {why}, so whether the "
                           "machine drifted is unknown")
        return
    text = f"canary (between cases, {canary.label}): {plural(len(canary.runs), 'run')}"
    text += f", {canary.n_not_ok} more not ok" if canary.n_not_ok else ""
    text += _canary_course(canary)
    flags = [f"{flag}: {CANARY_QUALITIES[flag]}" for flag in canary.quality]
    yield Sentence("; ".join([text, *flags]), style="yellow" if flags else "")


def _canary_course(canary: Canary) -> str:
    if len(canary.runs) < 2:
        return ""
    ends = [cell_text(end(run.median_s for run in canary.runs), Show.US) for end in (min, max)]
    text = f" in {format_seconds(canary.runs[-1].since_start_s)}; medians {'..'.join(ends)} us"
    if canary.drift is None or canary.tau is None:
        return f"{text}; drift: fewer than {FEWEST_FOR_DRIFT} runs cannot tell"
    drift = f"drift {canary.drift:+.1%}" if canary.is_drifting else "no steady drift"
    return f"{text}; {drift} (tau {canary.tau:+.2f})"
