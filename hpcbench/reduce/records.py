"""Derived values of each kind, their comparisons, and their columns of ``/cases``. They are derived
again where the version of the formulas or the columns of a kind differ."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.kinds.registry import kinds
from hpcbench.operations.arrival import TOGETHER
from hpcbench.plan.case import PROGRAM_KIND
from hpcbench.records import dataclass
from hpcbench.reduce import kind_facts
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.comparison import LATE_START, Comparison, holm_corrected
from hpcbench.reduce.metric import KindColumns, Metric, Values
from hpcbench.reduce.results import CaseResult, CaseSamples, Finding, Results
from hpcbench.reduce.roofline import MEASURED, machine_rates
from hpcbench.reduce.topology import Topology
from hpcbench.registry import in_this_package
from hpcbench.statistics.overlap import PassTimes
from hpcbench.trace.columns import LINES, read_column, read_lines, texts_of, write_lines
from hpcbench.units import grouped

_COMPARED_SETTINGS = ("block", "warmup", "iterations", "min_iterations", "validate", "wakeup_s")
"""Settings in which partners may differ; the one with the fewest differences is taken."""


def nearest(item: CaseResult, candidates: Iterable[CaseResult]) -> CaseResult | None:
    """Return the candidate that was measured most like a case, of equals the first planned one."""
    return min(candidates, default=None, key=lambda other: (
        other.statistics is None,
        sum(getattr(other.case, name) != getattr(item.case, name) for name in _COMPARED_SETTINGS),
        other.case.index))


def why_unpaired(name: str, what: str, item: CaseResult, other: CaseResult | None) -> str:
    """Return why a partner's times do not compare with the case's; nothing if they do."""
    if other is None:
        return (f"{name} of the same {what} was not run: it has another order or size, or is not "
                "in the sweep")
    if other.statistics is None:
        return f"{name} of the same {what} is {other.status}"
    folds = [one.timing.fold if one.timing else "" for one in (other, item)]
    if folds[0] != folds[1]:
        return f"the time of {name} has fold {folds[0]}, not {folds[1]}"
    in_both = any(map(all, zip(pass_medians_s(item), pass_medians_s(other), strict=False)))
    return "" if in_both else f"there is no pass in which {name} was run, too"


def pass_medians_s(item: CaseResult | None) -> PassTimes:
    return item.timing.pass_medians_s if item is not None and item.timing is not None else ()


def passes_by_launch(item: CaseResult | None, passes: int) -> tuple[PassTimes, ...]:
    """Return the medians of the passes of each launch, of so many planned ``passes``; launches of
    one process are one."""
    times = pass_medians_s(item)
    is_one = item is not None and item.timing is not None and item.timing.repeats
    length = max(len(times) if is_one else passes, 1)
    return tuple(times[start:start + length] for start in range(0, len(times), length))


def log_ratios(
    first: Sequence[PassTimes], second: Sequence[PassTimes],
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield, for each launch that has any pass of both, the logarithms of the second's times over
    the first's (pass,). Where the launches of one are one, so are those of the other."""
    if len(first) != len(second):
        first, second = ([tuple(chain.from_iterable(one))] for one in (first, second))
    for mine, others in zip(first, second, strict=True):
        logs = [math.log(b / a) for a, b in zip(mine, others, strict=False) if a and b]
        if logs:
            yield np.array(logs)


def median_s(item: CaseResult | None) -> float | None:
    return item.statistics.median_s if item is not None and item.statistics is not None else None


Derived = Mapping[str, Mapping[str, Any]]


def comparisons(results: Results) -> Iterator[Comparison]:
    """Yield all comparisons of a report, those that could not be made included."""
    yield from _all(results.cases, results.derived)
    yield from (Comparison(LATE_START) for item in results.cases if item.case.world_size > 1
                and item.case.arrival == TOGETHER
                and item.timing is not None and item.timing.late_start is None)


def apply_multiple_testing(
    cases: Sequence[CaseResult], derived: Derived,
) -> tuple[tuple[CaseResult, ...], Derived]:
    """Return cases and records, each comparison in them with whether it holds."""
    tests = holm_corrected([*_all(cases, derived)])
    judged = tuple(_with_start(item, tests) for item in cases)
    return judged, {kind: {case_id: _with_own(record, tests) for case_id, record in records.items()}
                    for kind, records in derived.items()}


def _all(cases: Iterable[CaseResult], derived: Derived) -> Iterator[Comparison]:
    yield from (item.timing.late_start for item in cases
                if item.timing is not None and item.timing.late_start is not None)
    for records in derived.values():
        for record in records.values():
            yield from _comparisons_of(record)


