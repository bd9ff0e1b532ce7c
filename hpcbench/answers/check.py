"""Do results hold their limits? Missing or unchecked results do not pass.

Limits stand in a file, or in the sweep file, or are another run's times (`learned_limits`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbench.answers.compare import repeated_by, side_doubts
from hpcbench.answers.compare_inputs import (
    Side,
    id_in_any_version,
    keys_of,
    launch_times,
    measured_id,
    side_of,
)
from hpcbench.config.axes import nearest, quote
from hpcbench.config.section import RATE, SCALES, Limit, limit_below, read_limits
from hpcbench.errors import ConfigError, ExitCode
from hpcbench.plan.case import Plan
from hpcbench.plan.order import INLINE_BACKENDS
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
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.units import digits, parse_bytes, rank_list

GOOD, SLOW, WRONG, MISSING, CRASHED, CANNOT_TELL = (
    "good", "slow", "wrong", "missing", "crashed", "cannot_tell")
SEVERITY = (CRASHED, WRONG, SLOW, MISSING, CANNOT_TELL, GOOD)
"""The overall outcome is the first of these that occurs: missing results hide no proven failure."""
MEASURES = "measures"
"""What ``select`` takes beside columns: a `measured_id`."""
FEWEST_BEYOND = 2
"""Launches, all beyond a limit, that make a case SLOW."""
_OF_STATUS = {"wrong": WRONG, "failed": CRASHED, "timeout": CRASHED, "skipped": MISSING,
              "not_run": MISSING}
_OF_FINDING = {"HB126": WRONG, "HB160": CRASHED}
"""Findings of scope ``run`` that are evidence against the machine."""


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
    ``held``: each value that holds its limit, or change that the baseline allows, is GOOD.
    ``doubts``: which runs are not to be quoted, and which are left out of a baseline.
    ``limits``: each as it was understood."""

    outcome: str
    reasons: tuple[Reason, ...]
    n_limits: int
    n_cases: int
    held: tuple[Reason, ...] = ()
    doubts: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def exit_code(self, style: str) -> int:
        return STYLES[style][self.outcome]


@dataclass(frozen=True, slots=True)
class _Row:
    """A case of the results in ``file`` with its values by column; ``key`` is that of `keys_of`,
    ``ids`` are its `id_in_any_version` and its `measured_id`, by the names of select."""

    file: str
    item: CaseResult
    values: Mapping[str, Any]
    key: str
    ids: Mapping[str, str]

    def reason(self, outcome: str, text: str, remedy: str = "") -> Reason:
        return Reason(outcome, self.item.case.label, text, self.item.case.case_id, file=self.file,
                      remedy=remedy)


def check_limits(results: Results, limits: Sequence[Limit]) -> CheckResult:
    """Return whether results hold their limits. Raises ConfigError for an unknown column or unit.
    """
    return check_together((results,), ("",), limits)


def check_together(
    results: Sequence[Results], files: Sequence[str], limits: Sequence[Limit],
) -> CheckResult:
    """Return whether each of the results, named ``files``, holds the limits; those of launches are
    held by the launches of all. Raises ConfigError for an unknown column or unit."""
    reasons: list[Reason] = []
    looked_at: set[tuple[str, str]] = set()
    asks = any(MEASURES in limit.select for limit in limits)
    tables = []
    for one, file, of_file in zip(results, files, keys_of(results), strict=True):
        own = one.kind_columns
        columns = {column.name: column for column in (*CASE_COLUMNS, *own.columns)}
        refuse_unknown(limits, columns)
        reasons += (replace(reason, file=file) for reason in (
            *missing_ranks(one), *not_sound(one), *not_ok(one)))
        tables.append((columns, file, [
            _Row(file, item, {**row_of(item), **own.values.get(item.case.case_id, {})}, key, {
                "case_id": id_in_any_version(item.case),
                **({MEASURES: measured_id(item.case)} if asks else {})})
            for item, key in zip(one.cases, of_file, strict=True)]))
    for limit in limits:
        pools: dict[str, list[_Row]] = {}
        for columns, file, rows in tables:
            column = columns[limit.metric]
            select = {name: _in_bytes(value, columns.get(name))
                      for name, value in limit.select.items()}
            chosen = [row for row in rows if _selected(select, row)]
            if not chosen:
                reasons.append(_selects_nothing(limit, file))
            for row in chosen:
                reasons += _flaws(row, column)
                value = _value(row, column)
                is_pooled = limit.of == "launches"
                looked_at.add(("" if is_pooled and len(tables) > 1 else file, row.key))
                if value is not None and is_pooled:
                    pools.setdefault(row.key, []).append(row)
                elif value is not None:
                    reasons += _beyond(limit, row, value, column)
        for pool in pools.values():
            reasons += _launches_beyond(limit, pool, column)
    return replace(concluded(reasons, len(limits), len(looked_at)), limits=tuple(
        _understood(limit, columns[limit.metric]) for columns, *_ in tables[:1]
        for limit in limits))


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
            if name not in columns and (key, name) != (f"select.{MEASURES}", MEASURES):
                guess = nearest(name, columns)
                hint = f'did you mean "{guess}"? ' if guess else ""
                lines.append(f"limits[{at}].{key}: {quote(name)} is not known; {hint}all: {_ALL}")
        for name, wanted in limit.select.items():
            try:
                _in_bytes(wanted, columns.get(name))
            except ValueError as error:
                lines.append(f"limits[{at}].select.{name}: {error}")
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


