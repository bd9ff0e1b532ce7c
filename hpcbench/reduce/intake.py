"""Which traces belong to the run: others are named with the reason, and their ranks are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpcbench.plan.case import Plan
from hpcbench.reduce.checks import RESUME
from hpcbench.reduce.results import Finding
from hpcbench.trace.attempts import attempt_folder, attempt_of, is_later_attempt
from hpcbench.trace.chunks import ChunkMemory
from hpcbench.trace.journal import journal_path, read_journal
from hpcbench.trace.schema import same_version
from hpcbench.trace.sealed import open_trace, trace_path
from hpcbench.trace.source import APART_NOTE, TraceSource, UnreadableTrace, never_ended, noted
from hpcbench.trace.tables import Known
from hpcbench.units import grouped, rank_list

Value = TypeVar("Value")
Rejections = Iterator[tuple[TraceSource, str]]
"""Traces that are left out, and why."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Intake:
    """The traces in use, by rank, and the findings about them."""

    sources: Mapping[int, TraceSource]
    findings: tuple[Finding, ...]


def name_of(source: TraceSource) -> str:
    """Return the rank and the file of a trace, as messages name it."""
    folder = source.path.parent.name
    return (f"rank {source.header.rank} ("
            f"{f'{folder}/' if is_later_attempt(source.path.parent) else ''}{source.path.name})")


def open_traces(traces: Path) -> tuple[list[TraceSource], list[Finding]]:
    """Open every trace of one attempt's folder, sealed ones rather than their journals.

    Returns the readable ones, and a finding for every other file.
    """
    sources: list[TraceSource] = []
    findings: list[Finding] = []
    sealed: set[str] = set()
    known: Known = {}
    chunks = ChunkMemory()
    for path in sorted(traces.iterdir()) if traces.is_dir() else []:
        if is_later_attempt(path):
            continue
        useless = ("neither a trace nor a journal" if path.suffix not in (".h5", ".journal") else
                   "the sealed trace beside it holds all of it" if path.stem in sealed else "")
        if useless:
            findings.append(Finding(
                "HB103", "note", f"{path}: {useless}: it is ignored and can be deleted"))
            continue
        try:
            sources.append(read_journal(path) if path.suffix == ".journal"
                           else open_trace(path, known, chunks))
            sealed.add(path.stem)
        except UnreadableTrace as error:
            findings.append(Finding(error.code, "rank", f"{error}; it is left out"))
    return sources, findings


def choose_traces(
    opened: Sequence[TraceSource], plan: Plan, *, allow_mixed: bool = False,
    accepted: Collection[str] = (), run_id: str | None = None, resumed: bool = False,
) -> Intake:
    """Return the traces that belong to the plan and to one another, and why others do not.

    Those of a plan in ``accepted`` (hashes) do, too. ``run_id`` is that of earlier attempts, if
    there are any. An attempt that was ``resumed`` need not have come to its end.
    """
    checks: Sequence[tuple[str, Callable[[Sequence[TraceSource]], Rejections]]] = (
        ("HB105", lambda sources: _other_run(sources, run_id)),
        ("HB106", lambda sources: _other_plan(sources, plan, accepted)), ("HB102", _duplicates),
        ("HB108", lambda sources: _outside_world(sources, plan)), ("HB108", _shared_local_ranks),
        ("HB107", _other_versions))
    kept, findings = list(opened), []
    for code, check in checks:
        is_allowed = allow_mixed and code == "HB107"
        rejected = list(check(kept))
        findings += [Finding(code, "note" if is_allowed else "rank", f"{name_of(source)}: {why}")
                     for source, why in rejected]
        if not is_allowed:
            kept = [source for source in kept if all(one is not source for one, _ in rejected)]
    sources = {source.header.rank: source for source in kept}
    findings += [*([] if resumed and not opened else _missing(sources, plan)),
                 *([] if resumed else _incomplete(kept)),
                 *(Finding("HB111", "rank", f"{name_of(source)}: at byte {item.offset}: "
                           f"{item.what}; what it held is lost, run those cases again")
                   for source in kept for item in source.damage if not item.torn),
                 *([] if accepted else _unknown_cases(kept, plan))]
    return Intake(dict(sorted(sources.items())), tuple(findings))


def majority(values: Sequence[Value]) -> Value | None:
    """Return the most frequent value, the first of them if several are; None of no values."""
    keys = Counter(repr(value) for value in values)
    return max(values, key=lambda value: keys[repr(value)], default=None)


def _other_run(sources: Sequence[TraceSource], run_id: str | None) -> Rejections:
    expected = run_id or majority([source.header.run_id for source in sources])
    for source in sources:
        if source.header.run_id != expected:
            yield source, (f"belongs to run {source.header.run_id}, the others to {expected}: a "
                           "stale file; move it to the folder of its own run")