def slower_ranks(results: Results) -> Iterator[tuple[CaseResult, Comparison]]:
    """Yield each comparison by which a rank of a case is slower, beside that of its starts."""
    for item in results.cases:
        for one in _comparisons_of(results.record_of(item) or {}):
            if one.is_clear and one.rank is not None:
                yield item, one


def _comparisons_of(values: Values) -> Sequence[Comparison]:
    """Return the comparisons in the values of a case."""
    return values.get(COMPARISONS) or ()


def _with_start(item: CaseResult, known: Iterator[Comparison]) -> CaseResult:
    if item.timing is None or item.timing.late_start is None:
        return item
    return replace(item, timing=replace(item.timing, late_start=next(known)))


def _with_own(values: Values, known: Iterator[Comparison]) -> Values:
    own = _comparisons_of(values)
    return {**values, COMPARISONS: tuple(next(known) for _ in own)} if own else values


COMPARISONS = "comparisons"
OF_CASES = "derived"
"""Attribute of /cases: ``kind version digest`` of each kind whose derived values are columns."""
_NAME = re.compile("[a-z][a-z0-9_]*")
_RESERVED = frozenset((*(column.name for column in kind_facts.COLUMNS), *kind_facts.LINES_OF_CASES))
_TYPES = {"S": str, "i": int, "f": float}
Fields = Mapping[str, Any]
"""Values of a case that follow from its stamps (`reduce.kind_facts.Deriver.observe`)."""


class Observations:
    """Record fields that follow from stamps, or the exception of a plug-in, raised on
    derivation."""

    def __init__(
        self, topology: Topology | None = None,
        stored: Callable[[str], CaseSamples | None] = lambda _: None,
    ) -> None:
        """``stored`` reads the samples of a case that was not added."""
        self._topology = topology or Topology()
        self._stored = stored
        self._fields: dict[str, Fields | Exception] = {}

    def add(self, item: CaseResult, samples: CaseSamples) -> None:
        if item.case.kind not in kinds() or item.statistics is None:
            return
        fields: Fields | Exception
        try:
            fields = dict(kind_facts.deriver_of(kinds()[item.case.kind]).observe(
                item, replace(samples, topology=self._topology)))
        except Exception as error:
            fields = error
        self._fields[item.case.case_id] = fields

    def of(self, item: CaseResult) -> Fields:
        if item.statistics is not None and (samples := self._stored(item.case.case_id)):
            self.add(item, samples)
        fields = self._fields.get(item.case.case_id, {})
        if isinstance(fields, Exception):
            raise fields
        return fields


def with_records(
    results: Results, file: h5py.File | None = None, observed: Observations | None = None,
) -> Results:
    """Return the results with the records of all installed kinds, and why others have none. Records
    in ``file`` are used if those of all kinds fit; else all are derived, since which comparisons
    hold depends on all. A kind that cannot derive loses only its own records."""
    missing: dict[str, str] = {}
    by_kind = _by_kind(results)
    derivers = _derivers(by_kind, missing)
    stored = {} if file is None else stored_columns(file, results.cases)
    read = {} if file is None else {kind: records for kind, deriver in derivers.items() if (
        records := _read(file, kind, by_kind[kind], deriver, stored)) is not None}
    if file is not None and len(read) == len(derivers):
        results = replace(results, derived=read, missing_kinds=missing)
        return replace(results, kind_columns=kind_columns(results, stored, read_back=True))
    derived: dict[str, Mapping[str, Any]] = {}
    seen = observed or Observations(results.topology)
    hardware = dict(results.plan.config.get("hardware", {}))
    for kind, deriver in sorted(derivers.items(), key=lambda one: not one[1].measures):
        with _may_fail(kind, missing):
            records = _derived(deriver, by_kind[kind], hardware, seen)
            if deriver.measures:
                hardware[MEASURED] = {**hardware.get(MEASURED, {}), **machine_rates(
                    fact for item in by_kind[kind] for fact in deriver.facts(
                        item, records.get(item.case.case_id), lambda: None)
                    if isinstance(fact, kind_facts.MachineRate))}
            derived[kind] = records
    in_order = {kind: derived[kind] for kind in derivers if kind in derived}
    cases, judged = apply_multiple_testing(results.cases, in_order)
    final: dict[str, Mapping[str, Any]] = {}
    for kind, records in judged.items():
        with _may_fail(kind, missing):
            final[kind] = {case_id: derivers[kind].settled(record, records)
                           for case_id, record in records.items()}
    results = replace(results, cases=cases, derived=final, missing_kinds=missing)
    return replace(results, kind_columns=kind_columns(results, stored, read_back=False))


