"""Do results hold their limits? It fails closed: what is not there, or not checked, is no pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hpcbench.analysis.sides import launch_times
from hpcbench.config.limit import SCALES, Limit
from hpcbench.config.names import unknown_name
from hpcbench.errors import ConfigError
from hpcbench.reduce.case_columns import ABSENT, COLUMNS, CaseColumn, kind_columns, row_of
from hpcbench.reduce.results import CaseResult, Results, Statistics
from hpcbench.units import rank_list

GOOD, SLOW, WRONG, MISSING, CRASHED, CANNOT_TELL = (
    "good", "slow", "wrong", "missing", "crashed", "cannot_tell")
SEVERITY = (CRASHED, WRONG, MISSING, SLOW, CANNOT_TELL, GOOD)
"""The outcome of all is the first of these that there is."""
_NO_SAMPLES = (-1, 0, 0)
_OF_STATUS = {"wrong": WRONG, "failed": CRASHED, "timeout": CRASHED, "skipped": MISSING,
              "not_run": MISSING}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why results do not pass: what is the matter with which case, and the numbers behind it."""

    outcome: str
    what: str
    text: str
    case_id: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome, each reason for it in a fixed order, and how much was looked at."""

    outcome: str
    reasons: tuple[Reason, ...]
    n_limits: int
    n_cases: int


@dataclass(frozen=True, slots=True)
class _Table:
    """The rows of ``/cases``, and what its columns are."""

    columns: Mapping[str, CaseColumn]
    rows: Sequence[tuple[CaseResult, Mapping[str, Any]]]


def check_limits(results: Results, limits: Sequence[Limit]) -> Checked:
    """Return whether results hold their limits. Raises ConfigError for an unknown column or unit.
    """
    table = _table(results)
    refuse_unknown(limits, table.columns)
    reasons = [*missing_ranks(results), *not_ok(results)]
    looked_at: set[str] = set()
    for limit in limits:
        chosen = [(item, row) for item, row in table.rows if _selected(limit, row)]
        if not chosen:
            reasons.append(Reason(MISSING, _named(limit), "no case is what the limit selects"))
        for item, row in chosen:
            looked_at.add(item.case.case_id)
            reasons += _of_case(limit, item, row, table.columns[limit.metric])
    return concluded(reasons, len(limits), len(looked_at))


def concluded(reasons: Sequence[Reason], n_limits: int, n_cases: int) -> Checked:
    """Return what follows from the reasons; each is said once."""
    once = tuple(dict.fromkeys(reasons))
    outcome = next((one for one in SEVERITY if any(reason.outcome == one for reason in once)), GOOD)
    in_order = tuple(sorted(once, key=lambda reason: SEVERITY.index(reason.outcome)))
    return Checked(outcome, in_order, n_limits, n_cases)


def _table(results: Results) -> _Table:
    own = kind_columns(results)
    rows = [(item, {**row_of(item, _NO_SAMPLES), **own.values.get(item.case.case_id, {})})
            for item in results.cases]
    return _Table({column.name: column for column in (*COLUMNS, *own.columns)}, rows)


def refuse_unknown(limits: Sequence[Limit], columns: Mapping[str, CaseColumn]) -> None:
    """Raise ConfigError with every column or unit that there is not."""
    lines = []
    for at, limit in enumerate(limits):
        for key, name in (("metric", limit.metric), *((f"select.{one}", one)
                                                      for one in limit.select)):
            if name not in columns:
                lines.append(f"limits[{at}].{key}: {unknown_name(name, columns)}")
        column = columns.get(limit.metric)
        if column is None:
            continue
        if column.type is str:
            lines.append(f"limits[{at}].metric: {limit.metric} is text, and has no limits")
        elif limit.unit and SCALES[limit.unit][0] != column.units:
            lines.append(f'limits[{at}].unit: {limit.metric} is in {column.units}, '
                         f'not in {limit.unit}')
    if lines:
        raise ConfigError("\n".join(lines))


def missing_ranks(results: Results) -> Iterator[Reason]:
    """Yield that ranks left no trace, if any did not."""
    gone = sorted({*range(results.run.world_size)} - {*results.run.ranks_present})
    if gone:
        yield Reason(MISSING, "ranks", f"nothing of rank {rank_list(gone)} of "
                     f"{results.run.world_size}")


def not_ok(results: Results) -> Iterator[Reason]:
    """Yield the cases that should have an ok result and have none; a skipped case need not have.
    """
    for item in results.cases:
        if item.status not in ("ok", "skipped"):
            yield _of_status(item)


def _of_status(item: CaseResult) -> Reason:
    """Return why a case that is not ok does not pass; what a lost trace hides is only missing."""
    outcome = MISSING if item.trace_missing else _OF_STATUS[item.status]
    status = "missing" if item.trace_missing else item.status
    return Reason(outcome, item.case.label, f"{status}: {item.reason}".rstrip(": "),
                  item.case.case_id, item.blamed_rank)


def unchecked(item: CaseResult) -> Iterator[Reason]:
    """Yield that the results of an ok case were not checked, if they were not."""
    if item.n_wrong is None and item.case.workload.has_result:
        yield Reason(CANNOT_TELL, item.case.label, "results were not checked", item.case.case_id)


def _selected(limit: Limit, row: Mapping[str, Any]) -> bool:
    return all(fnmatchcase(str(row.get(name)), str(value)) if name == "label"
               else _same(row.get(name), value) for name, value in limit.select.items())


def _same(given: Any, wanted: Any) -> bool:
    if isinstance(given, (list, tuple)):
        given = " ".join(map(str, given))
    return bool(given == wanted) or (not isinstance(given, bool) and str(given) == str(wanted))


def _of_case(
    limit: Limit, item: CaseResult, row: Mapping[str, Any], column: CaseColumn,
) -> Iterator[Reason]:
    """Yield why a selected case does not pass."""
    case = item.case
    if item.status != "ok":
        yield _of_status(item)
        return
    yield from unchecked(item)
    value = row.get(limit.metric)
    if value is None or _is_absent(value, column):
        yield Reason(MISSING, case.label, f"has no {limit.metric}", case.case_id)
        return
    if limit.of == "launches":
        yield from _launches_beyond(limit, item, column)
    else:
        yield from _beyond(limit, item, float(value), column)


def _is_absent(value: Any, column: CaseColumn) -> bool:
    """Return whether a column has no value for a case: in columns of kinds it is filled in."""
    return value != value or (column.type is int and value == ABSENT[int])


def _beyond(
    limit: Limit, item: CaseResult, value: float, column: CaseColumn,
) -> Iterator[Reason]:
    """Yield whether the value, with its interval, is beyond the limit, or may be."""
    unit, scale = _unit(limit, column)
    low, high = interval_of(item.statistics, column, value)
    shown = f"{limit.metric} {value / scale:.4g} {unit}"
    if (low, high) != (value, value):
        shown += f" ({low / scale:.4g}..{high / scale:.4g})"
    for edge, sign, text in _edges(limit, column):
        # a least value is a greatest one of what is turned round
        best, worst = min(sign * low, sign * high), max(sign * low, sign * high)
        if best > edge:
            yield Reason(SLOW, item.case.label, f"{shown}, {text}", item.case.case_id)
        elif worst > edge:
            yield Reason(CANNOT_TELL, item.case.label,
                         f"{shown}, {text}; the interval holds the limit", item.case.case_id)


def _launches_beyond(limit: Limit, item: CaseResult, column: CaseColumn) -> Iterator[Reason]:
    """Yield whether the median of each launch is beyond the limit, or of some.

    A single launch is too slow only with its whole interval.
    """
    unit, scale = _unit(limit, column)
    times = launch_times(item)
    ends = _ends_of_median(item.statistics) if len(times) == 1 else None
    for edge, sign, text in _edges(limit, column):
        beyond = [time_s for time_s in times if sign * time_s > edge]
        worst = max(times) if sign > 0 else min(times)
        said = (f"{limit.metric} {worst / scale:.4g} {unit} in the worst launch, "
                f"{len(beyond)} of {len(times)} beyond, {text}")
        surely = len(beyond) == len(times) and (
            ends is None or min(sign * end for end in ends) > edge)
        if beyond:
            yield Reason(SLOW if surely else CANNOT_TELL, item.case.label, said,
                         item.case.case_id)


def _unit(limit: Limit, column: CaseColumn) -> tuple[str, float]:
    """Return the unit that a limit is in, and how many of the column's unit that is."""
    return limit.unit or column.units, SCALES.get(limit.unit, ("", 1.0))[1]


