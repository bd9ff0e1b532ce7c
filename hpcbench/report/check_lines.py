"""What the gate prints: one line a reason, with a prefix that other programs can look for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from hpcbench.report.terminal import print_document
from hpcbench.texts import say

if TYPE_CHECKING:
    from hpcbench.analysis.check import Checked

PREFIX = "HPCBENCH_CHECK"
SCHEMA = "hpcbench.check"


def reason_lines(checked: Checked) -> Iterator[str]:
    """Yield a line for each reason."""
    for reason in checked.reasons:
        rank = f" [rank {reason.rank}]" if reason.rank is not None else ""
        yield f"{PREFIX} {reason.outcome.upper()} {reason.what}{rank}: {reason.text}"


def print_checked(checked: Checked, *, quiet: bool) -> None:
    """Print a line for each reason, then the outcome; quietly the outcome alone."""
    if not quiet:
        for line in reason_lines(checked):
            say(line)
    limits = f"{checked.n_limits} limits, " if checked.n_limits else ""
    say(f"{PREFIX} RESULT {checked.outcome.upper()}: {limits}{checked.n_cases} cases, "
          f"{len(checked.reasons)} reasons")


def print_checked_json(checked: Checked) -> None:
    """Print the same as JSON; the same results and limits give the same bytes."""
    plain = TypeAdapter(type(checked)).dump_python(checked, mode="json")
    print_document({"schema": SCHEMA, "schema_version": 1, **plain})
