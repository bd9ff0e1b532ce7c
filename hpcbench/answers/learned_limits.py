"""Limits that are learned from clean runs.

The slowest of n launches is below the quantile q of all launches only with a probability of q^n,
however launches are distributed (Wilks, Annals of Mathematical Statistics 12, 1941). So n launches
give a limit that a share q of healthy launches holds, with the confidence 1 - q^n, and fewer do
not. The limit is of medians of launches (``of: launches``), so every run holds the limits that
were learned from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from hpcbench.answers.check import MEASURES, not_sound, unchecked
from hpcbench.answers.compare_inputs import (
    CaseOfSide,
    Side,
    cases_of,
    items_of,
    measured_id,
    side_of,
)
from hpcbench.answers.verdict import doubts_of
from hpcbench.errors import UsageError
from hpcbench.reduce.results import Results
from hpcbench.trace.container import whole_file
from hpcbench.units import plural

CONFIDENCE = 0.95
MARGIN = 0.02
"""Added to the slowest launch, as a share."""


def launches_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """Return how many launches give a limit that this share of launches holds."""
    return math.ceil(math.log(1 - confidence) / math.log(share))


def write_limits(
    results: Sequence[Path], output: Path | None, share: float,
) -> tuple[Path, tuple[str, ...]]:
    """Write a file of limits from clean runs; return its path, and why to doubt these limits.

    Raises UsageError, FileError."""
    from hpcbench.config.yaml_text import commented_yaml  # few commands need yaml

    if output is None:
        raise UsageError("--learn writes a file of limits: name it with -o")
    if output.exists():
        raise UsageError(f"{output} exists, and is not written over: name another file with -o")
    side = side_of(results)
    content = learned(side, share)
    comments = [f"Learned by hpcbench check from {len(side.results)} results."]
    if any(case.jobs < len(case.launch_s) for case in cases_of(side).values()):
        comments.append("Launches of one job share its conditions: other jobs may differ by more. "
                        "Add runs at other times.")
    doubts = tuple(learning_doubts(side))
    text = commented_yaml(content, [*comments, *doubts], {})
    with whole_file(output) as part:
        part.write_text(text, encoding="utf-8")
    return output, doubts


LOOSE = 0.1
"""A limit that much above the median launch, as a share, lets clearly slower nodes pass."""


def learning_doubts(side: Side) -> Iterator[str]:
    """Yield which runs are not to be quoted, and how far the slowest launches are off."""
    if red := [*doubts_of((one.run.run_id, one) for one in side.results)]:
        yield f"{len(red)} of {plural(len(side.results), 'run')} not to be quoted; first: {red[0]}"
    timed = [case for case in cases_of(side).values() if case.launch_s]
    above = [(max(case.launch_s) / median(case.launch_s) - 1, case.case.label) for case in timed]
    loose = [one for one in above if one[0] > LOOSE]
    if loose:
        share, label = max(loose)
        yield (f"in {len(loose)} of {plural(len(timed), 'case')} the slowest launch, which is the "
               f"limit, is over {LOOSE:.0%} above the median launch, in {label} {share:.0%}: "
               "nodes that slow pass; learn again when the node is quiet")


def learned(side: Side, share: float) -> dict[str, Any]:
    """Return the content of a file of limits of the times of all cases, as plain values.

    Raises UsageError if runs are not clean, or if there are too few launches."""
    timed = timed_cases(side)
    expected = {key: label for of_run in timed for key, label in of_run.items()}
    for results, of_run in zip(side.results, timed, strict=True):
        if why := why_unclean(results, of_run, expected):
            raise UsageError("--learn: these runs are not clean; first: "
                             f"{results.run.run_id}: {why}")
    return limits_of_clean_runs(side, share, "--learn")


def timed_cases(side: Side) -> list[dict[str, str]]:
    """Return the labels of the timed cases of each run, by their names in `items_of`."""
    timed: list[dict[str, str]] = [{} for _ in side.results]
    for name, items in items_of(side.results).items():
        for at, item in items:
            if item.status == "ok":
                timed[at][name] = item.case.label
    return timed


def limits_of_clean_runs(side: Side, share: float, option: str) -> dict[str, Any]:
    """Return the content of a file of limits, as plain values. Raises UsageError, which begins with
    the ``option``, if there are too few launches."""
    cases = cases_of(side)
    least = launches_needed(share)
    fewest = min((case for case in cases.values() if case.launch_s),
                 key=lambda case: len(case.launch_s), default=None)
    few = len(fewest.launch_s) if fewest else 0
    if few < least:
        why = " (in one process, backend mpi or --inline, they count as one)" if (
            fewest and fewest.repeats) else ""
        raise UsageError(
            f"{option}: a limit that {share:.0%} of launches hold takes {least} launches of every "
            f"case with {CONFIDENCE:.0%} confidence; there are {few}{why}: give more runs, or a "
            "smaller --share")
    return {"limits": list(_limits(cases, share))}


def _limits(cases: Mapping[str, CaseOfSide], share: float) -> Iterator[dict[str, Any]]:
    often = Counter(measured_id(case.case) for case in cases.values())
    for case_id, case in cases.items():
        if case.launch_s:
            measures = measured_id(case.case)
            select = {MEASURES: measures} if often[measures] == 1 else {"case_id": case_id}
            slowest, n = max(case.launch_s), len(case.launch_s)
            scope = f" within {plural(case.jobs, 'job')}" if case.jobs < n else ""
            yield {"metric": "median_s", "of": "launches", "select": select,
                   "max": float(f"{slowest * (1 + MARGIN) * 1e6:.4g}"), "unit": "us",
                   "why": f"{case.case.label}: slowest of {n} launches{scope} + {MARGIN:.0%} "
                          f"({share:.0%} pass with {1 - share ** n:.1%} confidence)"}


def why_unclean(
    results: Results, timed: Mapping[str, str], expected: Mapping[str, str],
) -> str:
    """Return why nothing is learned from a run with these ``timed`` cases; empty if it is clean.

    It has wrong or failed cases, ranks without a trace, unchecked results, injected faults, or has
    no time of a case of ``expected``, which other runs timed, or its log contradicts itself."""
    reasons = chain(
        (reason.text for reason in not_sound(results)),
        (f"{item.case.label} is {item.status}" for item in results.cases
         if item.status in ("wrong", "failed", "timeout", "not_run")),
        (f"{expected[key]} has no time, and has one in other runs"
         for key in expected.keys() - timed.keys()),
        (f"{reason.what}: {reason.sentence}" for item in results.cases
         if item.status == "ok" for reason in unchecked(item)),
        ("ranks are missing" for _ in range(
            results.run.world_size - len(results.run.ranks_present))))
    return next(reasons, "")
