"""Profiles at the end of a run: merged traces, the profiler's overhead, and ``profile.json``.

Rank 0 does this from all ranks' files and the results. A profiler's clock is another one (torch: an
estimate of CLOCK_REALTIME). Markers limit the difference at both ends of a trace; between them it
is interpolated. All ranks' traces of a case become one on the global clock, in Chrome's trace event
format (`ph` X, s, f, M; us), for Perfetto and chrome://tracing. Process and thread ids, ids of
flows and correlation ids are made unique over ranks."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.errors import TraceError
from hpcbench.plan.case import Case
from hpcbench.profiling.flight import FLIGHT, is_over
from hpcbench.profiling.profiled_cases import (
    CLOCK_MARK,
    PROFILE_FOLDER,
    SAMPLE_MARK,
    ProfileNote,
    RankProfile,
    nsys_reports,
    rank_file,
    read_rank_file,
)
from hpcbench.records import dataclass
from hpcbench.reduce.fold import RankClocks, edges, extreme_durations, fold_samples, rank_clocks
from hpcbench.reduce.history import open_attempts
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.reduce.stack import is_timed
from hpcbench.statistics.order import median
from hpcbench.texts import from_json, to_json
from hpcbench.trace.clock import MAX_DRIFT, Nanoseconds, bound_at, to_global
from hpcbench.trace.container import whole_file
from hpcbench.trace.schema import SAMPLE_COLUMNS, from_values
from hpcbench.trace.source import PROFILE_NOTE, TraceSource, noted
from hpcbench.units import plural
from hpcbench.views.chart import file_name
from hpcbench.views.columns import missing_passes_text

MOST_LINES = 12
_MOST_PROBLEMS = 4
_UNCOUNTED = " (in no statistic)"
_BELOW_1 = ": the samples differ by more than the profiler costs, so its cost is not known"
"""The meaning of such a ratio: no profiler makes samples faster."""


def summary_lines(
    entries: Mapping[str, Mapping[str, Any]], flights: int, folder: str, *, enabled: bool,
    unreached: str = "",
) -> list[str]:
    """Return at most MOST_LINES lines about the entries of ``profile.json``; ``unreached`` is that
    on cases without."""
    return list(_lines(entries, flights, folder, unreached or (
        "no case is profiled: none ended ok" if enabled and not entries else "")))[:MOST_LINES]


def _lines(
    entries: Mapping[str, Mapping[str, Any]], flights: int, folder: str, unreached: str,
) -> Iterator[str]:
    if flights:
        yield (f"ranks waited when {plural(flights, 'case')} ended: their last collectives in "
               f"{folder}/flight-*.json")
    merged = [one for one in entries.values() if one["file"]]
    if merged:
        slowest = max(merged, key=lambda one: (one["overhead"] or {}).get("measured_s", 0.0))
        yield (f"{_count(len(merged), 'case')} profiled: traces in {folder} "
               f"(open with https://ui.perfetto.dev); the slowest, {slowest['label']}: "
               f"{Path(folder).parent / slowest['file']}")
    reported = [one for one in entries.values() if one["rank_files"] and not one["file"]]
    if reported:
        yield (f"{_count(len(reported), 'case')} profiled by nsys: reports in {folder}/ranks "
               "(open with nsys-ui)")
    if unreached:
        yield unreached
    if measured := [one for one in [*merged, *reported] if one["overhead"]]:
        yield _overhead_line(measured)
    if dropped := [one for one in merged if one["n_dropped"]]:
        yield (f"{_count(len(dropped), 'merged trace')} cut by up to "
               f"{max(case['n_dropped'] for case in dropped)} short events of each rank; the files "
               "of the ranks are whole")
    failed = [one for one in entries.values() if one["problem"]]
    for problem in failed[:_MOST_PROBLEMS]:
        yield f"no profile of {problem['label']}: {problem['problem']}"
    if (more := len(failed) - _MOST_PROBLEMS) > 0:
        yield f"nor of {more} more: profile.json says why"
    left_out = [one for one in entries.values() if not one["profiled"]]
    if left_out:
        alike = len({one["why"] for one in left_out}) == 1
        yield (f"{_count(len(left_out), 'case')} not profiled"
               f"{'' if alike else ', first ' + left_out[0]['label']}: {left_out[0]['why']}")


def _overhead_line(measured: list[Mapping[str, Any]]) -> str:
    if len(measured) == 1:
        overhead = measured[0]["overhead"]
        return (f"cost of profiling: a sample takes {overhead['ratio']:.2f}x the measured time"
                f"{_UNCOUNTED if overhead['ratio'] >= 1 else _BELOW_1}")
    ordered = sorted(measured, key=lambda one: one["overhead"]["ratio"])
    least, most = ordered[0]["overhead"]["ratio"], ordered[-1]["overhead"]["ratio"]
    return (f"cost of profiling: a sample takes {least:.2f}x to {most:.2f}x the measured time"
            f"{_UNCOUNTED if least >= 1 else _BELOW_1}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'} {'is' if number == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians in seconds of profiled and of measured samples, each of so many, by one ``fold``.

    ``ratio`` is profiled over measured."""

    profiled_s: float
    n_profiled: int
    measured_s: float
    n_measured: int
    fold: str
    ratio: float


