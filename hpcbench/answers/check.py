"""Do results hold their limits? Missing or unchecked results do not pass.

Limits stand in a file, or in the sweep file, or are another run's times. They can be learned from
clean runs: the slowest of n launches is below the quantile q of all launches only with a
probability of q^n, however launches are distributed (Wilks, Annals of Mathematical Statistics 12,
1941). So n launches give a limit that a share q of healthy launches holds, with the confidence
1 - q^n, and fewer do not. The limit is of medians of launches (``of: launches``), so every run
holds the limits that were learned from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from hpcbench.answers.compare import (
    FASTER,
    LOOKS,
    SAME,
    SLOWER,
    compare,
    scope_of,
)
from hpcbench.answers.compare_inputs import (
    CaseOfSide,
    Side,
    aligned,
    cases_of,
    change_text,
    launch_times,
    side_of,
)
from hpcbench.answers.compare_tables import protocol_text
from hpcbench.answers.verdict import RED, verdict_of
from hpcbench.config.axes import nearest, quote
from hpcbench.config.section import SCALES, Limit, checked_limits, limit_below, read_limits
from hpcbench.errors import ConfigError, ExitCode, UsageError
from hpcbench.plan.case import Plan
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import (
    CASE_COLUMNS,
    OF_ARRIVALS,
    CaseColumn,
    metrics_of,
    row_of,
)
from hpcbench.reduce.metric import ABSENT
from hpcbench.reduce.reduce import exit_code
from hpcbench.reduce.results import CaseResult, Results, Statistics
from hpcbench.reduce.results_file import each_once
from hpcbench.texts import valid
from hpcbench.trace.container import whole_file
from hpcbench.units import digits, plural, rank_list

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
    verdicts = [(results.run.run_id, verdict_of(results)) for results in side.results]
    red = [f"{run}: {verdict.sentence}" for run, verdict in verdicts if verdict.state == RED]
    if red:
        yield f"{len(red)} of {plural(len(verdicts), 'run')} not to be quoted; first: {red[0]}"
    timed = [case for case in cases_of(side).values() if case.launch_s]
    above = [(max(case.launch_s) / median(case.launch_s) - 1, case.case.label) for case in timed]
    loose = [one for one in above if one[0] > LOOSE]
    if loose:
        share, label = max(loose)
        yield (f"in {len(loose)} of {plural(len(timed), 'case')} the slowest launch, which is the "
               f"limit, is over {LOOSE:.0%} above the median launch, in {label} {share:.0%}: "
               "nodes that slow pass; learn again when the node is quiet")


def learned(side: Side, share: float, option: str = "--learn") -> dict[str, Any]:
    """Return the content of a file of limits of the times of all cases, as plain values.

    Raises UsageError if runs are not clean, or if there are too few launches."""
    cases = cases_of(side)
    _refuse_unclean(side, option)
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
    for case_id, case in cases.items():
        if case.launch_s:
            slowest, n = max(case.launch_s), len(case.launch_s)
            scope = f" within {plural(case.jobs, 'job')}" if case.jobs < n else ""
            yield {"metric": "median_s", "of": "launches", "select": {"case_id": case_id},
                   "max": float(f"{slowest * (1 + MARGIN) * 1e6:.4g}"), "unit": "us",
                   "why": f"{case.case.label}: slowest of {n} launches{scope} + {MARGIN:.0%} "
                          f"({share:.0%} pass with {1 - share ** n:.1%} confidence)"}


def _refuse_unclean(side: Side, option: str) -> None:
    """Raise UsageError if a run would not hold the limits, or had injected faults.

    It would not with wrong or failed cases, ranks without a trace, unchecked results, or cases
    without a time that other runs timed."""
    timed = {item.case.case_id: item.case.label for results in side.results
             for item in results.cases if item.status == "ok"}
    bad: Sequence[str] = [
        f"{results.run.run_id}: {item.case.label} is {item.status}"
        for results in side.results for item in results.cases
        if item.status in ("wrong", "failed", "timeout", "not_run")]
    bad = bad or [f"{results.run.run_id}: {timed[missing]} has no time, and has one in other runs"
                  for results in side.results for missing in timed.keys() - {
                      item.case.case_id for item in results.cases if item.status == "ok"}]
    bad = bad or [f"{results.run.run_id}: {reason.what}: {reason.sentence}"
                  for results in side.results for item in results.cases
                  if item.status == "ok" for reason in unchecked(item)]
    bad = bad or [f"{results.run.run_id}: ranks are missing" for results in side.results
                  if len(results.run.ranks_present) < results.run.world_size]
    bad = bad or [f"{results.run.run_id}: faults were injected" for results in side.results
                  if results.run.faults]
    if bad:
        raise UsageError(f"{option}: these runs are not clean; first: {bad[0]}")


GOOD, SLOW, WRONG, MISSING, CRASHED, CANNOT_TELL = (
    "good", "slow", "wrong", "missing", "crashed", "cannot_tell")
SEVERITY = (CRASHED, WRONG, SLOW, MISSING, CANNOT_TELL, GOOD)
FEWEST_BEYOND = 2
"""Launches, all beyond a limit, that make a case SLOW."""
"""The overall outcome is the first of these that occurs: missing results hide no proven failure."""
_OF_STATUS = {"wrong": WRONG, "failed": CRASHED, "timeout": CRASHED, "skipped": MISSING,
              "not_run": MISSING}


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason not to pass: the outcome, the case or limit (``what``), and the numbers; ``file`` is
    the results that it is of, where several are checked, ``remedy`` what to do."""

    outcome: str
    what: str
    text: str
    case_id: str | None = None
    rank: int | None = None
    file: str = ""
    remedy: str = ""

    @property
    def sentence(self) -> str:
        return "; ".join(filter(None, (self.text, self.remedy)))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome, its reasons in a fixed order, and the numbers of limits and cases checked.
    ``held``: each value that holds its limit, or change that the baseline allows, is GOOD."""

    outcome: str
    reasons: tuple[Reason, ...]
    n_limits: int
    n_cases: int
    held: tuple[Reason, ...] = ()

    def exit_code(self, style: str) -> int:
        return STYLES[style][self.outcome]


def check_limits(results: Results, limits: Sequence[Limit]) -> CheckResult:
    """Return whether results hold their limits. Raises ConfigError for an unknown column or unit.
    """
    own = results.kind_columns
    columns = {column.name: column for column in (*CASE_COLUMNS, *own.columns)}
    refuse_unknown(limits, columns)
    rows = [(item, {**row_of(item), **own.values.get(item.case.case_id, {})})
            for item in results.cases]
    reasons = [*missing_ranks(results), *not_ok(results)]
    looked_at: set[str] = set()
    for limit in limits:
        chosen = [(item, row) for item, row in rows if _selected(limit, row)]
        if not chosen:
            wanted = " ".join(f"{name}={value}" for name, value in limit.select.items())
            reasons.append(Reason(MISSING, f"{limit.metric} of {wanted or 'all cases'}",
                                  "no case matches select"))
        for item, row in chosen:
            looked_at.add(item.case.case_id)
            reasons += _of_case(limit, item, row, columns[limit.metric])
    return concluded(reasons, len(limits), len(looked_at))


def concluded(reasons: Sequence[Reason], n_limits: int, n_cases: int) -> CheckResult:
    """Return the outcome of the reasons, of which GOOD ones are held; each is reported once."""
    once = [*dict.fromkeys(reasons)]
    in_order = sorted((reason for reason in once if reason.outcome != GOOD),
                      key=lambda reason: SEVERITY.index(reason.outcome))
    outcome = in_order[0].outcome if in_order else GOOD
    return CheckResult(outcome, tuple(in_order), n_limits, n_cases,
                       tuple(reason for reason in once if reason.outcome == GOOD))


_ALL = "docs/results-file.md#columns"


def refuse_unknown(limits: Sequence[Limit], columns: Mapping[str, CaseColumn]) -> None:
    """Raise ConfigError with every unknown or text column, and every unit of another quantity."""
    lines = []
    for at, limit in enumerate(limits):
        for key, name in (("metric", limit.metric), *((f"select.{one}", one)
                                                      for one in limit.select)):
            if name not in columns:
                guess = nearest(name, columns)
                hint = f'did you mean "{guess}"? ' if guess else ""
                lines.append(f"limits[{at}].{key}: {quote(name)} is not known; {hint}all: {_ALL}")
        column = columns.get(limit.metric)
        if column is None:
            continue
        if column.type is str:
            lines.append(f"limits[{at}].metric: {limit.metric} is text, and has no limits")
        elif limit.unit and SCALES[limit.unit][0] != column.units:
            lines.append(f'limits[{at}].unit: {limit.metric} is in {column.units}, '
                         f'not in {limit.unit}')
    if lines:
        raise ConfigError(*lines)


def missing_ranks(results: Results) -> Iterator[Reason]:
    gone = sorted({*range(results.run.world_size)} - {*results.run.ranks_present})
    if gone:
        yield Reason(MISSING, "ranks", f"no trace of rank {rank_list(gone)} of "
                     f"{results.run.world_size}")


def not_ok(results: Results) -> Iterator[Reason]:
    """Yield a reason for each case that is neither ok nor skipped."""
    for item in results.cases:
        if item.status not in ("ok", "skipped"):
            yield _of_status(item)


def _of_status(item: CaseResult) -> Reason:
    """Return why a case that is not ok does not pass; MISSING where its trace is lost."""
    outcome, status = (MISSING, "missing") if item.trace_missing else (
        _OF_STATUS[item.status], item.status)
    return Reason(outcome, item.case.label, f"{status}: {item.reason}".rstrip(": "),
                  item.case.case_id, item.blamed_rank)


def unchecked(item: CaseResult) -> Iterator[Reason]:
    if item.n_wrong is None and item.case.workload.features.has_result:
        yield Reason(CANNOT_TELL, item.case.label, "results were not checked", item.case.case_id)


def _selected(limit: Limit, row: Mapping[str, Any]) -> bool:
    return all(fnmatchcase(str(row.get(name)), str(value)) if name == "label"
               else _same(row.get(name), value) for name, value in limit.select.items())


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    return bool(value == wanted) or (not isinstance(value, bool) and str(value) == str(wanted))


def _of_case(
    limit: Limit, item: CaseResult, row: Mapping[str, Any], column: CaseColumn,
) -> Iterator[Reason]:
    case = item.case
    if item.status != "ok":
        yield _of_status(item)
        return
    yield from unchecked(item)
    value = row.get(limit.metric)  # NaN or ABSENT, where a column of a kind is filled in
    if value is None or value != value or (column.type is int and value == ABSENT[int]):
        yield Reason(MISSING, case.label, f"has no {limit.metric}", case.case_id)
        return
    if limit.of == "launches":
        yield from _launches_beyond(limit, item, column)
    else:
        yield from _beyond(limit, item, float(value), column)


def _beyond(
    limit: Limit, item: CaseResult, value: float, column: CaseColumn,
) -> Iterator[Reason]:
    """Yield a reason for each end of the limit: SLOW or CANNOT_TELL where the value, with its
    interval, exceeds it or may, else GOOD."""
    unit, scale = _unit(limit, column)
    low, high = interval_of(item.statistics, column, value)
    shown = f"{limit.metric} {digits(value / scale, 4)} {unit}"
    if (low, high) != (value, value):
        shown += f" ({digits(low / scale, 4)}..{digits(high / scale, 4)})"
    for edge, sign, text in _edges(limit, column):
        # a minimum is a maximum of the negated value
        best, worst = min(sign * low, sign * high), max(sign * low, sign * high)
        if best > edge:
            yield Reason(SLOW, item.case.label, f"{shown}, {text}", item.case.case_id)
        elif worst > edge:
            yield Reason(CANNOT_TELL, item.case.label,
                         f"{shown}, {text}; undecided: the limit lies inside the interval",
                         item.case.case_id)
        else:
            yield Reason(GOOD, item.case.label, f"{shown}, {text}", item.case.case_id)


def _launches_beyond(limit: Limit, item: CaseResult, column: CaseColumn) -> Iterator[Reason]:
    """Yield SLOW where the medians of all launches are beyond the limit, CANNOT_TELL for some, or
    of a single launch, GOOD for none.

    Of healthy launches a share 1 - q may be beyond a learned limit: n of n are by (1 - q)^n."""
    unit, scale = _unit(limit, column)
    times = launch_times(item)
    for edge, sign, text in _edges(limit, column):
        beyond = [time_s for time_s in times if sign * time_s > edge]
        worst = max(times) if sign > 0 else min(times)
        message = (f"{limit.metric} {digits(worst / scale, 4)} {unit} in the worst launch, "
                   f"{len(beyond)} of {len(times)} beyond, {text}")
        is_proven = len(beyond) == len(times) >= FEWEST_BEYOND
        if beyond and len(times) < FEWEST_BEYOND:
            message += "; one launch decides nothing: use --launches 5, or other jobs"
        outcome = GOOD if not beyond else SLOW if is_proven else CANNOT_TELL
        yield Reason(outcome, item.case.label, message, item.case.case_id)


def _unit(limit: Limit, column: CaseColumn) -> tuple[str, float]:
    """Return the unit of a limit, and its size in the column's unit."""
    return limit.unit or column.units, SCALES.get(limit.unit, ("", 1.0))[1]


