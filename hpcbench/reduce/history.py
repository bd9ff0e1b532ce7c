"""The attempts at a run: which traces belong to it, why others do not, where a resumed run
begins."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

from hpcbench.errors import FileError, HpcbenchError, UsageError, job_command_line
from hpcbench.plan.case import Plan, status_of_run
from hpcbench.plan.order import History, RunKey, turns
from hpcbench.records import dataclass
from hpcbench.reduce.arrival import together_of
from hpcbench.reduce.checks import RESUME
from hpcbench.reduce.fold import rank_clocks
from hpcbench.reduce.outcome import Attempt, OutcomeContext, status_on
from hpcbench.reduce.results import Finding
from hpcbench.texts import say_all
from hpcbench.trace import container
from hpcbench.trace import source as trace_notes
from hpcbench.trace.journal import is_being_written, journal_path, read_journal
from hpcbench.trace.schema import same_version
from hpcbench.trace.sealed import Known, open_trace, trace_path
from hpcbench.trace.source import TraceSource, UnreadableTrace, never_ended, noted, plan_from_text
from hpcbench.units import grouped, plural, rank_list

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
    folder = source.path.parent
    below = f"{folder.name}/" if container.is_later_attempt(folder) else ""
    return f"rank {source.header.rank} ({below}{source.path.name})"


def open_traces(traces: Path) -> tuple[list[TraceSource], list[Finding]]:
    """Return the readable traces of one attempt's folder, and a finding for every other file."""
    sources: list[TraceSource] = []
    findings: list[Finding] = []
    sealed: dict[str, TraceSource] = {}
    cases_read: Known = {}
    for path in sorted(traces.iterdir()) if traces.is_dir() else []:
        if container.is_later_attempt(path):
            continue
        useless = ("neither a trace nor a journal: it is ignored and can be deleted"
                   if path.suffix not in (".h5", ".journal") else
                   _why_ignored(path, sealed[path.stem]) if path.stem in sealed else "")
        if useless:
            findings.append(Finding("HB103", "note", f"{path}: {useless}"))
            continue
        try:
            sources.append(read_journal(path) if path.suffix == ".journal"
                           else open_trace(path, cases_read))
            sealed[path.stem] = sources[-1]
        except UnreadableTrace as error:
            findings.append(Finding(error.code, "rank", f"{error}; it is left out"))
    return sources, findings


def _why_ignored(journal: Path, sealed: TraceSource) -> str:
    """Return why a journal beside a sealed trace is not read, and what only the journal holds."""
    used = "the sealed trace beside it is used"
    try:
        lacking = len(_recorded(read_journal(journal)) - _recorded(sealed))
    except UnreadableTrace:
        return f"is no journal, and {used}: it is ignored"
    if lacking:
        return f"{used}, which lacks {plural(lacking, 'record')} of it: move one of the two away"
    return f"{used}, which holds all of its records: it is ignored and can be deleted"


def _recorded(source: TraceSource) -> set[tuple[int, RunKey]]:
    return {(record.attempt, RunKey(record.case_id, record.launch, record.pass_index))
            for record in source.records(samples=False)}


def choose_traces(
    opened: Sequence[TraceSource], plan: Plan, *, allow_mixed: bool = False,
    accepted: Collection[str] = (), run_id: str | None = None, resumed: bool = False,
) -> Intake:
    """Return the traces that belong together, and findings for others. Plan hashes in ``accepted``
    belong, too; ``run_id`` is that of earlier attempts. A ``resumed`` attempt need not be complete.
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
    """Return the most frequent value, the first of them if several are; None without any."""
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
    for of_rank in grouped((source.header.rank, source) for source in sources).values():
        processes = ", ".join(f"{item.header.hostname} pid {item.header.pid}" for item in of_rank)
        for source in of_rank if len(of_rank) > 1 else []:
            yield source, (f"{len(of_rank)} files claim this rank ({processes}): all are left out; "
                           "keep the one of this run")


def _shared_local_ranks(sources: Sequence[TraceSource]) -> Rejections:
    by_local_rank = grouped(
        ((source.header.node, source.header.local_rank), source) for source in sources)
    for (node, local_rank), alike in by_local_rank.items():
        ranks = rank_list(source.header.rank for source in alike)
        for source in alike if len(alike) > 1 else []:
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
    """Return where the traces of these ranks are; rank 0 notes ranks that see another folder."""
    notes = noted(sources[0], trace_notes.FOLDERS_NOTE) if 0 in sources else ()
    locations = {int(rank): location for data in notes for rank, location in data.items()}
    attempt = container.attempt_of(sources[0].path.parent) if locations else 0
    below_run = container.attempt_folder(Path("traces"), attempt)
    names = [f"{Path(folder) / below_run / f'rank{rank:05d}.*'} on host {host}"
             for rank in absent if rank in locations for host, folder in [locations[rank]]]
    if others := [rank for rank in absent if rank not in locations]:
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
            yield Finding("HB112", "note", f"{name_of(source)}: records of "
                          f"{plural(len(unknown), 'case')} not in the plan, first {unknown[0]}: "
                          "ignored; is plan.json of this run?")


def as_notes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of traces where no case lacks one: what was left out is not needed."""
    return [replace(item, scope="note") for item in findings if item.code != "HB101"]