def overhead(
    item: CaseResult, ranks: Sequence[RankProfile], clocks: RankClocks,
) -> Overhead | None:
    """Return the overhead of profiling a case, folded over ranks as measured samples are; None if
    incomparable."""
    if item.statistics is None or item.timing is None or len({len(one.rows) for one in ranks}) != 1:
        return None
    rows = np.array([one.rows for one in ranks], dtype=np.int64)  # (rank, sample, column)
    columns: dict[str, Any] = {name: rows[:, :, at] for at, name in enumerate(SAMPLE_COLUMNS)}
    first = np.zeros(rows.shape[1], dtype=np.int64)
    samples = CaseSamples(ranks=tuple(one.rank for one in ranks), launch=first, pass_index=first,
                          phases={}, **columns)  # as those of one pass of a case are
    if not is_timed(samples).any():
        return None
    stamps = clocks.stamps(samples)
    work = item.case.workload
    common = edges(stamps, work.groups, work.group_stride) if stamps else None
    folded = fold_samples(item.case, samples, extreme_durations(samples), common)
    if folded.fold != item.timing.fold:
        return None
    times_s = folded.times_s[is_timed(samples)]
    profiled_s, measured_s = median(times_s), item.statistics.median_s
    return Overhead(profiled_s, times_s.size, measured_s, item.statistics.n, folded.fold,
                    profiled_s / measured_s)


PROFILE_FILE = "profile.json"
SCHEMA_VERSION = 1
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class CaseProfile:
    """One case's entry in ``profile.json``.

    Attributes:
        profiled, why: whether it was profiled, and why or why not.
        problem: what failed, "" if nothing.
        file: the merged trace, relative to the results folder; "" without one.
        rank_files: those of the ranks, likewise.
        overhead: profiled against measured samples, None where they cannot be compared.
        n_events, n_dropped: events in the merged trace, and those left out.
        anchor_bound_s: limit of the error between the profiler's clock and the rank's, any rank.
        clock_bound_s: limit of the error between two ranks' clocks; 0 on one clock.
        start_spread_s: how far apart the ranks began a profiled sample at most."""

    case_id: str
    label: str
    profiled: bool
    why: str
    problem: str = ""
    file: str = ""
    rank_files: tuple[str, ...] = ()
    overhead: Overhead | None = None
    n_events: int = 0
    n_dropped: int = 0
    anchor_bound_s: float | None = None
    clock_bound_s: float | None = None
    start_spread_s: float | None = None


def write_profiles(folder: Path, results: Results) -> list[str]:
    """Merge the traces of each profiled case, write ``profile.json``; return its lines.

    Flight records of cases that hung are written beside it. A file that cannot be read or merged
    costs its case's profile only. Raises FileError."""
    path = folder / PROFILE_FOLDER / PROFILE_FILE
    entries = dict(_earlier_entries(path))
    opened = [sources for sources, _ in open_attempts(folder / "traces") if sources]
    attempts = [{source.header.rank: source for source in sources} for sources in opened]
    for sources in attempts:
        merged = {} if sources is attempts[-1] else entries  # the newest one is merged again
        entries |= {one.case_id: asdict(one) for one in _profiles(folder, results, sources)
                    if one.case_id not in merged}
    flights = _write_flight_records(folder, results)
    enabled = bool(results.plan.config.get("profiling", {}).get("enabled"))
    lines = summary_lines(entries, flights, str(folder / PROFILE_FOLDER), enabled=enabled,
                          unreached=_unreached(results, entries) if enabled else "")
    if not lines:
        return []
    with whole_file(path, make_folder=True) as part:
        part.write_text(to_json(
            {"schema_version": SCHEMA_VERSION, "lines": lines, "cases": entries}, indent=1) + "\n")
    return lines