def _edges(limit: Limit, column: CaseColumn) -> Iterator[tuple[float, int, str]]:
    """Yield for each end of a limit: the edge that a value times the sign must not exceed, the
    sign, and the text."""
    unit, scale = _unit(limit, column)
    why = f"; {limit.why}" if limit.why else ""
    for end, name, sign in ((limit.min, "min", -1), (limit.max, "max", 1)):
        if end is not None:
            yield sign * end * scale, sign, f"limit {name} {digits(end, 6)} {unit}{why}"


def interval_of(
    stats: Statistics | None, column: CaseColumn, value: float,
) -> tuple[float, float]:
    """Return the ends of the interval of a median time, or of a rate that follows from it.

    Where the interval is unreliable the range of launches takes its place. Both ends are the value
    itself where there is neither, or where the value does not follow from the median."""
    ends = _ends_of_median(stats)
    if stats is None or ends is None:
        return value, value
    if column.name == "median_s":
        return ends
    if column.name.endswith("_per_s") and not column.apart:
        return value * stats.median_s / ends[1], value * stats.median_s / ends[0]
    return value, value


def _ends_of_median(stats: Statistics | None) -> tuple[float, float] | None:
    if stats is None:
        return None
    if stats.reliable_interval is not None:
        return stats.reliable_interval
    if stats.launch_low_s is not None and stats.launch_high_s is not None:
        return stats.launch_low_s, stats.launch_high_s
    return None