def with_joint_findings(results: Results) -> Results:
    """Return the results with contradictions that kinds find between their cases. HB153: a plug-in
    raised."""
    by_kind, findings = _by_kind(results), list(results.findings)
    for kind, records in results.derived.items():
        try:
            findings += [Finding(problem.code, "case" if problem.rejects else "note",
                                 f"case {item.case.label} ({item.case.case_id}): {problem.message}")
                         for item in by_kind[kind]
                         for problem in kind_facts.deriver_of(kinds()[kind]).facts(
                             item, records.get(item.case.case_id), lambda: None)
                         if isinstance(problem, Violation)]
        except Exception as error:
            if in_this_package(kinds()[kind].deriver_path):
                raise
            findings.append(Finding("HB153", "note", f"kind {kind}: the checks between its cases "
                                    f"raised {type(error).__name__}: {error}; fix the plug-in and "
                                    "reduce again"))
    return replace(results, findings=tuple(findings))


def _derivers(kinds_here: Iterable[str], missing: dict[str, str]) -> dict[str, kind_facts.Deriver]:
    derivers: dict[str, kind_facts.Deriver] = {}
    for kind in kinds_here:
        if kind in kinds():
            with _may_fail(kind, missing):
                derivers[kind] = kind_facts.deriver_of(kinds()[kind])
        else:
            missing[kind] = "is not installed here"
    return derivers