def _other_plan(
    sources: Sequence[TraceSource], plan: Plan, accepted: Collection[str]
) -> Rejections:
    for source in sources:
        if source.header.plan_hash not in (plan.plan_hash, *accepted):
            yield source, (f"ran plan {source.header.plan_hash}, this folder holds plan "
                           f"{plan.plan_hash}: start all ranks with the same config")


def _outside_world(sources: Sequence[TraceSource], plan: Plan) -> Rejections:
    for source in sources:
        header, traces = source.header, source.path.parent
        if header.world_size != plan.world_size or not 0 <= header.rank < plan.world_size:
            yield source, (f"is of a world of {header.world_size}, the plan is for "
                           f"{plan.world_size} ranks: start one job with all ranks")
        elif source.path not in (trace_path(traces, header.rank),
                                 journal_path(traces, header.rank)):
            expected = trace_path(traces, header.rank).with_suffix(source.path.suffix).name
            yield source, ("the file name says another rank: if it was renamed, name it "
                           f"{expected}")


def _duplicates(sources: Sequence[TraceSource]) -> Rejections:
    for same in grouped((source.header.rank, source) for source in sources).values():
        processes = ", ".join(f"{item.header.hostname} pid {item.header.pid}" for item in same)
        for source in same if len(same) > 1 else []:
            yield source, (f"{len(same)} files claim this rank ({processes}): all are left out; "
                           "keep the one of this run")


def _shared_local_ranks(sources: Sequence[TraceSource]) -> Rejections:
    by_local_rank = grouped(
        ((source.header.node, source.header.local_rank), source) for source in sources)
    for (node, local_rank), same in by_local_rank.items():
        ranks = rank_list(source.header.rank for source in same)
        for source in same if len(same) > 1 else []:
            yield source, (f"ranks {ranks} all claim node {node} local rank {local_rank}: check "
                           "how the ranks were launched")


def _other_versions(sources: Sequence[TraceSource]) -> Rejections:
    usual = majority([dict(sorted(source.header.versions.items())) for source in sources]) or {}
    for source in sources:
        versions = source.header.versions
        names = sorted(name for name in {*usual, *versions}
                       if not same_version(usual.get(name), versions.get(name)))
        if names:
            text = ", ".join(f"{name} {versions.get(name)} (others {usual.get(name)})"
                             for name in names)
            yield source, (f"mixed versions on {source.header.hostname}: {text}; install the same "
                           "everywhere, or reduce with --allow-mixed")


def _missing(sources: Mapping[int, TraceSource], plan: Plan) -> Iterator[Finding]:
    absent = sorted(set(range(plan.world_size)) - set(sources))
    if absent:
        yield Finding("HB101", "rank", f"no usable trace of {len(absent)} of {plan.world_size} "
                      f"ranks ({rank_list(absent)}): their cases count as failed; copy "
                      f"{_where(sources, absent)} here and reduce again")


def _where(sources: Mapping[int, TraceSource], absent: Sequence[int]) -> str:
    """Return where the traces of these ranks are: rank 0 knows of those that see another folder."""
    apart = {int(rank): location for data in (noted(sources[0], APART_NOTE) if 0 in sources else ())
             for rank, location in data.items()}
    below_run = attempt_folder(Path("traces"), attempt_of(sources[0].path.parent) if apart else 0)
    names = [f"{Path(apart[rank][1]) / below_run / f'rank{rank:05d}.*'} on host {apart[rank][0]}"
             for rank in absent if rank in apart]
    if others := [rank for rank in absent if rank not in apart]:
        names.append(f"{trace_path(Path('traces'), others[0])}"
                     + " (and so on)" * (len(others) > 1))
    more = f" (and {len(names) - _MOST_NAMED} more)" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _incomplete(sources: Iterable[TraceSource]) -> Iterator[Finding]:
    for source in sources:
        torn = [item for item in source.damage if item.torn]
        if not source.sealed or torn or never_ended(source):
            tail = f"; from byte {torn[0].offset}: {torn[0].what}" if torn else ""
            state = "is unsealed" if not source.sealed else "was sealed after a crash"
            yield Finding("HB110", "note", f"{name_of(source)}: {state}, {len(source.case_ids)} "
                          f"cases recovered{tail}; resume the run for the others: "
                          f"{RESUME}")


def _unknown_cases(sources: Iterable[TraceSource], plan: Plan) -> Iterator[Finding]:
    planned = {case.case_id for case in plan.cases}
    for source in sources:
        unknown = sorted(source.case_ids - planned)
        if unknown:
            yield Finding("HB112", "note", f"{name_of(source)}: records of {len(unknown)} cases "
                          f"that are not in the plan, first {unknown[0]}: ignored; is plan.json "
                          "of this run?")