STYLES: Mapping[str, Mapping[str, int]] = MappingProxyType({
    "ci": {GOOD: 0, SLOW: 10, WRONG: 11, MISSING: 12, CRASHED: 13, CANNOT_TELL: 14},
    "slurm": {GOOD: 0, SLOW: 1, WRONG: 1, MISSING: 0, CRASHED: 1, CANNOT_TELL: 0},
    "nagios": {GOOD: 0, SLOW: 2, WRONG: 2, MISSING: 3, CRASHED: 2, CANNOT_TELL: 3},
    "npd": {GOOD: 0, SLOW: 1, WRONG: 1, MISSING: 2, CRASHED: 1, CANNOT_TELL: 2},
    "gpud": {GOOD: 0, SLOW: 1, WRONG: 1, MISSING: 0, CRASHED: 1, CANNOT_TELL: 0},
})
"""Style -> outcome -> exit code. Slurm drains a node, and gpud calls it unhealthy, for any other
code than 0, so only evidence against the node has one; above 1 node-problem-detector has unknown.
"""
UNREADABLE: Mapping[str, int] = MappingProxyType(
    {"ci": 2, "slurm": 0, "nagios": 3, "npd": 2, "gpud": 0})
"""Style -> exit code where results or limits cannot be read."""


def check_file(results: Sequence[Path], limits: Path) -> CheckResult:
    """Return whether results hold the limits of a file. Raises FileError or ConfigError."""
    return _checked_by(results, read_limits(limits).limits, str(limits))