def not_sound(results: Results) -> Iterator[Reason]:
    """Yield a reason for each finding by which the results are not one sound run, for injected
    faults, and for a log that is cut."""
    if results.run.injected:
        yield Reason(CANNOT_TELL, "run", results.run.injected, remedy="run it without them")
    if cut := results.cut:
        yield Reason(MISSING, "run", cut)
    yield from (Reason(_OF_FINDING.get(one.code, CANNOT_TELL), "run", f"{one.code}: {one.message}")
                for one in results.findings if one.scope == "run")


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
        yield Reason(CANNOT_TELL, item.case.label, "results were not checked", item.case.case_id,
                     remedy="have the program check them" if _is_printed(item) else
                     "measure with validate: true")


def _selected(select: Mapping[str, Any], row: _Row) -> bool:
    return all(
        fnmatchcase(str(row.values.get(name)), str(value)) if name == "label"
        else _same(row.values.get(name), value) or (
            name in row.ids and _same(row.ids[name], value))
        for name, value in select.items())


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    return bool(value == wanted) or (not isinstance(value, bool) and str(value) == str(wanted))


def _in_bytes(wanted: Any, column: CaseColumn | None) -> Any:
    """Return a wanted value, sizes such as 64KiB as bytes. Raises ValueError for text that is none,
    or that is no number where the column has numbers."""
    if column is None or column.type is str or not isinstance(wanted, str):
        return wanted
    if column.units == "bytes":
        return parse_bytes(wanted)
    try:
        float(wanted)
    except ValueError:
        raise ValueError(f"{column.name} needs a number, not {quote(wanted)}") from None
    return wanted


def _of_cases(limit: Limit) -> str:
    wanted = " ".join(f"{name}={value}" for name, value in limit.select.items())
    return f"{limit.metric} of {wanted or 'all cases'}"


def _understood(limit: Limit, column: CaseColumn) -> str:
    """Return a limit with the unit in which it was understood."""
    unit = _unit(limit, column)[0]
    ends = (f"{name} {digits(end, 6)} {unit}" for name, end in (
        ("at least", limit.min), ("at most", limit.max)) if end is not None)
    return f"{_of_cases(limit)} {', '.join(ends)}"


def _selects_nothing(limit: Limit, file: str) -> Reason:
    text = "no case matches select" + (
        ": a case_id has all settings, iterations too" if "case_id" in limit.select else
        ": every setting counts but iterations, warm-ups and checks" if MEASURES in limit.select
        else "")
    return Reason(MISSING, _of_cases(limit), f"{text}; {limit.why}" if limit.why else text,
                  file=file)


def _value(row: _Row, column: CaseColumn) -> float | None:
    """Return the value of an ok case; None where it has none."""
    value: Any = row.values.get(column.name)  # NaN or ABSENT, where a column of a kind is filled in
    if row.item.status != "ok" or value is None or value != value or (
            column.type is int and value == ABSENT[int]):
        return None
    return float(value)


def _flaws(row: _Row, column: CaseColumn) -> Iterator[Reason]:
    """Yield why a case does not pass whatever its limit is."""
    if row.item.status != "ok":
        yield replace(_of_status(row.item), file=row.file)
        return
    for reason in unchecked(row.item):
        yield replace(reason, file=row.file)
    if _value(row, column) is None:
        yield row.reason(MISSING, f"has no {column.name}")


def _beyond(limit: Limit, row: _Row, value: float, column: CaseColumn) -> Iterator[Reason]:
    """Yield a reason for each end of the limit: SLOW or CANNOT_TELL where the value, with its
    interval, exceeds it or may, else GOOD."""
    unit, scale = _unit(limit, column)
    low, high = interval_of(row.item, column, value)
    shown = f"{limit.metric} {digits(value / scale, 4)} {unit}"
    if (low, high) != (value, value):
        shown += f" ({digits(low / scale, 4)}..{digits(high / scale, 4)})"
    stats = row.item.statistics
    is_single = (stats is not None and stats.n == 1 and not _is_printed(row.item)
                 and _follows_median(column))
    for edge, sign, text in _edges(limit, column):
        # a minimum is a maximum of the negated value
        best, worst = min(sign * low, sign * high), max(sign * low, sign * high)
        if is_single:
            yield row.reason(CANNOT_TELL, f"{shown}, {text}; undecided: a single sample",
                             "measure more iterations")
        elif best > edge:
            yield row.reason(SLOW, f"{shown}, {text}")
        elif worst > edge:
            yield row.reason(CANNOT_TELL,
                             f"{shown}, {text}; undecided: the limit lies inside the interval",
                             f"more launches narrow it: {_more_launches(row.item)}")
        else:
            yield row.reason(GOOD, f"{shown}, {text}")


