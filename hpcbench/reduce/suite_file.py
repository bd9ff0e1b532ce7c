"""``suite.json``: the state of each member of a suite, replaced whole after every step. A `Suite`
with the keys ``schema`` ("hpcbench.suite") and ``schema_version``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from hpcbench.errors import ExitCode, FileError
from hpcbench.plain import Plain
from hpcbench.plan.case import STATUSES
from hpcbench.records import dataclass
from hpcbench.texts import from_json, to_json
from hpcbench.trace.container import SUITE_FILE, read_document, whole_file
from hpcbench.trace.container import is_suite as is_suite

SCHEMA = "hpcbench.suite"
SCHEMA_VERSION = 1
OK = "ok"
FINDINGS = "bad findings"
MISSED = "limit missed"
INCOMPLETE = "incomplete"
NOT_HERE = "cannot run here"
NOT_STARTED = "not started"
RUNNING = "running"
ERROR = "error"
MEMBER_STATUSES: Mapping[str, str] = {
    OK: "every case that can run here is ok",
    FINDINGS: "a case is wrong, failed or timed out, or a trace or case was rejected",
    MISSED: "every case that can run here is ok, but a limit of the sweep does not hold",
    INCOMPLETE: "a case or a pass was not run",
    NOT_HERE: "no case can run here; the reasons say why",
    NOT_STARTED: "the suite was stopped before",
    RUNNING: "it runs now, or the job was killed while it ran",
    ERROR: "it ended with a message instead of results; the reasons have it",
}
"""Status of a member -> its meaning."""
_ONLY_SKIPPED, _NOT_RUN = frozenset({"skipped"}), frozenset({"skipped", "not_run"})
_FINE = frozenset({"ok", "skipped"})


@dataclass(frozen=True, slots=True)
class Member:
    """One sweep file of a suite. ``folder`` is below the suite's; ``counts`` has ``planned`` and
    every status of cases, None before they are counted; ``duration_s`` is over all attempts;
    ``exit_code`` is that of `run` alone."""

    file: str
    name: str
    folder: str
    planned: int
    status: str = NOT_STARTED
    reasons: tuple[str, ...] = ()
    exit_code: int | None = None
    counts: Mapping[str, int] | None = None
    started_at: str | None = None
    duration_s: float | None = None
    summary: Mapping[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        return (self.status in (OK, FINDINGS, MISSED, NOT_HERE)
                and not (self.counts or {}).get("not_run"))


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite so far; ``exit_code`` is None until it has come to its end."""

    run_id: str
    hpcbench_version: str
    world_size: int
    started_at: str
    members: tuple[Member, ...]
    stopped_by: str = ""
    exit_code: int | None = None
    duration_s: float = field(default=0.0)


_SUITE: Plain[Suite] = Plain(Suite)


def suite_document(suite: Suite) -> dict[str, Any]:
    plain = asdict(suite)
    members = plain.pop("members")
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **plain, "members": members}


def suite_text(suite: Suite) -> str:
    return to_json(suite_document(suite), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_suite(suite: Suite, *paths: Path) -> None:
    """Write the file whole to each path. Raises FileError where the disk does not take it."""
    text = suite_text(suite)
    for path in paths:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")


def read_suite(folder: Path) -> Suite:
    """Return the suite in a folder. Raises FileError without one, or for another schema."""
    return read_suite_file(folder / SUITE_FILE)


def read_suite_file(path: Path) -> Suite:
    return read_document(
        path, (SCHEMA, SCHEMA_VERSION), _SUITE.read,
        ("hpcbench suite", "the folders beside it can be read one by one"))


def refuse_suite(folder: Path) -> None:
    """Raise FileError for the folder of a suite, with those of its members that are there."""
    if is_suite(folder):
        members = [str(path) for member in read_suite(folder).members
                   if (path := folder / member.folder).is_dir()]
        there = f": {', '.join(members)}" if members else "; none of them was started"
        raise FileError(f"{folder}: is the folder of a suite; give that of one member{there}")


def not_counted(planned: int) -> dict[str, int]:
    return {"planned": planned, **dict.fromkeys(STATUSES, 0), "not_run": planned}


def ended(member: Member, folder: Path, exit_code: int, error: str, duration_s: float) -> Member:
    """Return the member after its run, from its files in ``folder``; ``error`` is the message
    that it ended with instead of results. Raises FileError for an unreadable summary."""
    spent_s = duration_s + (member.duration_s or 0.0)
    if error:
        counts = None if folder.is_dir() else not_counted(member.planned)
        return replace(member, status=ERROR, reasons=(error,), exit_code=exit_code,
                       duration_s=spent_s, counts=counts)
    summary = _summary(folder / "summary.json")
    status = status_of(exit_code, summary)
    reasons: tuple[str, ...] = ()
    if status == NOT_HERE:  # the different reasons, in the order of the cases
        reasons = tuple(dict.fromkeys(
            case["reason"] for case in summary["cases"] if case["status"] == "skipped"))
    elif status == MISSED:  # the text of `hpcbench check` for each limit that does not hold
        reasons = tuple(f"{one['what']}: {one['text']}" for one in summary["check"]["reasons"])
    return replace(member, status=status, reasons=reasons, exit_code=exit_code,
                   duration_s=spent_s, counts=summary["totals"], summary=summary)


def _summary(path: Path) -> dict[str, Any]:
    try:
        return dict(from_json(path.read_bytes()))
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def status_of(exit_code: int, summary: Mapping[str, Any]) -> str:
    """Return the status of a member. A run without an ok case ends with FINDINGS; here a run in
    which nothing could run differs from one in which nothing was run in time."""
    if exit_code in (ExitCode.OK, ExitCode.INCOMPLETE):
        return OK if exit_code == ExitCode.OK else INCOMPLETE
    there = {status for status in STATUSES if summary["totals"][status]}
    if any(finding["scope"] != "note" for finding in summary["findings"]):
        return FINDINGS
    if there <= _NOT_RUN:
        return NOT_HERE if there == _ONLY_SKIPPED else INCOMPLETE
    return MISSED if there <= _FINE else FINDINGS


def suite_exit_code(members: Sequence[Member]) -> ExitCode:
    """Return the first that applies: the greatest code of an ERROR. FINDINGS: a member has bad
    findings, misses a limit, or no member could run a case. INCOMPLETE: a member is, or was not
    started. OK."""
    statuses = {member.status for member in members}
    if ERROR in statuses:
        return ExitCode(max(member.exit_code or ExitCode.USAGE for member in members
                            if member.status == ERROR))
    if statuses & {FINDINGS, MISSED} or statuses == {NOT_HERE}:
        return ExitCode.FINDINGS
    return ExitCode.INCOMPLETE if statuses - {OK, NOT_HERE} else ExitCode.OK
