"""HB130: what cases ran with that a sound machine at its full clock does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.units import grouped, plural


def usage_findings(items: Iterable[CaseResult]) -> Iterator[Finding]:
    """Yield a note for each reason of lower clocks, each XID, and for memory errors of GPUs."""
    used = [(item.case.label, item.usage) for item in items if item.usage is not None]
    slowed = grouped((why, label) for label, usage in used for why in usage.throttled_by)
    for why, labels in slowed.items():
        yield _note(f"clocks were lowered ({why})", labels,
                    "times are of a slower machine; see cooling, power limits and set clocks")
    for xid, labels in grouped((xid, label) for label, usage in used for xid in usage.xids).items():
        yield _note(f"a GPU has reported XID {xid}", labels,
                    "see the driver's log; that GPU may be broken")
    if labels := [label for label, usage in used if usage.ecc_errors]:
        yield _note("a GPU had memory errors", labels,
                    "watch it, and have it checked if they go on")


def _note(what: str, labels: list[str], advice: str) -> Finding:
    return Finding("HB130", "note",
                   f"{what} in {plural(len(labels), 'case')}, first {labels[0]}: {advice}")