def _unreached(results: Results, entries: Mapping[str, Any]) -> str:
    """Return a line on measured cases that the run was to profile and ended before, "" if none."""
    left = sum(item.status == "ok" and item.case.case_id not in entries for item in results.cases)
    passes = missing_passes_text(results)
    when = f"after {passes}; traces follow the last" if passes else "before"
    return f"{_count(left, 'case')} not profiled: the run ended {when}" if left else ""


def _has_hung(item: CaseResult) -> bool:
    """Return whether flight records show where ranks were: also of a failed case in which one still
    waited, but of none that a user has stopped."""
    records = [record for left in item.detail.values() if (record := left.get(FLIGHT))]
    return bool(records) and (item.status == "timeout" or item.status == "failed" and any(
        not is_over(entry) for record in records for entry in record.get("entries", ())))


def _write_flight_records(folder: Path, results: Results) -> int:
    """Write the flight record of each rank of each case that has any; return how many have."""
    cases = {item.case.case_id: item for item in results.cases if _has_hung(item)}
    names = _file_names([item.case for item in cases.values()])
    for case_id, item in cases.items():
        for rank, left in item.detail.items():
            if record := left.get(FLIGHT):
                path = folder / PROFILE_FOLDER / f"flight-{names[case_id]}-rank{int(rank):05d}.json"
                with whole_file(path, make_folder=True) as part:
                    part.write_text(to_json({
                        "case_id": case_id, "label": item.case.label, "rank": int(rank),
                        "reason": item.reason, **record}, indent=1) + "\n")
    return len(cases)


def _profiles(
    folder: Path, results: Results, sources: Mapping[int, TraceSource],
) -> Iterator[CaseProfile]:
    notes = [from_values(ProfileNote, data) for data in noted(sources[0], PROFILE_NOTE)] \
        if 0 in sources else []
    by_id = {item.case.case_id: item for item in results.cases}
    names = _file_names([item.case for item in results.cases])
    clocks = rank_clocks(sources.values())
    for note in notes:
        if note.case_id in names:
            yield _profile(_ProfileFiles(folder, sources, clocks, names[note.case_id]),
                           by_id[note.case_id], note)


def _earlier_entries(path: Path) -> dict[str, Any]:
    """Return the cases that an earlier attempt of a resumed run has profiled."""
    try:
        entries = from_json(path.read_bytes())
        return dict(entries["cases"]) if entries["schema_version"] == SCHEMA_VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _file_names(cases: Sequence[Case]) -> dict[str, str]:
    """Return case id -> the label as a file name; labels that are alike there get the id, too."""
    names = {case.case_id: file_name(case.label.replace(" ", "-"))[:_LONGEST_NAME]
             for case in cases}
    used = list(names.values())
    return {case_id: name if used.count(name) == 1 else f"{name}-{case_id}"
            for case_id, name in names.items()}


@dataclass(frozen=True, slots=True)
class _ProfileFiles:
    """Where a case's files are, and the traces and clocks of the ranks."""

    folder: Path
    sources: Mapping[int, TraceSource]
    clocks: RankClocks
    name: str