def check_runs(results: Sequence[Path], baseline: Sequence[Path], share: float) -> CheckResult:
    """Return whether results hold the limits that are learned from runs of a baseline.

    Raises FileError, and UsageError for too few launches or runs that are not clean."""
    name = "--baseline-range"
    content = learned(side_of(baseline), share, name)
    return _checked_by(results, checked_limits(content, name).limits, name)


def _checked_by(results: Sequence[Path], allowed: Sequence[Limit], name: str) -> CheckResult:
    side = side_of(results)
    try:
        checks = [check_limits(one, allowed) for one in side.results]
    except ConfigError as error:
        raise ConfigError(*(f"{name}: {line}" for line in error.args)) from None
    reasons = _of_files(results, ((*one.reasons, *one.held) for one in checks))
    return concluded(reasons, len(allowed), sum(one.n_cases for one in checks))


def _of_files(
    results: Sequence[Path], reasons: Iterable[Iterable[Reason]],
) -> list[Reason]:
    """Return the reasons of each of the results, with its name where they are several."""
    kept = each_once(results)
    return [replace(reason, file=valid(str(path))) if len(kept) > 1 else reason
            for path, same in zip(kept, reasons, strict=True) for reason in same]


def check_baseline(results: Sequence[Path], baseline: Sequence[Path],
                   smallest: float) -> CheckResult:
    """Return whether results are as fast as those of other files. Raises FileError."""
    before, now = side_of(baseline), side_of(results)
    old = cases_of(before)
    new = aligned(old, cases_of(now))
    result = compare(old, new, ("the baseline", "these results"), smallest)
    reasons = _of_files(results, map(_of_run, now.results))
    if not result.cases:
        reasons.append(Reason(MISSING, "baseline", "no case has times on both sides"))
    named = {reason.case_id for reason in reasons}
    ids = {key: new[key].case.case_id if key in new else case.case.case_id
           for key, case in old.items()}
    reasons += [Reason(MISSING, case.case.label, "no times here, but in the baseline", ids[key])
                for key, case in old.items() if case.launch_s and ids[key] not in named and not (
                    key in new and new[key].launch_s)]
    for case in result.cases:
        change = f"{change_text(case.interval)} against the baseline"
        if scope := scope_of([case]):
            change += f" {scope}"
        if protocol := protocol_text(case, ("baseline", "these results")):
            change += f" ({protocol})"
        if case.verdict == SLOWER and case.means_the_same:
            reasons.append(Reason(SLOW, case.label, change, ids[case.key]))
        elif case.verdict == SLOWER:
            reasons.append(Reason(CANNOT_TELL, case.label, f"{change}: the times are not of one "
                                  "kind", ids[case.key], remedy="measure both sides alike"))
        elif case.verdict not in (FASTER, SAME):
            undecided = f"undecided; {case.reason}"
            is_shown = min(case.launches) > 1 or case.reason.startswith(LOOKS)
            reasons.append(Reason(CANNOT_TELL, case.label,
                                  f"{change}: {undecided}" if is_shown else undecided,
                                  ids[case.key], remedy=case.remedy))
        else:
            reasons.append(Reason(GOOD, case.label, f"{change}: {case.verdict}", ids[case.key]))
    return concluded(reasons, 0, len(result.cases))


