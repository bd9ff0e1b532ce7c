"""``soak.json``: what a soak has seen so far, in a size that does not grow with its cycles.

Times of all passes are folded into windows. When there are `MOST_WINDOWS`, neighbours become one:
windows are equally long, and there are always half as many or more. Wrong results, failures and the
slowest samples are kept one by one, the first or the worst `MOST_KEPT` of them; others are
counted. The file is replaced whole after each cycle: a kill costs the cycle that ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from hpcbench.records import dataclass
from hpcbench.texts import to_json
from hpcbench.trace.container import read_document, whole_file

SCHEMA, SCHEMA_VERSION = "hpcbench.soak", 1
RECORD_FILE = "soak.json"
MOST_WINDOWS = 256
MOST_KEPT = 20
STABLE_CYCLES = 100
"""A result within its tolerance whose bits were the same in so many cycles hardly changes by the
order of sums: atomic additions of a GPU would have shown before."""


class WindowValues(NamedTuple):
    """Some values of a window: how many, their mean, the least and the greatest; n is 0 of none."""

    n: int
    mean: float
    least: float
    greatest: float


NO_VALUES = WindowValues(0, 0.0, 0.0, 0.0)
Series = tuple[WindowValues, ...]
"""A point for each window."""


def joined(first: WindowValues, second: WindowValues) -> WindowValues:
    """Return the point of the values of both."""
    if not first.n or not second.n:
        return first if first.n else second
    n = first.n + second.n
    return WindowValues(n, (first.n * first.mean + second.n * second.mean) / n,
                 min(first.least, second.least), max(first.greatest, second.greatest))


def point_of(value: float | None) -> WindowValues:
    return NO_VALUES if value is None else WindowValues(1, value, value, value)


class Window(NamedTuple):
    """Passes that count as one: their first cycle, how many, seconds of soaking before the first.
    """

    cycle: int
    passes: int
    at_s: float


class WrongInCycle(NamedTuple):
    """The first wrong result of a case on a rank in a cycle, which began at ``time``; ``text`` has
    the element, what it was and should be, and the bits that differ."""

    cycle: int
    time: str
    case_id: str
    label: str
    rank: int
    node: str
    text: str


class CycleProblem(NamedTuple):
    """A case without a time, or a limit of the sweep that a cycle missed."""

    cycle: int
    time: str
    label: str
    status: str
    reason: str


class SlowSample(NamedTuple):
    """The longest sample of a case in a cycle; ``ratio`` is over its median pass in that cycle."""

    cycle: int
    time: str
    label: str
    seconds: float
    ratio: float


class Change(NamedTuple):
    """Software or machine that a cycle had otherwise than the one before."""

    cycle: int
    what: str


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """A case in one cycle: times of its passes, None where a pass was not run, its longest sample,
    and the checksums of its ranks, "" of results that are compared exactly."""

    case_id: str
    label: str
    pass_s: tuple[float | None, ...] = ()
    longest_s: float | None = None
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """What one cycle showed. ``readings`` of the machine: clocks, temperatures and counters by name
    (`cycle.READINGS`); ``versions``: texts that are equal while nothing was changed. One that was
    stopped is not ``whole``: it shows what it shows, and ends no soak."""

    time: str
    cases: tuple[CaseFacts, ...]
    wrong: tuple[WrongInCycle, ...] = ()
    n_wrong: int = 0
    checked: int = 0
    problems: tuple[CycleProblem, ...] = ()
    readings: Mapping[str, float] = field(default_factory=dict)
    throttled_by: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    findings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class SoakCase:
    """A case of all cycles: the times of its passes by window, in seconds. ``checksum`` is that of
    its first cycle, ``same`` counts those with it before the first ``other`` cycle, 0 if none."""

    case_id: str
    label: str
    pass_s: Series = ()
    checksum: str = ""
    same: int = 0
    other: int = 0

    @property
    def has_changed(self) -> bool:
        """Return whether bits that were the same in so many cycles as it takes have changed."""
        return self.other > 0 and self.same >= STABLE_CYCLES

    def after(self, cycle: int, checksum: str) -> SoakCase:
        """Return the case with the checksum of one more cycle."""
        if not checksum or self.other:
            return self
        if self.checksum in ("", checksum):
            return replace(self, checksum=checksum, same=self.same + 1)
        return replace(self, other=cycle)


@dataclass(frozen=True, slots=True)
class Soak:
    """A soak so far. ``planned_s`` and ``planned_cycles`` are its limits, ``spent_s`` is without
    the time between attempts. ``n_wrong`` counts elements, ``checked`` results; ``n_problems`` as
    ``problems`` without a bound. ``throttled_by`` and ``findings``: cycles by reason and by code.
    ``readings`` are by name, ``versions`` those of the newest cycle; ``faults`` were injected."""

    name: str
    run_id: str
    world_size: int
    started_at: str
    planned_s: float
    planned_cycles: int | None
    cycles: int = 0
    whole_cycles: int = 0
    spent_s: float = 0.0
    passes_a_window: int = 1
    windows: tuple[Window, ...] = ()
    cases: tuple[SoakCase, ...] = ()
    readings: Mapping[str, Series] = field(default_factory=dict)
    checked: int = 0
    n_wrong: int = 0
    wrong: tuple[WrongInCycle, ...] = ()
    wrong_cycles: int = 0
    n_problems: int = 0
    problems: tuple[CycleProblem, ...] = ()
    slowest: tuple[SlowSample, ...] = ()
    throttled_by: Mapping[str, int] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    findings: Mapping[str, int] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def has_reached_its_end(self) -> bool:
        return self.spent_s >= self.planned_s or (
            self.planned_cycles is not None and self.whole_cycles >= self.planned_cycles)


_SOAK = TypeAdapter(Soak)


def folded(soak: Soak, facts: CycleFacts, lasted_s: float) -> Soak:
    """Return the soak with one more cycle, which took so many seconds."""
    number = soak.cycles + 1
    slow = sorted((*soak.slowest, *_slow_samples(number, facts)), key=lambda one: -one.ratio)
    changes = [*soak.changes, *_changes(number, soak.versions, facts.versions)]
    return replace(
        _with_passes(soak, facts, lasted_s), cycles=number,
        whole_cycles=soak.whole_cycles + facts.whole, spent_s=soak.spent_s + lasted_s,
        checked=soak.checked + facts.checked, n_wrong=soak.n_wrong + facts.n_wrong,
        wrong=(*soak.wrong, *facts.wrong)[:MOST_KEPT],
        wrong_cycles=soak.wrong_cycles + bool(facts.wrong),
        n_problems=soak.n_problems + len(facts.problems),
        problems=(*soak.problems, *facts.problems)[:MOST_KEPT],
        slowest=tuple(slow[:MOST_KEPT]),
        throttled_by=_counted(soak.throttled_by, facts.throttled_by),
        xids=tuple(sorted({*soak.xids, *facts.xids})),
        findings=_counted(soak.findings, facts.findings),
        versions=facts.versions or soak.versions, changes=tuple(changes[:MOST_KEPT]))


def _changes(number: int, before: Sequence[str], now: Sequence[str]) -> Iterator[Change]:
    if before and now:
        yield from (Change(number, text) for text in sorted({*now} - {*before}))


def _counted(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {**counts, **{name: counts.get(name, 0) + 1 for name in {*names}}}


def _slow_samples(number: int, facts: CycleFacts) -> Iterator[SlowSample]:
    for case in facts.cases:
        passes = sorted(one for one in case.pass_s if one)
        if passes and case.longest_s is not None:
            ratio = case.longest_s / passes[len(passes) // 2]
            yield SlowSample(number, facts.time, case.label, case.longest_s, ratio)


def _with_passes(soak: Soak, facts: CycleFacts, lasted_s: float) -> Soak:
    cases = {one.case_id: one for one in facts.cases}
    order = soak.cases or tuple(SoakCase(one.case_id, one.label) for one in facts.cases)
    n_passes = max((len(one.pass_s) for one in facts.cases), default=0)
    anew = bool([*_changes(0, soak.versions, facts.versions)])  # other software, other bits
    soak = replace(soak, cases=tuple(
        (replace(one, checksum="", same=0) if anew and not one.other else one).after(
            soak.cycles + 1, cases[one.case_id].checksum) if one.case_id in cases else one
        for one in order))
    for at in range(n_passes):
        times = [_value(cases.get(one.case_id), at) for one in soak.cases]
        window = Window(soak.cycles + 1, 1, soak.spent_s + lasted_s * at / n_passes)
        readings = facts.readings if at == n_passes - 1 else {}
        soak = _with_pass(soak, window, times, readings)
    return soak


def _value(case: CaseFacts | None, at: int) -> float | None:
    return None if case is None or at >= len(case.pass_s) else case.pass_s[at]


def _with_pass(
    soak: Soak, window: Window, times: Sequence[float | None], readings: Mapping[str, float],
) -> Soak:
    """Return the soak with one more pass, in the last window, or in a new one where it is full."""
    if soak.windows and soak.windows[-1].passes < soak.passes_a_window:
        last = soak.windows[-1]
        windows = (*soak.windows[:-1], last._replace(passes=last.passes + 1))
        return replace(
            soak, windows=windows,
            cases=tuple(replace(one, pass_s=(*one.pass_s[:-1], joined(
                one.pass_s[-1], point_of(value))))
                for one, value in zip(soak.cases, times, strict=True)),
            readings={name: (*series[:-1], joined(series[-1], point_of(readings.get(name))))
                      for name, series in _aligned(soak, readings)})
    if len(soak.windows) >= MOST_WINDOWS:
        soak = _halved(soak)
    return replace(
        soak, windows=(*soak.windows, window),
        cases=tuple(replace(one, pass_s=(*one.pass_s, point_of(value)))
                    for one, value in zip(soak.cases, times, strict=True)),
        readings={name: (*series, point_of(readings.get(name)))
                  for name, series in _aligned(soak, readings)})


def _aligned(soak: Soak, names: Iterable[str]) -> Iterable[tuple[str, Series]]:
    """Return the series of all readings, those that are new filled up with nothing."""
    none: Series = (NO_VALUES,) * len(soak.windows)
    return {**dict.fromkeys(names, none), **soak.readings}.items()


def _halved(soak: Soak) -> Soak:
    """Return the soak with half as many windows, each twice as long."""
    windows = tuple(first._replace(passes=first.passes + second.passes)
                    for first, second in zip(soak.windows[::2], soak.windows[1::2], strict=True))
    return replace(
        soak, windows=windows, passes_a_window=2 * soak.passes_a_window,
        cases=tuple(replace(one, pass_s=_pairs(one.pass_s)) for one in soak.cases),
        readings={name: _pairs(series) for name, series in soak.readings.items()})


def _pairs(series: Series) -> Series:
    return tuple(map(joined, series[::2], series[1::2]))


def write_soak(folder: Path, soak: Soak) -> None:
    """Replace the record in a folder. Raises FileError where the disk does not take it."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(soak)}
    write_json(folder / RECORD_FILE, document)


def write_json(path: Path, document: Mapping[str, Any], **options: Any) -> None:
    with whole_file(path) as part:
        part.write_text(to_json(document, allow_nan=False, **options) + "\n", encoding="utf-8")


def read_soak(folder: Path) -> Soak:
    """Return the record in a folder. Raises FileError for none, a damaged one, or another schema.
    """
    return read_document(folder / RECORD_FILE, (SCHEMA, SCHEMA_VERSION), _SOAK.validate_python,
                         ("hpcbench soak", "begin a new soak"))