@dataclass(frozen=True, slots=True)
class Attempts:
    """The traces of each attempt, the newest last, and the findings about all of them."""

    intakes: tuple[Intake, ...]
    findings: tuple[Finding, ...]

    @property
    def newest(self) -> Intake:
        return next((item for item in reversed(self.intakes) if item.sources), self.intakes[-1])

    @property
    def sources(self) -> Iterator[TraceSource]:
        for intake in self.intakes:
            yield from intake.sources.values()


Opened = Sequence[tuple[Sequence[TraceSource], Sequence[Finding]]]
"""The traces of each attempt that can be read, and findings for the others."""


def open_attempts(traces: Path) -> Opened:
    return [open_traces(folder) for folder in container.attempt_folders(traces)]


def choose_attempts(
    opened: Opened, plan: Plan, *, allow_mixed: bool, accepted: Collection[str] | None = None,
) -> Attempts:
    """Return the traces of every attempt that belong to the run. ``accepted``: hashes of further
    plans, by default those that later attempts name."""
    if accepted is None:
        accepted = {str(plan) for sources, _ in opened for source in sources
                    for data in noted(source, trace_notes.RESUMED_NOTE)
                    for plan in data["earlier_plans"]}
    intakes: list[Intake] = []
    for number, (sources, _) in enumerate(opened):
        run_id = majority([source.header.run_id for intake in intakes
                           for source in intake.sources.values()])
        intakes.append(choose_traces(
            sources, plan, allow_mixed=allow_mixed, accepted=accepted, run_id=run_id,
            resumed=number + 1 < len(opened)))
    unreadable = [finding for _, findings in opened for finding in findings]
    findings = [finding for intake in intakes for finding in intake.findings]
    return Attempts(tuple(intakes), (*unreadable, *findings, *_resumptions(intakes, plan)))


def _resumptions(intakes: Sequence[Intake], plan: Plan) -> Iterator[Finding]:
    """Yield HB150 for each attempt that was resumed, HB151 for each change in between."""
    labels = {case.case_id: case.label for case in plan.cases}
    for number, (earlier, later) in enumerate(pairwise(intakes)):
        notes = noted(later.sources[0], trace_notes.RESUMED_NOTE) if 0 in later.sources else []
        resumption = notes[0] if notes else {}
        left = (f", {resumption['left']} of {resumption['planned']} runs of cases were left"
                if resumption else "")
        if 0 in earlier.sources and (last := _running(earlier.sources[0])):
            left += f", while {labels.get(last.case_id, last.case_id)} ran"
        yield Finding("HB150", "note", f"attempt {number + 1} {_how_ended(earlier.sources)}{left}; "
                      f"attempt {number + 2} went on: cases of different attempts are compared "
                      "across a change of processes, maybe of machines")
        for change in resumption.get("changes", ()):
            yield Finding("HB151", "note", f"resumed with --force in spite of a change: {change}: "
                          "attempts may differ because of it; run it afresh for a comparison")


def _how_ended(sources: Mapping[int, TraceSource]) -> str:
    if not sources:
        return "left no usable trace"
    signals = {str(data["signal"]) for source in sources.values()
               for data in noted(source, trace_notes.STOPPED_NOTE)}
    if signals:
        return f"was stopped by {', '.join(sorted(signals))}"
    dead = [rank for rank, source in sources.items() if never_ended(source)]
    return f"was ended from outside (rank {rank_list(dead)})" if dead else "came to its end"