def _profile(files: _ProfileFiles, item: CaseResult, note: ProfileNote) -> CaseProfile:
    """Return the entry of one case; its merged trace is written if there is one."""
    case, kept = item.case, CaseProfile(
        item.case.case_id, item.case.label, note.is_wanted, note.why, note.problem)
    if not note.is_wanted or note.problem:
        return kept
    paths = [rank_file(files.folder, case.case_id, rank) for rank in range(case.world_size)]
    try:
        abouts = [read_rank_file(path)[0] for path in paths]
        if not all(about.anchors for about in abouts):  # recorded from outside, by nsys
            return _without_merge(kept, files, item, abouts)
        ranks = [_rank_data(path, files) for path in paths]
        merged = merge([rank.trace for rank in ranks])
    except TraceError as error:
        return replace(kept, problem=str(error))
    target = files.folder / PROFILE_FOLDER / f"{files.name}.json.gz"
    _write(target, merged, case, [rank.about for rank in ranks])
    bounds_ns = sorted(rank.clock_bound_ns for rank in ranks)
    return replace(
        kept, file=str(target.relative_to(files.folder)),
        rank_files=tuple(str(path.relative_to(files.folder)) for path in paths),
        overhead=overhead(item, [rank.about for rank in ranks], files.clocks),
        n_events=len(merged.events), n_dropped=merged.n_dropped,
        anchor_bound_s=max(rank.anchor_bound_ns for rank in ranks) / 1e9,
        clock_bound_s=sum(bounds_ns[-2:]) / 1e9 if files.clocks.n_clocks > 1 else 0.0,
        start_spread_s=None if merged.spread_ns is None else merged.spread_ns / 1e9)


def _without_merge(
    kept: CaseProfile, files: _ProfileFiles, item: CaseResult, ranks: Sequence[RankProfile],
) -> CaseProfile:
    """Return the entry of a case of which another program has written reports."""
    reports = [path for about in ranks for path in nsys_reports(files.folder, about.rank)]
    return replace(
        kept, overhead=overhead(item, ranks, files.clocks),
        rank_files=tuple(str(path.relative_to(files.folder)) for path in reports),
        problem="" if reports else "nsys left no report")


@dataclass(frozen=True, slots=True)
class _RankData:
    """One rank's file, with its events on the global clock, and the bounds of their errors."""

    about: RankProfile
    trace: RankTrace
    anchor_bound_ns: float
    clock_bound_ns: float


def _rank_data(path: Path, files: _ProfileFiles) -> _RankData:
    """Return the data of a file. Raises TraceError if it cannot be put on the global clock."""
    about, trace = read_rank_file(path)
    base_ns, events = int(trace.get("baseTimeNanoseconds", 0)), trace.get("traceEvents", [])
    marks_ns = sorted(base_ns + round(event["ts"] * 1000) for event in events
                      if event.get("name") == CLOCK_MARK and event.get("ph") == "X"
                      and event.get("cat") == "user_annotation")
    anchor = fit_anchor([(before, after) for before, after in about.anchors], marks_ns)
    if not anchor.is_steady:
        raise TraceError(f"rank {about.rank}: the profiler's clock drifts by "
                         f"{anchor.drift * 1e6:.0f} ppm against the rank's own")
    host = files.sources[about.rank].header.hostname if about.rank in files.sources else "?"
    rank_trace = RankTrace(about.rank, host, events, base_ns, anchor.to_local)
    history = files.clocks.known.get(files.clocks.ids.get(about.rank, -1))
    if history is None or files.clocks.n_clocks == 1:
        return _RankData(about, rank_trace, anchor.bound_ns, 0.0)
    models = history.models
    bound_ns = float(bound_at(models, np.array([about.rows[-1][1]])).max())
    return _RankData(about, replace(rank_trace, to_global=lambda profiler_ns: to_global(
        models, anchor.to_local(profiler_ns))), anchor.bound_ns, bound_ns)


def _write(path: Path, merged: Merged, case: Case, ranks: Sequence[RankProfile]) -> None:
    content = {
        "schemaVersion": 1, "displayTimeUnit": "ms", "traceName": path.name,
        "traceEvents": merged.events, "hpcbench": {
            "case_id": case.case_id, "label": case.label, "n_ranks": len(ranks),
            "begin_global_ns": merged.begin_ns, "n_dropped": merged.n_dropped}}
    with whole_file(path) as part, gzip.open(part, "wt", compresslevel=6) as out:
        out.write(to_json(content))


