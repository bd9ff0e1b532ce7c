"""What is printed of a suite: a heading for each member, and what became of all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from hpcbench.errors import job_command_line
from hpcbench.reduce.suite_file import FINDINGS, MEMBER_STATUSES, MISSED, OK, Member, Suite
from hpcbench.report.table_lines import table_lines
from hpcbench.report.terminal import print_lines
from hpcbench.verbosity import Verbosity
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

_COUNTED = ("ok", "skipped", "wrong", "failed", "timeout", "not_run")
_COLUMNS = (
    Column("file", "sweep file"), Column("status", "status"),
    *(Column(name, name.replace("_", " "), Show.COUNT) for name in _COUNTED),
    Column("duration", "time", Show.DURATION), Column("folder", "folder"))
_LOOKS = {OK: "ok", FINDINGS: "failed", MISSED: "failed"}
"""Status of a member -> status of a case whose colour it has; others look like a skip."""


def print_member(members: Sequence[Member], index: int) -> None:
    """Print the heading of a member that begins."""
    member = members[index]
    print_lines([Text(), Text(f"== {index + 1} of {len(members)}: {member.file} ({member.name}) ==",
                              style="bold")])


def print_error(message: str) -> None:
    """Print on standard error what a member ended with instead of results."""
    print_lines([Text(f"hpcbench: {message}", style="red")], sys.stderr)


def print_outcome(member: Member) -> None:
    """Print on standard error which member it was that left the lines before."""
    told = f"{member.folder}: {member.status}: {MEMBER_STATUSES[member.status]}"
    print_lines([Text(f"hpcbench: {told}")], sys.stderr)


def print_suite(
    suite: Suite, folder: Path, verbosity: Verbosity = Verbosity.NORMAL,
) -> None:
    """Print one row for each member, why some have no results, and where the file is.

    Quietly only the rows.
    """
    print_lines(table_lines(replace(suite_table(suite, folder), notes=())) if verbosity.is_quiet
                else _lines(suite, folder))


def _lines(suite: Suite, folder: Path) -> Iterator[Text]:
    yield from table_lines(suite_table(suite, folder))
    yield Text()
    yield Text(f"in {folder}: suite.json, and a results folder for each member")


def suite_table(suite: Suite, folder: Path) -> Table:
    """Return one row for each member; ``folder`` is the suite's."""
    rows = tuple(_row(member) for member in suite.members)
    notes = [f"{member.folder}: {reason}" for member in suite.members for reason in member.reasons]
    if suite.stopped_by:
        again = job_command_line(suite.world_size, "suite", "--resume", folder)
        notes.append(f"stopped by {suite.stopped_by}: {again} goes on")
    notes += [f"{member.folder}: faults were injected: {'; '.join(faults)}"
              for member in suite.members if (faults := (member.summary or {}).get("faults"))]
    unusual = dict.fromkeys(member.status for member in suite.members if member.status != OK)
    notes += [f"{status}: {MEMBER_STATUSES[status]}" for status in unusual]
    return Table("suite", _COLUMNS, (Group("", rows),),
                 notes=tuple(Line(note, "quiet") for note in notes))


def _row(member: Member) -> Row:
    counts = member.counts or {}
    return Row((member.file, member.status, *(counts.get(name) for name in _COUNTED),
                member.duration_s, member.folder), _LOOKS.get(member.status, "skipped"))