def _of_run(results: Results) -> Iterator[Reason]:
    """Yield the reasons that need no baseline; a skipped case may be skipped there, too."""
    yield from missing_ranks(results)
    yield from not_ok(results)
    for item in results.cases:
        if item.status == "ok":
            yield from unchecked(item)


def limits_of(config: Mapping[str, Any]) -> list[Limit]:
    """Return the limits of a configuration in plain JSON values; none if older code wrote it."""
    return [*map(Limit.model_validate, config.get("limits", ())),
            *map(limit_below, config.get("fail_below", ()))]


def refuse_limits(plan: Plan) -> None:
    """Raise ConfigError for limits of columns that no case of the plan will have."""
    limits = limits_of(plan.config)
    if not limits:
        return
    own = (one for kind in plan.kinds for one in metrics_of(kind) if one.is_scalar)
    try:
        refuse_unknown(limits, {
            column.name: column for column in (
                *CASE_COLUMNS, *(OF_ARRIVALS if plan.has_late_ranks else ()), *own)})
    except ConfigError as error:
        raise ConfigError(f"limits of the sweep: {'; '.join(error.args)}") from None


def check_own_limits(results: Results) -> CheckResult | None:
    """Return whether results hold the limits of their sweep; None for a sweep without limits."""
    limits = limits_of(results.plan.config)
    return check_limits(results, limits) if limits else None


def code_of(checked: CheckResult) -> int:
    """Return the exit code that ``hpcbench check`` has for an outcome."""
    return STYLES["ci"][checked.outcome]


def final_code(results: Results) -> ExitCode:
    """Return the exit code of a run: its own, or FINDINGS where only a limit does not hold."""
    code, checked = exit_code(results), check_own_limits(results)
    if code == ExitCode.OK and checked is not None and checked.outcome != GOOD:
        return ExitCode.FINDINGS
    return code