@dataclass(frozen=True, slots=True)
class Anchor:
    """The line from a profiler's time to the rank's own clock.

    Attributes:
        at_ns: profiler's time of the first end.
        offset_ns: profiler's less own time there.
        drift: gain of the profiler's clock per time, 1e-6 is 1 us/s.
        bound_ns: limit of the error of `to_local` at the two ends."""

    at_ns: int
    offset_ns: int
    drift: float
    bound_ns: float

    def to_local(self, profiler_ns: Nanoseconds) -> Nanoseconds:
        """Return the times on the rank's own clock, in ns (int64, any shape)."""
        drifted = np.rint(self.drift * (profiler_ns - self.at_ns)).astype(np.int64)
        return np.asarray(profiler_ns - self.offset_ns - drifted, dtype=np.int64)

    @property
    def is_steady(self) -> bool:
        return abs(self.drift) <= MAX_DRIFT


def fit_anchor(stamps: Sequence[tuple[int, int]], marks_ns: Sequence[int]) -> Anchor:
    """Return the anchor from stamps (before, after) and the begins of the markers between them.

    The first half of them is from the begin of the trace, the second from its end. Raises
    TraceError if there is not a marker for each pair of stamps, or fewer than two."""
    if len(stamps) != len(marks_ns) or len(stamps) < 2:
        raise TraceError(f"the profiler's trace has {len(marks_ns)} of {len(stamps)} clock markers")
    half = len(stamps) // 2
    at_ns, first_ns, first_bound_ns = _end(stamps[:half], marks_ns[:half])
    end_ns, last_ns, last_bound_ns = _end(stamps[half:], marks_ns[half:])
    span_ns, change_ns = end_ns - at_ns, last_ns - first_ns
    unknown_ns = first_bound_ns + last_bound_ns
    # a change within the markers' bounds is none: short traces would show a false drift
    drift = change_ns / span_ns if span_ns > 0 and abs(change_ns) > unknown_ns else 0.0
    return Anchor(at_ns, first_ns, drift, max(first_bound_ns, last_bound_ns)
                  + (abs(change_ns) if not drift else 0))


def _end(
    stamps: Sequence[tuple[int, int]], marks_ns: Sequence[int],
) -> tuple[int, int, float]:
    """Return the time of one end of a trace, the difference of the clocks and its limit, in ns.

    All markers of that end limit it together; if they contradict, the narrowest does."""
    pairs = list(zip(stamps, marks_ns, strict=True))
    low = max(mark_ns - after_ns for (_, after_ns), mark_ns in pairs)
    high = min(mark_ns - before_ns for (before_ns, _), mark_ns in pairs)
    if low > high:  # stamps of the profiler are rounded, and its clock may be adjusted in between
        (before_ns, after_ns), mark_ns = min(pairs, key=lambda pair: pair[0][1] - pair[0][0])
        return (mark_ns, mark_ns - (before_ns + after_ns) // 2,
                (after_ns - before_ns) / 2 + (low - high))
    return marks_ns[0], (low + high) // 2, (high - low) / 2


Event = dict[str, Any]
MOST_EVENTS = 400_000
"""Events of one merged file: about 100 MB of JSON, which a browser still opens."""
_IDS_OF_A_RANK = 1 << 32
"""Distance of the ids of two ranks: exact in JSON's doubles for up to 2**21 ranks."""
_THREADS_OF_A_RANK = 10_000
_UNIQUE_ARGS = ("External id", "correlation", "Sequence number")
_OF_THE_PROFILER = ("Spans", "Traces", "")
"""Pids of the profiler's events about itself; rows of their own in a viewer, without use here."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's events (``base_ns`` plus ``ts`` in us), its host, and the map to global ns."""

    rank: int
    host: str
    events: Sequence[Event]
    base_ns: int
    to_global: Callable[[Nanoseconds], Nanoseconds]


@dataclass(frozen=True, slots=True)
class Merged:
    """The events of all ranks, in order of time from 0 us at ``begin_ns`` of the global clock.

    ``n_dropped``: the shortest of every rank that had more than its share. ``marks_ns``: rank ->
    sample -> global begin."""

    events: list[Event]
    begin_ns: int
    n_dropped: int
    marks_ns: Mapping[int, Mapping[int, int]]

    @property
    def spread_ns(self) -> int | None:
        """Return how far apart the ranks begin a sample at most; None for a single rank."""
        common = [set(marks) for marks in self.marks_ns.values()]
        starts = [[marks[number] for marks in self.marks_ns.values()]
                  for number in set.intersection(*common)] if len(common) > 1 else []
        return max((max(at) - min(at) for at in starts), default=None)