def _edges(limit: Limit, column: CaseColumn) -> Iterator[tuple[float, int, str]]:
    """Yield of each end of a limit: from where on a value, times the sign, is beyond it; its text.
    """
    unit, scale = _unit(limit, column)
    why = f"; {limit.why}" if limit.why else ""
    for end, word, sign in ((limit.min, "min", -1), (limit.max, "max", 1)):
        if end is not None:
            yield sign * end * scale, sign, f"limit {word} {end:g} {unit}{why}"


def interval_of(
    stats: Statistics | None, column: CaseColumn, value: float,
) -> tuple[float, float]:
    """Return the ends of the interval of a value: of times as they are, of rates turned round.

    Where the interval is not sound the range of launches takes its place. A value has none of both
    if its case has one launch, or if it does not follow from the median.
    """
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
    if stats.ci_reliable and stats.ci_low_s is not None and stats.ci_high_s is not None:
        return stats.ci_low_s, stats.ci_high_s
    if stats.launch_low_s is not None and stats.launch_high_s is not None:
        return stats.launch_low_s, stats.launch_high_s
    return None


def _named(limit: Limit) -> str:
    chosen = " ".join(f"{name}={value}" for name, value in limit.select.items())
    return f"{limit.metric} of {chosen or 'all cases'}"
