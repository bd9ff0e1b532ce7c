"""The gate's outcome as an exit code: for CI, for Slurm's prolog or NHC, and for Nagios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hpcbench.analysis.check import (
    CANNOT_TELL,
    CRASHED,
    GOOD,
    MISSING,
    SLOW,
    WRONG,
    Checked,
    Reason,
    check_limits,
    concluded,
    missing_ranks,
    not_ok,
    unchecked,
)
from hpcbench.analysis.compare import FASTER, SAME, SLOWER, at_most, compare, scope_of
from hpcbench.analysis.limits import read_limits
from hpcbench.analysis.sides import Side, cases_of, side_of
from hpcbench.errors import ConfigError

STYLES: Mapping[str, Mapping[str, int]] = MappingProxyType({
    "ci": {GOOD: 0, SLOW: 10, WRONG: 11, MISSING: 12, CRASHED: 13, CANNOT_TELL: 14},
    "slurm": {GOOD: 0, SLOW: 1, WRONG: 1, MISSING: 0, CRASHED: 1, CANNOT_TELL: 0},
    "nagios": {GOOD: 0, SLOW: 2, WRONG: 2, MISSING: 3, CRASHED: 2, CANNOT_TELL: 3},
})
"""Style -> outcome -> exit code. Slurm drains a node for any other code than 0, so only evidence
against the node has one."""
UNREADABLE: Mapping[str, int] = MappingProxyType({"ci": 2, "slurm": 0, "nagios": 3})
"""Style -> exit code where results or limits cannot be read."""


def check_file(results: Sequence[Path], limits: Path) -> Checked:
    """Return whether results hold the limits of a file. Raises FileError or ConfigError."""
    given = read_limits(limits).limits
    side = side_of(results)
    try:
        found = [check_limits(one, given) for one in side.results]
    except ConfigError as error:
        raise ConfigError("\n".join(f"{limits}: {line}" for line in str(error).splitlines())
                          ) from None
    reasons = [reason for one in found for reason in one.reasons]
    return concluded(reasons, len(given), sum(one.n_cases for one in found))


def check_baseline(results: Sequence[Path], baseline: Sequence[Path], smallest: float) -> Checked:
    """Return whether results are as fast as those of other files. Raises FileError."""
    before, now = side_of(baseline), side_of(results)
    old, new = cases_of(before), cases_of(now)
    found = compare(old, new, ("the baseline", "these results"), smallest)
    reasons = [*_of_runs(now)]
    if not found.cases:
        reasons.append(Reason(MISSING, "baseline", "no case has times on both sides"))
    named = {reason.case_id for reason in reasons}
    reasons += [Reason(MISSING, case.case.label, "the baseline has it, these results have no times",
                       case_id) for case_id, case in old.items()
                if case.launch_s and case_id not in named and not (
                    case_id in new and new[case_id].launch_s)]
    for case in found.cases:
        change = f"{100 * (case.ratio - 1):+.1f} % beside the baseline"
        if scope := scope_of([case]):
            change += f" {scope}"
        if case.verdict == SLOWER:
            reasons.append(Reason(SLOW, case.label, change, case.key))
        elif case.verdict not in (FASTER, SAME):
            more = "" if case.more_launches is None else (
                f"; {at_most(case.more_launches)} launches a side may tell")
            reasons.append(Reason(CANNOT_TELL, case.label, f"{change}: {case.reason}{more}",
                                  case.key))
    return concluded(reasons, 0, len(found.cases))


def _of_runs(side: Side) -> Iterator[Reason]:
    """Yield what is wrong with runs by themselves; a skipped case may be so in the baseline, too.
    """
    for results in side.results:
        yield from missing_ranks(results)
        yield from not_ok(results)
        for item in results.cases:
            if item.status == "ok":
                yield from unchecked(item)