def _launches_beyond(
    limit: Limit, rows: Sequence[_Row], column: CaseColumn,
) -> Iterator[Reason]:
    """Yield SLOW where the medians of all launches are beyond the limit, CANNOT_TELL for some, or
    of a single launch, GOOD for none.

    Of healthy launches a share 1 - q may be beyond a learned limit: n of n are by (1 - q)^n. The
    launches of all ``rows``, a case in several files, count together, but files may be of other
    nodes: one that is proven slow by its own launches stays so beside others."""
    launches = [(row, launch_times(row.item)) for row in rows]
    for end in _edges(limit, column):
        edge, sign, _ = end
        n_within = [sum(sign * time_s <= edge for time_s in times) for _, times in launches]
        is_slow = [not n and (not any(n_within) or len(times) >= FEWEST_BEYOND)
                   for n, (_, times) in zip(n_within, launches, strict=True)]
        for chosen in (True, False):
            pool = [one for one, slow in zip(launches, is_slow, strict=True) if slow == chosen]
            if pool:
                yield _of_pool(limit, pool, column, end)


def _of_pool(
    limit: Limit, launches: Sequence[tuple[_Row, Sequence[float]]], column: CaseColumn,
    end: tuple[float, int, str],
) -> Reason:
    """Return what the launches of a case in several files prove together, about one end; files
    with a launch beyond are named, or all."""
    (edge, sign, text), (unit, scale) = end, _unit(limit, column)
    first = launches[0][0]
    times = [sign * time_s for _, of_file in launches for time_s in of_file]
    files = [row.file for row, of_file in launches if max(sign * one for one in of_file) > edge]
    n_beyond = sum(time_s > edge for time_s in times)
    message = (f"{limit.metric} {digits(abs(max(times)) / scale, 4)} {unit} in the worst launch, "
               f"{n_beyond} of {len(times)} beyond, {text}")
    outcome = GOOD if not n_beyond else (
        SLOW if n_beyond == len(times) >= FEWEST_BEYOND else CANNOT_TELL)
    remedy = ""
    if outcome == CANNOT_TELL and len(times) < FEWEST_BEYOND:
        message += "; one launch decides nothing"
        remedy = f"give more: {_more_launches(first.item)}"
    elif outcome == CANNOT_TELL:
        message += "; SLOW takes all launches beyond, GOOD none"
        remedy = f"measure again ({_more_launches(first.item)}), and check that alone"
    return replace(first.reason(outcome, message, remedy), file=", ".join(
        files or [row.file for row, _ in launches]))


def _more_launches(item: CaseResult) -> str:
    """Return what gives more launches of a case that count."""
    timing, case = item.timing, item.case
    if case.backend in INLINE_BACKENDS or (timing is not None and timing.repeats):
        return "other jobs"
    return repeated_by(case, is_imported=_is_printed(item))


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


def interval_of(item: CaseResult, column: CaseColumn, value: float) -> tuple[float, float]:
    """Return the ends of the interval of a median time, or of a rate or share that follows from it.

    Both ends are the value itself where there is none, or where it does not follow from the
    median."""
    stats, ends = item.statistics, _ends_of_median(item)
    if stats is None or ends is None or not _follows_median(column):
        return value, value
    if column.name == "median_s":
        return ends
    return value * stats.median_s / ends[1], value * stats.median_s / ends[0]


def _follows_median(column: CaseColumn) -> bool:
    """Return whether a value is the median time, or a rate of it or its share of another."""
    return column.name == "median_s" or (
        column.name.endswith(RATE) or column.name.startswith("of_")) and not column.apart


def _is_printed(item: CaseResult) -> bool:
    return item.timing is not None and item.timing.is_imported


def _ends_of_median(item: CaseResult) -> tuple[float, float] | None:
    """Return the ends of the median's interval in seconds. Where it is unreliable, the range of
    launches takes its place, or it is widened to the passes, of a single one to the middle half of
    the samples; of fewer samples than an interval needs it is their range. A time that another
    program printed has none."""
    stats = item.statistics
    if stats is None or _is_printed(item):
        return None
    if stats.reliable_interval is not None:
        return stats.reliable_interval
    if stats.launch_low_s is not None and stats.launch_high_s is not None:
        return stats.launch_low_s, stats.launch_high_s
    if stats.ci_low_s is None or stats.ci_high_s is None:
        return stats.min_s, stats.max_s
    passes_s = [time_s for time_s in (item.timing.pass_medians_s if item.timing else ())
                if time_s is not None]
    ends = (*(passes_s if len(passes_s) > 1 else (stats.p25_s, stats.p75_s)),
            stats.ci_low_s, stats.ci_high_s)
    return min(ends), max(ends)


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
    return held_by(side_of(results), read_limits(limits).limits, str(limits))


def held_by(side: Side, allowed: Sequence[Limit], name: str) -> CheckResult:
    """Return whether results hold limits from ``name``. Raises ConfigError."""
    try:
        return replace(check_together(side.results, side.apart, allowed),
                       doubts=tuple(side_doubts(side)))
    except ConfigError as error:
        raise ConfigError(*(f"{name}: {line}" for line in error.args)) from None


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
