"""Are results as fast as earlier ones, or as those of a time? The run that is checked is left out
of its own baseline, by its id: a run beside itself is never slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbench.answers.check import (
    CANNOT_TELL,
    GOOD,
    MISSING,
    SLOW,
    CheckResult,
    Reason,
    concluded,
    held_by,
    missing_ranks,
    not_ok,
    not_sound,
    unchecked,
)
from hpcbench.answers.compare import (
    FASTER,
    LOOKS,
    SAME,
    SLOWER,
    CaseComparison,
    compare,
    scope_of,
    side_doubts,
)
from hpcbench.answers.compare_inputs import Side, aligned, cases_of, side_of
from hpcbench.answers.compare_tables import change_text, protocol_text
from hpcbench.answers.learned_limits import limits_of_clean_runs, timed_cases, why_unclean
from hpcbench.config.section import checked_limits
from hpcbench.errors import UsageError
from hpcbench.reduce.results import Results
from hpcbench.units import plural


def _sides(
    results: Sequence[Path], baseline: Sequence[Path],
) -> tuple[Side, Side, tuple[str, ...]]:
    """Return the results, the baseline without them, and what is left out of it.

    Raises FileError, and UsageError where nothing else is in the baseline."""
    now, before = side_of(results), side_of(baseline)
    checked = {one.run.run_id for one in now.results} - {""}
    own = [at for at, one in enumerate(before.results) if one.run.run_id in checked]
    names = ", ".join(before.names[at] for at in own)
    if len(own) == len(before.results):
        raise UsageError(f"--baseline: {names} is the run that is checked: give earlier runs")
    kept = [at for at in range(len(before.results)) if at not in own]
    return now, replace(before, results=tuple(before.results[at] for at in kept),
                        names=tuple(before.names[at] for at in kept)), (
        f"left out of the baseline: {names}: the run that is checked",) * bool(own)


def check_baseline(results: Sequence[Path], baseline: Sequence[Path],
                   smallest: float) -> CheckResult:
    """Return whether results are as fast as those of other files. Raises FileError, UsageError."""
    now, before, left_out = _sides(results, baseline)
    old = cases_of(before)
    new = aligned(old, cases_of(now))
    found = compare(old, new, ("the baseline", "these results"), smallest)
    reasons = [*_of_files(now, map(_of_run, now.results)),
               *_of_files(before, map(_unsound_baseline, before.results))]
    if not found.cases:
        reasons.append(Reason(MISSING, "baseline", "no case has times on both sides"))
    named = {reason.case_id for reason in reasons}
    ids = {key: new[key].case.case_id if key in new else case.case.case_id
           for key, case in old.items()}
    reasons += [Reason(MISSING, case.case.label, "no times here, but in the baseline", ids[key])
                for key, case in old.items() if case.launch_s and ids[key] not in named and not (
                    key in new and new[key].launch_s)]
    reasons += [_of_case(case, ids[case.key]) for case in found.cases]
    return replace(concluded(reasons, 0, len(found.cases)), doubts=(*left_out, *dict.fromkeys(
        doubt for side in (now, before) for doubt in side_doubts(side))))


def _of_case(case: CaseComparison, case_id: str) -> Reason:
    change = f"{change_text(case.interval)} against the baseline"
    if scope := scope_of([case]):
        change += f" {scope}"
    if protocol := protocol_text(case, ("baseline", "these results")):
        change += f" ({protocol})"
    if case.verdict == SLOWER and case.means_the_same:
        return Reason(SLOW, case.label, change, case_id)
    if case.verdict == SLOWER:
        return Reason(CANNOT_TELL, case.label, f"{change}: the times are not of one kind", case_id,
                      remedy="measure both sides alike")
    if case.verdict in (FASTER, SAME):
        return Reason(GOOD, case.label, f"{change}: {case.verdict}", case_id)
    undecided = f"undecided; {case.reason}"
    is_shown = min(case.launches) > 1 or case.reason.startswith(LOOKS)
    return Reason(CANNOT_TELL, case.label, f"{change}: {undecided}" if is_shown else undecided,
                  case_id, remedy=case.remedy)


def _of_files(side: Side, reasons: Iterable[Iterable[Reason]]) -> list[Reason]:
    """Return the reasons of each of the results, with its name where they are several."""
    return [replace(reason, file=name) for name, same in zip(side.apart, reasons, strict=True)
            for reason in same]


def _unsound_baseline(results: Results) -> Iterator[Reason]:
    """Yield why nothing is concluded beside a baseline: it is no evidence against these results."""
    for reason in not_sound(results):
        yield replace(reason, outcome=CANNOT_TELL, what="baseline")


def _of_run(results: Results) -> Iterator[Reason]:
    """Yield the reasons that need no baseline; a skipped case may be skipped there, too."""
    yield from missing_ranks(results)
    yield from not_sound(results)
    yield from not_ok(results)
    for item in results.cases:
        if item.status == "ok":
            yield from unchecked(item)


def check_runs(results: Sequence[Path], baseline: Sequence[Path], share: float) -> CheckResult:
    """Return whether results hold the limits that are learned from the clean runs of a baseline;
    ``doubts`` name also the runs of it that are left out. Raises FileError, and UsageError for too
    few launches."""
    name = "--baseline-range"
    now, side, left_out = _sides(results, baseline)
    timed = timed_cases(side)
    counts = Counter(key for of_run in timed for key in of_run)
    usual = {key: label for of_run in timed for key, label in of_run.items()
             if 2 * counts[key] > len(timed)}
    judged = [(one, why_unclean(one, of_run, usual))
              for one, of_run in zip(side.results, timed, strict=True)]
    clean = tuple(one for one, why in judged if not why)
    unclean = [f"{one.run.run_id}: {why}" for one, why in judged if why]
    if unclean:
        left_out += (f"left out: {len(unclean)} of {plural(len(judged), 'run')} of the baseline, "
                     f"which are not clean; first: {unclean[0]}",)
    try:
        content = limits_of_clean_runs(replace(side, results=clean), share, name)
    except UsageError as error:
        raise UsageError("; ".join((str(error), *left_out))) from None
    checked = held_by(now, checked_limits(content, name).limits, name)
    return replace(checked, doubts=(*left_out, *checked.doubts))