def merge(traces: Sequence[RankTrace], most_events: int = MOST_EVENTS) -> Merged:
    """Return one trace of all; each rank may fill an equal share of ``most_events``."""
    ranks = [_RankEvents(trace, most_events // max(len(traces), 1)) for trace in traces]
    timed = [event for rank in ranks for event in rank.timed()]
    begin_ns = min((event["ts"] for event in timed), default=0)
    for event in timed:
        event["ts"] = (event["ts"] - begin_ns) / 1000
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    names = [event for rank in ranks for event in rank.names()]
    return Merged([*names, *timed], begin_ns, sum(rank.n_dropped for rank in ranks),
                  {rank.trace.rank: rank.marks_ns for rank in ranks})


@dataclass(slots=True)
class _RankEvents:
    """The events of one rank on their way into the merged trace."""

    trace: RankTrace
    share: int
    n_dropped: int = 0
    marks_ns: dict[int, int] = field(default_factory=dict)
    _threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    _main: int | None = None

    def timed(self) -> Iterator[Event]:
        """Yield the events that have a time, with ``ts`` still in global ns."""
        events = [event for event in self.trace.events
                  if event.get("ph") != "M" and "ts" in event
                  and event.get("pid") not in _OF_THE_PROFILER and event["name"] != CLOCK_MARK]
        kept = self._kept(events)
        ts_ns = np.array([round(event["ts"] * 1000) for event in kept], dtype=np.int64)
        for event, at_ns in zip(
                kept, self.trace.to_global(ts_ns + self.trace.base_ns).tolist(), strict=True):
            name = event["name"]
            if name.startswith(SAMPLE_MARK) and event.get("cat") == "user_annotation":
                self.marks_ns[int(name.removeprefix(SAMPLE_MARK))] = at_ns
                self._main = self._thread(event["pid"], event["tid"])
            yield {**self._unique(event), "ts": at_ns}

    def _kept(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events of the rank's share: first the samples' markers, then the longest."""
        if len(events) <= self.share:
            return events
        self.n_dropped = len(events) - self.share
        return sorted(events, key=lambda event: (
            not event["name"].startswith(SAMPLE_MARK), -event.get("dur", 0)))[:self.share]

    def _unique(self, event: Event) -> Event:
        changed: Event = {
            "pid": self.trace.rank + 1, "tid": self._thread(event["pid"], event.get("tid"))}
        if "id" in event:
            changed["id"] = self._id(event["id"])
        if args := event.get("args"):
            changed["args"] = {name: self._id(value) if name in _UNIQUE_ARGS else value
                               for name, value in args.items()}
        return {**event, **changed}

    def _id(self, value: Any) -> Any:
        """Return an id that no other rank has."""
        if isinstance(value, int):
            return self.trace.rank * _IDS_OF_A_RANK + value % _IDS_OF_A_RANK
        return f"{self.trace.rank}-{value}"

    def _thread(self, pid: Any, tid: Any) -> int:
        number = self._threads.setdefault((pid, tid), len(self._threads))
        return (self.trace.rank + 1) * _THREADS_OF_A_RANK + number

    def names(self) -> Iterator[Event]:
        """Yield the names of the rank's process and of its threads, the one with samples first.

        To be called after `timed`. Process ids are from 1, because 0 is the idle task's."""
        rank, pid = self.trace.rank, self.trace.rank + 1
        yield _named("process_name", pid, 0, name=f"rank {rank} ({self.trace.host})")
        yield _named("process_sort_index", pid, 0, sort_index=rank)
        threads = {(event["pid"], event["tid"]): event["args"]["name"]
                   for event in self.trace.events
                   if event.get("ph") == "M" and event["name"] == "thread_name"}
        for (old_pid, old_tid), number in self._threads.items():
            name = threads.get((old_pid, old_tid), f"thread {old_tid}")
            tid = pid * _THREADS_OF_A_RANK + number
            yield _named("thread_name", pid, tid, name=name)
            first = tid == self._main
            yield _named("thread_sort_index", pid, tid, sort_index=-1 if first else number)


def _named(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}
