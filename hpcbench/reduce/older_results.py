"""What results files of older versions say in other words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcbench.reduce.results import CaseResult, Finding

_OLDER_MISSING = "HB112: no trace of rank "
"""How each problem begins of a case that lacks a trace, in files without ``trace_missing``."""


def as_older(cases: Sequence[CaseResult], findings: Sequence[Finding]) -> Iterator[CaseResult]:
    """Yield the cases with ``trace_missing`` as findings say it, where the file does not."""
    problems: dict[str, list[str]] = {}
    for finding in findings:
        if finding.scope == "case":
            whose, _, text = finding.message.partition("): ")
            problems.setdefault(whose, []).append(f"{finding.code}: {text}")
    for item in cases:
        found = problems.get(f"case {item.case.label} ({item.case.case_id}", ())
        is_missing = item.status == "failed" and found and all(
            text.startswith(_OLDER_MISSING) for text in found)
        yield replace(item, trace_missing=True) if is_missing else item
