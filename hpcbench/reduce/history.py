"""Which runs of cases the traces of a results folder hold: where a resumed run begins."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpcbench.errors import FileError, HpcbenchError, UsageError
from hpcbench.plan.case import Plan
from hpcbench.plan.history import History, RunKey
from hpcbench.plan.order import turns
from hpcbench.reduce.attempts import Attempts, choose_attempts, open_attempts
from hpcbench.reduce.intake import Intake, open_traces
from hpcbench.trace.attempts import attempt_folders, attempt_of
from hpcbench.trace.journal import is_being_written, journal_path, read_journal
from hpcbench.trace.sealed import open_trace, trace_path
from hpcbench.trace.source import (
    BEGIN_NOTE,
    TraceSource,
    UnreadableTrace,
    never_ended,
    plan_from_text,
)

PLAN_FILE = "plan.json"


def is_fresh(folder: Path) -> bool:
    """Return whether a run can begin in a folder: it is not there, or empty.

    Raises FileError for what is there and is no results folder.
    """
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise FileError(f"{folder}: is no folder; --resume takes the results folder of a run, or a "
                        "new one")
    if (folder / PLAN_FILE).is_file():
        return False
    if any(folder.iterdir()):
        raise FileError(f"{folder}: holds files but no {PLAN_FILE}, so it is no results folder of "
                        "`hpcbench run`; --resume takes one, or a new or empty folder")
    return True


def read_plan(folder: Path) -> Plan:
    """Return the plan of the run in a folder. Raises TraceError, or OSError if it has none."""
    path = folder / PLAN_FILE
    return plan_from_text(path.read_bytes(), path)


def read_history(folder: Path, plan: Plan) -> History:
    """Return what the attempts in a folder have done of the plan that is to go on.

    Raises UsageError if a job is still writing there.
    """
    _refuse_a_running_job(folder)
    opened = open_attempts(folder / "traces")
    hashes = {source.header.plan_hash for sources, _ in opened for source in sources}
    known = choose_attempts(opened, plan, allow_mixed=True, accepted=frozenset(hashes))
    finished, skipped = _finished(known, plan)
    newest = known.newest.sources.values()
    return History(
        attempt=attempt_of(attempt_folders(folder / "traces")[-1]) + 1,
        finished=finished, skipped=skipped, deaths=_deaths(known, finished),
        run_id=next((source.header.run_id for source in newest), ""),
        plans=tuple(sorted(hashes - {plan.plan_hash})),
        ended=_ended(known.intakes[-1], plan))


def _ended(newest: Intake, plan: Plan) -> bool:
    return len(newest.sources) == plan.world_size and not any(
        map(never_ended, newest.sources.values()))


def versions_before(folder: Path) -> dict[str, str]:
    """Return what rank 0 ran with in the newest attempt that has it; nothing if none has."""
    for path in reversed(attempt_folders(folder / "traces")):
        for source in open_traces(path)[0]:
            if source.header.rank == 0:
                return dict(source.header.versions)
    return {}


def run_id_before(folder: Path) -> str:
    """Return the run that rank 0's traces in a folder belong to, "" if unknown."""
    for traces in attempt_folders(folder / "traces"):
        with contextlib.suppress(UnreadableTrace):
            return open_trace(trace_path(traces, 0)).header.run_id
        with contextlib.suppress(UnreadableTrace):
            return read_journal(journal_path(traces, 0)).header.run_id
    return ""


def _refuse_a_running_job(folder: Path) -> None:
    for traces in attempt_folders(folder / "traces"):
        for path in sorted(traces.glob("*.journal")):
            if is_being_written(path):
                raise UsageError(f"{folder}: a job is still running there ({path.name} is being "
                                 "written); end it first, or take another folder")


def _finished(known: Attempts, plan: Plan) -> tuple[frozenset[RunKey], frozenset[str]]:
    """Return the runs that every rank of their case recorded in one attempt, and skipped cases."""
    sizes = {case.case_id: case.world_size for case in plan.cases}
    ranks: dict[tuple[int, RunKey], set[int]] = defaultdict(set)
    skips: dict[str, set[int]] = defaultdict(set)
    for number, rank, source in _by_attempt(known):
        for record in source.records(samples=False):
            if record.status == "skipped":
                skips[record.case_id].add(rank)
            elif record.status != "not_run":
                key = RunKey(record.case_id, record.launch, record.pass_index)
                ranks[number, key].add(rank)
    finished = (key for (_, key), recorded in ranks.items()
                if _has_all(recorded, sizes.get(key.case_id)))
    skipped = (case_id for case_id, recorded in skips.items()
               if _has_all(recorded, sizes.get(case_id)))
    return frozenset(finished), frozenset(skipped)


def _has_all(ranks: Iterable[int], size: int | None) -> bool:
    return size is not None and set(range(size)) <= set(ranks)


def _by_attempt(known: Attempts) -> Iterator[tuple[int, int, TraceSource]]:
    for number, intake in enumerate(known.intakes):
        for rank, source in intake.sources.items():
            yield number, rank, source


def _deaths(known: Attempts, finished: frozenset[RunKey]) -> dict[str, int]:
    """Return how many attempts ended from outside after a case had begun that is not finished.

    Rank 0 may have recorded it: it does if a case of backend mpi hangs, before it ends the job.
    """
    deaths: Counter[str] = Counter()
    for _, rank, source in _by_attempt(known):
        begun = [note.data for note in source.notes if note.kind == BEGIN_NOTE]
        if rank != 0 or not never_ended(source) or not begun:
            continue
        last = RunKey(begun[-1]["case_id"], begun[-1]["launch"], begun[-1]["pass_index"])
        deaths[last.case_id] += last not in finished
    return {case_id: count for case_id, count in deaths.items() if count}


def is_worth_going_on(folder: Path) -> bool:
    """Return whether the newest attempt finished a run of a case, and others are left."""
    plan = read_plan(folder)
    history = read_history(folder, plan)
    left = any(history.is_left(case, turn) for case in plan.cases
               if case.skip is None and case.case_id not in history.skipped
               and history.quarantine(case) is None
               for turn in turns(plan.launches, plan.passes))
    newest = attempt_folders(folder / "traces")[-1]
    return left and any(record.status not in ("skipped", "not_run")
                        for source in open_traces(newest)[0] if source.header.rank == 0
                        for record in source.records(samples=False))


def main(words: Sequence[str]) -> int:
    """``python -m hpcbench.reduce.history DIR``: 0 if a job may go on there, for job scripts."""
    try:
        return int(not is_worth_going_on(Path(words[0])))
    except (IndexError, OSError, HpcbenchError) as error:
        print(f"hpcbench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