def context_of(plan: Plan, attempts: Attempts) -> OutcomeContext:
    resolutions = [source.header.environment.get("clock_resolution_ns")
                   for source in attempts.sources]
    return OutcomeContext(
        launches=plan.launches, passes=plan.passes,
        attempts=tuple(Attempt(
            present=frozenset(intake.sources),
            stopped=frozenset(rank for rank, source in intake.sources.items()
                              if never_ended(source) and all(item.torn for item in source.damage)),
            clocks=rank_clocks(intake.sources.values()),
            nodes={rank: source.header.node for rank, source in intake.sources.items()},
            damaged=frozenset(rank for rank, source in intake.sources.items() if any(
                not item.torn for item in source.damage)))
            for intake in attempts.intakes),
        hardware=plan.config.get("hardware", {}),
        clock_resolution_ns=max((float(item) for item in resolutions
                                 if isinstance(item, (int, float))), default=0.0),
        inline=bool(plan.config.get("launch", {}).get("inline")),
        arriving=frozenset(chain.from_iterable(together_of(plan.cases).items())))


def is_fresh(folder: Path) -> bool:
    """Return whether a folder is absent or empty. Raises FileError unless it may be a results
    folder."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise FileError(f"{folder}: is no folder; --resume takes the results folder of a run, or a "
                        "new one")
    if (folder / container.PLAN_FILE).is_file():
        return False
    if container.is_suite(folder):
        raise FileError(f"{folder}: is the folder of a suite: "
                        f"{job_command_line('N', 'suite', '--resume', folder)}; or give the "
                        "folder of one of its members")
    if any(folder.iterdir()):
        raise FileError(f"{folder}: holds files but no {container.PLAN_FILE}, so it is no results "
                        "folder of `hpcbench run`; --resume takes one, or a new or empty folder")
    return True


def read_plan(folder: Path) -> Plan:
    """Return the plan of the run in a folder. Raises TraceError, or OSError if it has none."""
    path = folder / container.PLAN_FILE
    return plan_from_text(path.read_bytes(), path)


def read_history(folder: Path, plan: Plan) -> History:
    """Return the progress of the plan by the attempts in a folder. Raises UsageError if a job still
    writes there."""
    for traces in container.attempt_folders(folder / "traces"):
        for path in sorted(traces.glob("*.journal")):
            if is_being_written(path):
                raise UsageError(f"{folder}: a job is still running there ({path.name} is being "
                                 "written); end it first, or take another folder")
    opened = open_attempts(folder / "traces")
    hashes = {source.header.plan_hash for sources, _ in opened for source in sources}
    attempts = choose_attempts(opened, plan, allow_mixed=True, accepted=frozenset(hashes))
    runs, skipped = _finished(attempts, plan)
    statuses = grouped((key.case_id, status) for key, status in runs.items())
    newest, last = attempts.newest.sources.values(), attempts.intakes[-1].sources
    return History(
        attempt=container.attempt_of(container.attempt_folders(folder / "traces")[-1]) + 1,
        finished=frozenset(runs), skipped=skipped, deaths=_deaths(attempts, runs, statuses),
        statuses={case_id: tuple(of_runs) for case_id, of_runs in statuses.items()},
        run_id=next((source.header.run_id for source in newest), ""),
        plans=tuple(sorted(hashes - {plan.plan_hash})),
        ended=len(last) == plan.world_size and not any(map(never_ended, last.values())),
        were_ok=_were_ok(attempts, plan), pace=_pace(attempts, plan), profiled=frozenset(
            str(note["case_id"]) for intake in attempts.intakes if 0 in intake.sources
            for note in noted(intake.sources[0], trace_notes.PROFILE_NOTE)))


def versions_before(folder: Path) -> dict[str, str]:
    for traces in reversed(container.attempt_folders(folder / "traces")):
        for source in open_traces(traces)[0]:
            if source.header.rank == 0:
                return dict(source.header.versions)
    return {}


def run_id_before(folder: Path) -> str:
    for traces in container.attempt_folders(folder / "traces"):
        with contextlib.suppress(UnreadableTrace):
            return open_trace(trace_path(traces, 0)).header.run_id
        with contextlib.suppress(UnreadableTrace):
            return read_journal(journal_path(traces, 0)).header.run_id
    return ""


def _finished(attempts: Attempts, plan: Plan) -> tuple[dict[RunKey, str], frozenset[str]]:
    """Return the runs that every rank of their case recorded in one attempt, with their statuses in
    the newest such attempt, and skipped cases."""
    sizes = {case.case_id: case.world_size for case in plan.cases}
    ranks: dict[tuple[int, RunKey], set[int]] = defaultdict(set)
    statuses: dict[tuple[int, RunKey], set[str]] = defaultdict(set)
    skips: dict[str, set[int]] = defaultdict(set)
    by_attempt = ((number, rank, source) for number, intake in enumerate(attempts.intakes)
                  for rank, source in intake.sources.items())
    for number, rank, source in by_attempt:
        for record in source.records(samples=False):
            if record.status == "skipped":
                skips[record.case_id].add(rank)
            elif record.status != "not_run":
                key = RunKey(record.case_id, record.launch, record.pass_index)
                ranks[number, key].add(rank)
                statuses[number, key].add(status_on(record))

    def by_all(case_id: str, recorded: set[int]) -> bool:
        return case_id in sizes and recorded.issuperset(range(sizes[case_id]))

    return ({key: status_of_run(statuses[number, key]) for (number, key), some in ranks.items()
             if by_all(key.case_id, some)},
            frozenset(case_id for case_id, some in skips.items() if by_all(case_id, some)))


def _were_ok(attempts: Attempts, plan: Plan) -> frozenset[str]:
    newest: dict[tuple[str, int], tuple[tuple[int, int, int], str]] = {}
    for number, intake in enumerate(attempts.intakes):
        for rank, source in intake.sources.items():
            for record in source.records(samples=False):
                if record.status not in ("skipped", "not_run"):
                    place = (number, record.launch, record.pass_index)
                    before = newest.get((record.case_id, rank), (place, ""))
                    newest[record.case_id, rank] = max(before, (place, record.status))
    return frozenset(case.case_id for case in plan.cases if all(
        newest.get((case.case_id, rank), ((), ""))[1] == "ok" for rank in range(case.world_size)))


def _pace(attempts: Attempts, plan: Plan) -> float | None:
    """Return the time from rank 0's first case of a launch to its last / their estimates, of the
    newest attempt that ran any."""
    estimates = {case.case_id: case.estimate_s for case in plan.cases}
    for intake in reversed(attempts.intakes):
        ran = [record for record in (intake.sources[0].records(samples=False)
                                     if 0 in intake.sources else ())
               if record.status not in ("skipped", "not_run")]
        if planned_s := sum(estimates.get(record.case_id, 0.0) for record in ran):
            launches = grouped((record.launch, record) for record in ran).values()
            return sum(max(record.end_ns for record in those)
                       - min(record.begin_ns for record in those)
                       for those in launches) / 1e9 / planned_s
    return None


def _deaths(
    attempts: Attempts, finished: Collection[RunKey], statuses: Mapping[str, Collection[str]],
) -> dict[str, int]:
    """Return how many attempts ended from outside while a case ran that no run was ok of.

    A case was running unless it is finished or rank 0 recorded how it ended: a timeout or failure
    that not all ranks recorded is a case of backend mpi, which ends the job."""
    deaths: Counter[str] = Counter()
    firsts = [intake.sources[0] for intake in attempts.intakes if 0 in intake.sources]
    for last in filter(None, map(_running, firsts)):
        deaths[last.case_id] += last not in finished
    return {case_id: count for case_id, count in deaths.items()
            if count and "ok" not in statuses.get(case_id, ())}


def _running(source: TraceSource) -> RunKey | None:
    """Return the run of a case during which rank 0 ended from outside, None if it did not."""
    begun = noted(source, trace_notes.BEGIN_NOTE) if never_ended(source) else []
    if not begun:
        return None
    last = RunKey(begun[-1]["case_id"], begun[-1]["launch"], begun[-1]["pass_index"])
    ended = any((record.launch, record.pass_index) == last[1:]
                and status_on(record) not in ("timeout", "failed")
                for record in source.records({last.case_id}, samples=False))
    return None if ended else last


def is_worth_going_on(folder: Path) -> bool:
    """Return whether the newest attempt finished a run of a case, and others are left."""
    plan = read_plan(folder)
    history = read_history(folder, plan)
    left = any(history.is_left(case, turn) for case in plan.cases
               if case.skip is None and case.case_id not in history.skipped
               and history.quarantine(case) is None
               for turn in turns(plan.launches, plan.passes))
    newest = container.attempt_folders(folder / "traces")[-1]
    return left and any(record.status not in ("skipped", "not_run")
                        for source in open_traces(newest)[0] if source.header.rank == 0
                        for record in source.records(samples=False))


def main(arguments: Sequence[str]) -> int:
    """``python -m hpcbench.reduce.history DIR``: 0 if a job may go on there, for job scripts."""
    try:
        return int(not is_worth_going_on(Path(arguments[0])))
    except (IndexError, OSError, HpcbenchError) as error:
        say_all(f"hpcbench: {error}", sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
