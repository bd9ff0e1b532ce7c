"""The cases of a run as every format takes them: names, and numbers with units and intervals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.plan.choice import fitting, labels_of, only_flags
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CaseColumn
from hpcbench.reduce.metric import KindColumns
from hpcbench.reduce.reduce import exit_code, gaps
from hpcbench.reduce.results import CaseResult, Finding, Results, Statistics
from hpcbench.reduce.results_file import ResultsFile
from hpcbench.texts import as_field
from hpcbench.trace.clock import ClockModel
from hpcbench.units import grouped, plural

COLLECTIVE = "collective"
"""The column that names the collective of a case, and Inspector's label of it."""
TIME = "time"
"""The name of the metric that every measured case has."""
_SCALES = {"bytes/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}
_RATE = "_per_s"
_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_.=-]+")


@dataclass(frozen=True, slots=True)
class CaseMetric:
    """One number of a case, with its 95 % interval where there is a reliable one."""

    name: str
    unit: str
    value: float
    low: float | None
    high: float | None
    more_is_better: bool


@dataclass(frozen=True, slots=True)
class ExportedCase:
    """A case with a name that is its own in the run, and the values of its kind's columns.

    ``metrics`` are empty unless it is ``ok``; the first is the median time in us."""

    item: CaseResult
    name: str
    columns: Mapping[str, Any]
    metrics: tuple[CaseMetric, ...]

    @property
    def is_ok(self) -> bool:
        return self.item.status == "ok" and bool(self.metrics)

    @property
    def is_bad(self) -> bool:
        """Return whether the case ran and gave no result that holds."""
        return self.item.status in ("wrong", "failed", "timeout")

    @property
    def collective(self) -> str:
        """Return the name of the collective that the case measures, empty without one."""
        return str(self.columns.get(COLLECTIVE, ""))

    @property
    def slug(self) -> str:
        """Return the name without blanks, commas, colons and slashes."""
        return _NOT_IN_NAMES.sub("_", self.name)


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run with the chosen cases; ``columns`` are those of all its kinds.

    ``clocks`` has the lines from each rank's clock to the global one, where there are several."""

    results: Results
    source: ResultsFile
    columns: Sequence[CaseColumn]
    cases: tuple[ExportedCase, ...]
    clocks: Mapping[int, Sequence[ClockModel]] = field(default_factory=dict)

    @property
    def measured(self) -> tuple[ExportedCase, ...]:
        return tuple(case for case in self.cases if case.is_ok)

    def only(self, meant: Iterable[ExportedCase]) -> str:
        """Return the flags that choose these cases of all that were measured, "" without any."""
        ids = {case.item.case.case_id for case in meant}
        return only_flags(ids, labels_of(
            item.case for item in self.results.cases
            if item.case.case_id in ids or item.status not in ("skipped", "not_run")))

    @property
    def code(self) -> int:
        """Return the exit code of the chosen cases: 0, 1 wrong or failed, 3 incomplete."""
        return int(exit_code(self._chosen))

    @property
    def gaps(self) -> Iterator[str]:
        """Yield what the chosen cases lack of a whole run."""
        return gaps(self._chosen)

    @property
    def against(self) -> Iterator[Finding]:
        """Yield the findings by which the results are not one sound run."""
        return (one for one in self.results.findings if one.scope == "run")

    @property
    def _chosen(self) -> Results:
        return replace(self.results, cases=tuple(case.item for case in self.cases))


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A user's choice: ``metrics`` by name (none: the format's own), and how many ``samples``."""

    metrics: tuple[str, ...] = ()
    samples: int = 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case that a format does not carry, and why."""

    reason: str
    name: str


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of the file, and the cases not in it. ``notes`` state what a reader must know."""

    content: bytes
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def joined(lines: Iterable[str]) -> bytes:
    """Return the content of a file of lines, none of which a text from outside divides."""
    return "".join(f"{as_field(line)}\n" for line in lines).encode()


def exported_run(source: ResultsFile, only: Sequence[str] = ()) -> ExportedRun:
    """Return the run with the cases that ``only`` chooses (`plan.choice.fitting`).

    Raises UsageError where it chooses none."""
    results = source.results
    kinds = results.kind_columns
    counts = Counter(item.case.label for item in results.cases)
    ids = fitting(labels_of(item.case for item in results.cases), only) if only else ()
    chosen = [item for item in results.cases if not only or item.case.case_id in ids]
    if not chosen and results.cases:
        raise UsageError(f"--only {' '.join(only)}: matches none of "
                         f"{plural(len(results.cases), 'case')}; write words of a label, such as "
                         f'"{results.cases[0].case.label.split()[0]}"')
    return ExportedRun(results, source, kinds.columns, tuple(
        _exported(item, counts[item.case.label] > 1, kinds) for item in chosen),
        source.clock_models())


def _exported(item: CaseResult, twice: bool, kinds: KindColumns) -> ExportedCase:
    case = item.case
    columns = kinds.values.get(case.case_id, {})
    is_ok = item.status == "ok" and item.statistics is not None
    return ExportedCase(
        item, f"{case.label} {case.case_id}" if twice else case.label, columns,
        tuple(_metrics(item.statistics, columns, kinds.columns))
        if is_ok and item.statistics else ())


def _metrics(
    stats: Statistics, values: Mapping[str, Any], columns: Iterable[CaseColumn],
) -> Iterator[CaseMetric]:
    low_s, high_s = stats.reliable_interval or (None, None)
    yield CaseMetric(TIME, "us", stats.median_s * 1e6, low_s and low_s * 1e6,
                     high_s and high_s * 1e6, more_is_better=False)
    for column in columns:
        value = values.get(column.name)
        if (column.apart or not column.name.endswith(_RATE) or not isinstance(value, float)
                or not math.isfinite(value)):
            continue
        scale, unit = _SCALES.get(column.units, (1.0, column.units))
        amount = value * stats.median_s / scale  # the work of one call, done in the median time
        yield CaseMetric(_rate_name(column), unit, value / scale, high_s and amount / high_s,
                         low_s and amount / low_s, more_is_better=True)


def _rate_name(column: CaseColumn) -> str:
    """Return ``busbw`` of ``busbw_bytes_per_s``; a rate of anything else keeps its name."""
    return column.name.removesuffix("_bytes_per_s") if column.units == "bytes/s" else column.name


def chosen_metrics(case: ExportedCase, request: ExportRequest) -> tuple[CaseMetric, ...]:
    """Return the metrics of a case that were asked for; all where none was."""
    return tuple(one for one in case.metrics
                 if not request.metrics or one.name in request.metrics)


def metric_names(run: ExportedRun) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for case in run.cases for one in case.metrics))


def not_measured(run: ExportedRun) -> Iterator[LeftOut]:
    """Yield the cases without a result that holds, by their status."""
    words = {"wrong": "wrong result", "not_run": "not run"}
    for case in run.cases:
        if not case.is_ok:
            status = case.item.status
            yield LeftOut(words.get(status, status), case.name)


def left_out_lines(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """Yield a line for each reason: how many cases, and the first of them."""
    for reason, names in grouped((one.reason, one.name) for one in left_out).items():
        more = ", ..." if len(names) > 1 else ""
        yield f"left out: {plural(len(names), 'case')}: {reason} ({names[0]}{more})"


def plain_number(value: float, digits: int = 6) -> str:
    """Return a number with so many significant digits and never an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0.0" if value == 0 else "nan"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 1)
    whole, _, part = f"{value:.{decimals}f}".partition(".")
    return f"{whole}.{part.rstrip('0') or '0'}"
