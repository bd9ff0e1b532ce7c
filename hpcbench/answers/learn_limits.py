"""Limits from clean runs: how slow, at most, a launch of this machine is when all is well.

Of n launches the slowest is below a share q of all launches only with a probability of q^n, however
launches are distributed (Wilks, Annals of Mathematical Statistics 12, 1941). So n launches give a
limit that a share q of healthy launches holds, with the confidence 1 - q^n, and fewer do not. The
limit is of medians of launches (``of: launches``), so every run holds the limits that it taught.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbench.answers.check import unchecked
from hpcbench.answers.compare_inputs import CaseOfSide, Side, cases_of, side_of
from hpcbench.config.yaml_text import commented_yaml
from hpcbench.errors import UsageError
from hpcbench.trace.files import whole_file
from hpcbench.units import plural

CONFIDENCE = 0.95
MARGIN = 0.02
"""Added to the slowest launch, as a share: limits are rounded up to it."""


def launches_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """Return how many launches give a limit that this share of launches holds."""
    return math.ceil(math.log(1 - confidence) / math.log(share))


def write_limits(results: Sequence[Path], output: Path | None, share: float) -> Path:
    """Write a file of limits from clean runs, and return its path. Raises UsageError, FileError.
    """
    if output is None:
        raise UsageError("--learn writes a file of limits: name it with -o")
    if output.exists():
        raise UsageError(f"{output} exists, and is not written over: name another file with -o")
    side = side_of(results)
    content = learned(side, share)
    comments = [f"Learned by hpcbench check from {len(results)} results."]
    if any(case.jobs < len(case.launch_s) for case in cases_of(side).values()):
        comments.append("Launches of one job share its conditions: other jobs may differ by more. "
                        "Add runs at other times.")
    text = commented_yaml(content, comments, {})
    with whole_file(output) as part:
        part.write_text(text, encoding="utf-8")
    return output


def learned(side: Side, share: float) -> dict[str, Any]:
    """Return a file of limits of the times of all cases, as plain values.

    Raises UsageError if runs are not clean, or if there are too few launches.
    """
    found = cases_of(side)
    _refuse_unclean(side)
    least = launches_needed(share)
    fewest = min((case for case in found.values() if case.launch_s),
                 key=lambda case: len(case.launch_s), default=None)
    few = len(fewest.launch_s) if fewest else 0
    if few < least:
        why = " (in one process, backend mpi or --inline, they count as one)" if (
            fewest and fewest.repeats) else ""
        raise UsageError(
            f"--learn: a limit that {share:.0%} of launches hold takes {least} launches of every "
            f"case with {CONFIDENCE:.0%} confidence; there are {few}{why}: give more runs, or a "
            "smaller --share")
    return {"limits": list(_limits(found, share))}


def _limits(found: Mapping[str, CaseOfSide], share: float) -> Iterator[dict[str, Any]]:
    for case_id, case in found.items():
        if case.launch_s:
            slowest, n = max(case.launch_s), len(case.launch_s)
            scope = f" within {plural(case.jobs, 'job')}" if case.jobs < n else ""
            yield {"metric": "median_s", "of": "launches", "select": {"case_id": case_id},
                   "max": float(f"{slowest * (1 + MARGIN) * 1e6:.4g}"), "unit": "us",
                   "why": f"{case.case.label}: slowest of {n} launches{scope} + {MARGIN:.0%}; "
                          f"{share:.0%} hold it with {1 - share ** n:.1%} confidence"}


def _refuse_unclean(side: Side) -> None:
    """Raise UsageError if a run would not hold the limits, or had injected faults.

    That is: wrong or failed cases, ranks without a trace, results that were not checked, and
    cases that other runs timed.
    """
    timed = {item.case.case_id: item.case.label for results in side.results
             for item in results.cases if item.status == "ok"}
    bad: Sequence[str] = [
        f"{results.run.run_id}: {item.case.label} is {item.status}"
        for results in side.results for item in results.cases
        if item.status in ("wrong", "failed", "timeout", "not_run")]
    bad = bad or [f"{results.run.run_id}: {timed[missing]} has no time, and has one in other runs"
                  for results in side.results for missing in timed.keys() - {
                      item.case.case_id for item in results.cases if item.status == "ok"}]
    bad = bad or [f"{results.run.run_id}: {reason.what}: {reason.text}" for results in side.results
                  for item in results.cases if item.status == "ok" for reason in unchecked(item)]
    bad = bad or [f"{results.run.run_id}: ranks are missing" for results in side.results
                  if len(results.run.ranks_present) < results.run.world_size]
    bad = bad or [f"{results.run.run_id}: faults were injected" for results in side.results
                  if results.run.faults]
    if bad:
        raise UsageError(f"--learn: these runs are not clean; first: {bad[0]}")