@contextlib.contextmanager
def _may_fail(kind: str, missing: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        missing[kind] = f"has records that cannot be derived ({type(error).__name__}: {error})"


def _derived(
    deriver: kind_facts.Deriver, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    observed: Observations,
) -> Mapping[str, Any]:
    records = dict(deriver.derive(items, hardware))
    for item in items:
        if item.case.case_id in records and (fields := observed.of(item)):
            records[item.case.case_id] = {**records[item.case.case_id], **fields}
    return {item.case.case_id: {one.name: one.kept(values.get(one.name)) for one in _own(deriver)}
            for item in items for values in [records.get(item.case.case_id, {})]}


def _own(deriver: kind_facts.Deriver) -> list[Metric]:
    """Return the metrics that `Deriver.derive` computes."""
    return [one for one in deriver.columns if one.of is None]


def write_records(file: h5py.File, results: Results) -> None:
    in_columns, documents = [], dict[str, dict[str, str]]()
    for kind in results.derived:
        deriver = kind_facts.deriver_of(kinds()[kind])
        in_columns.append(_version(kind, deriver))
        for declared in deriver.columns:
            if not declared.is_scalar:
                documents.setdefault(declared.name, {}).update({
                    case_id: declared.plain(values[declared.name])
                    for case_id, values in results.derived[kind].items()})
    for column, lines in documents.items():
        write_lines(file, f"cases/{column}", [
            lines.get(item.case.case_id, "null") for item in results.cases])
    if in_columns:
        file.require_group("cases").attrs[OF_CASES] = in_columns


def _version(kind: str, deriver: kind_facts.Deriver) -> str:
    """Return what tells whether columns are those of this deriver: its version, and their types."""
    form = json.dumps([(one.name, str(one.type)) for one in _own(deriver)])
    return f"{kind} {deriver.version} {hashlib.sha256(form.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a file that not all runs have, and its values by case id, as they are stored."""

    metric: Metric
    values: Mapping[str, Any]


def stored_columns(file: h5py.File, cases: Sequence[CaseResult]) -> dict[str, StoredColumn]:
    """Return the columns in a file that not all runs have, by name; damaged ones are left out."""
    columns = {}
    for name in file["cases"]:
        if name in _RESERVED:
            continue
        with contextlib.suppress(ValueError, KeyError, OSError):
            attributes = file[f"cases/{name}"].attrs
            units = attributes["units"]
            column = None if units == LINES else read_column(file, f"cases/{name}")
            values = read_lines(file, f"cases/{name}") if column is None else (
                texts_of(column) if column.dtype.kind == "S" else
                # NaN as the one of ABSENT: results as read equal those that were written
                [value if value == value else math.nan for value in column.tolist()])
            columns[name] = StoredColumn(Metric(
                name, units, attributes["description"],
                object if column is None else _TYPES[column.dtype.kind],
                apart=bool(attributes.get("apart", False))),
                {item.case.case_id: value for item, value in zip(cases, values, strict=True)})
    return columns


def _read(
    file: h5py.File, kind: str, items: Sequence[CaseResult], deriver: kind_facts.Deriver,
    stored: Mapping[str, StoredColumn],
) -> Mapping[str, Any] | None:
    """Return the stored records of a kind; None where there are none, or none of this deriver."""
    try:
        if _version(kind, deriver) not in file["cases"].attrs.get(OF_CASES, ()):
            return None
        columns = {one: _checked(stored[one.name], one) for one in _own(deriver)}
        return {item.case.case_id: {one.name: one.read(column.values[item.case.case_id])
                                    for one, column in columns.items()} for item in items}
    except (ValueError, KeyError):  # also pydantic's ValidationError
        return None


def _checked(column: StoredColumn, declared: Metric) -> StoredColumn:
    """Return a column. Raises ValueError if it is of another type than declared."""
    if column.metric.type is not (declared.type if declared.is_scalar else object):
        raise ValueError(f"{declared.name} is of another type")
    return column


def kind_columns(
    results: Results, stored: Mapping[str, StoredColumn], *, read_back: bool,
) -> KindColumns:
    """Return OF_ARRIVALS and OF_PROGRAMS where the run has them, and the columns of its kinds: as
    they are stored, if they are ``read_back``, else of the records; of kinds that are not installed
    as stored. A plug-in's fault costs only its own."""
    has_late = results.plan.has_late_ranks
    of_programs = kind_facts.OF_PROGRAMS if {case.kind for case in results.plan.cases} == {
        PROGRAM_KIND} else ()
    of_arrivals = kind_facts.OF_ARRIVALS if has_late else ()
    columns = {one.name: one for one in (*of_arrivals, *of_programs)}
    values = {item.case.case_id: {
        **(_arrivals_row(item) if has_late else {}),
        **{one.name: one.plain(one.value(item, None)) for one in of_programs}}
        for item in results.cases}
    missing: dict[str, str] = {}
    absent: list[str] = []
    for kind, items in _by_kind(results).items():
        if kind not in kinds():
            absent.append(kind)
            continue
        try:
            deriver = kind_facts.deriver_of(kinds()[kind])
            own = {column.name: column for column in deriver.columns}
            _check(own, columns)
            rows = {item.case.case_id: _own_row(
                own, item, results.record_of(item), stored if read_back else {})
                for item in items}
        except Exception as error:  # a plug-in's: it must not cost the results of the run
            missing[kind] = f"{type(error).__name__}: {error}"
            absent.append(kind)
            continue
        for name, column in own.items():
            before = f"{columns[name].text}; " if name in columns else ""
            columns[name] = replace(column, text=f"{before}{kind}: {column.text}")
        for case_id, row in rows.items():
            values[case_id] |= row
    for name, in_file in stored.items():
        if any(f"{kind}: " in in_file.metric.text for kind in absent):
            columns.setdefault(name, in_file.metric)
            for item in results.cases if in_file.metric.is_scalar else ():
                if item.case.kind in absent:
                    values[item.case.case_id][name] = in_file.values[item.case.case_id]
    scalars, documents = ([one for one in columns.values() if one.is_scalar is kind]
                          for kind in (True, False))
    return KindColumns(scalars, values, missing, documents)


def _arrivals_row(item: CaseResult) -> dict[str, Any]:
    arrivals = item.timing and item.timing.arrivals
    return {"arrival": item.case.arrival.text, **{
        one.name: getattr(arrivals, one.name) for one in kind_facts.OF_ARRIVALS[1:] if arrivals}}


def _check(own: Mapping[str, Metric], others: Mapping[str, Metric]) -> None:
    for name, column in own.items():
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise ValueError(f"a column cannot have the name {name!r}")
        if name in others and (others[name].units, others[name].type) != (
                column.units, column.type):
            raise ValueError(f"column {name} has other units or another type in another kind")


def _own_row(
    own: Mapping[str, Metric], item: CaseResult, values: Values | None,
    stored: Mapping[str, StoredColumn],
) -> dict[str, Any]:
    """Return a case's values as stored. Raises ValueError, TypeError or KeyError for others."""
    return {name: stored[name].values[item.case.case_id] if name in stored else
            one.plain(one.value(item, values)) for name, one in own.items() if one.is_scalar}


def _by_kind(results: Results) -> dict[str, list[CaseResult]]:
    return grouped((item.case.kind, item) for item in results.cases)
