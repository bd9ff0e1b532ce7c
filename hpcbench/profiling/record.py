"""What a user is told of the profiles of a run, in whole sentences.

How much longer profiled samples take than measured ones of the same case.

What came of the profiled samples: merged traces, their overhead, and ``profile.json``.

Rank 0 does this at the end of a run, from the files of all ranks and from the results.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.errors import TraceError
from hpcbench.plan.case import Case
from hpcbench.profiling.flight import FLIGHT
from hpcbench.profiling.merge import Merged, RankTrace, fit_anchor, merge
from hpcbench.profiling.profiled_cases import (
    CLOCK_MARK,
    PROFILE_FOLDER,
    ProfileNote,
    RankProfile,
    nsys_reports,
    rank_file,
    read_rank_file,
)
from hpcbench.reduce.fold import RankClocks, edges, extreme_waits, fold_samples, rank_clocks
from hpcbench.reduce.history import open_attempts
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.reduce.stack import is_timed
from hpcbench.statistics.order import median
from hpcbench.texts import from_json, to_json
from hpcbench.trace.clock import Nanoseconds, bound_at, to_global
from hpcbench.trace.container import whole_file
from hpcbench.trace.schema import SAMPLE_COLUMNS, from_values
from hpcbench.trace.source import PROFILE_NOTE, TraceSource, noted
from hpcbench.views.chart import file_name

MOST_LINES = 12
_MOST_PROBLEMS = 4


def summary_lines(
    entries: Mapping[str, Mapping[str, Any]], flights: int, folder: str, *, enabled: bool,
) -> list[str]:
    """Return at most MOST_LINES lines about the entries of ``profile.json``.

    ``flights`` is the number of cases with flight records, ``enabled`` whether to profile at all.
    """
    found = list(_lines(entries, folder, enabled=enabled))
    if flights:
        found.insert(0, f"{flights} case{'s' * (flights > 1)} did not end: the last collectives of "
                     f"the ranks that waited are in {folder}/flight-*.json")
    return found[:MOST_LINES]


def _lines(
    entries: Mapping[str, Mapping[str, Any]], folder: str, *, enabled: bool,
) -> Iterator[str]:
    merged = [one for one in entries.values() if one["file"]]
    if merged:
        yield (f"{_count(len(merged), 'case')} profiled: {folder} has one trace a case, with a "
               "process for each rank; open it at https://ui.perfetto.dev")
    reported = [one for one in entries.values() if one["rank_files"] and not one["file"]]
    if reported:
        yield (f"{_count(len(reported), 'case')} profiled by nsys: its reports are in "
               f"{folder}/ranks; open them with nsys-ui")
    if enabled and not entries:
        yield "no case is profiled: none ended ok when its turn came"
    if known := [one for one in [*merged, *reported] if one["overhead"]]:
        yield _overhead_line(known)
    if dropped := [one for one in merged if one["n_dropped"]]:
        yield (f"{_count(len(dropped), 'merged trace')} cut: the shortest events of each rank are "
               f"left out, {max(one['n_dropped'] for one in dropped)} at most; the files of the "
               "ranks have them")
    failed = [one for one in entries.values() if one["problem"]]
    for one in failed[:_MOST_PROBLEMS]:
        yield f"no profile of {one['label']}: {one['problem']}"
    if (more := len(failed) - _MOST_PROBLEMS) > 0:
        yield f"nor of {more} more: profile.json says why"
    left_out = [one for one in entries.values() if not one["profiled"]]
    if left_out:
        alike = len({one["why"] for one in left_out}) == 1
        yield (f"{_count(len(left_out), 'case')} not profiled"
               f"{'' if alike else ', first ' + left_out[0]['label']}: {left_out[0]['why']}")


def _overhead_line(known: list[Mapping[str, Any]]) -> str:
    """Say how much longer profiled samples took, of one case or over all."""
    if len(known) == 1:
        one = known[0]["overhead"]
        return (f"profiled samples took {one['ratio']:.2f} times the measured time "
                f"(medians of {one['n_profiled']} and of {one['n_measured']}): they are in no "
                f"statistic{_below_noise(one['ratio'])}")
    ordered = sorted(known, key=lambda one: one["overhead"]["ratio"])
    least, most = ordered[0]["overhead"], ordered[-1]["overhead"]
    counts = sorted({one["overhead"]["n_measured"] for one in known})
    n_measured = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return (f"profiled samples took {least['ratio']:.2f} to {most['ratio']:.2f} times the measured "
            f"time (medians of {least['n_profiled']} and of {n_measured}), most in "
            f"{ordered[-1]['label']}: they are in no statistic{_below_noise(least['ratio'])}")


def _below_noise(least_ratio: float) -> str:
    """Say what a ratio below 1 shows: no profiler makes samples faster."""
    return ("" if least_ratio >= 1 else
            "; below 1 they differ by more than the profiler costs, so its cost is not known")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'} {'is' if number == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians in seconds of profiled and of measured samples, each of so many, by one ``fold``.

    ``ratio`` is profiled over measured.
    """

    profiled_s: float
    n_profiled: int
    measured_s: float
    n_measured: int
    fold: str

    ratio: float


def overhead(
    item: CaseResult, ranks: Sequence[RankProfile], clocks: RankClocks,
) -> Overhead | None:
    """Return the overhead of profiling a case; None where the two cannot be compared.

    The profiled samples are folded over ranks as the measured ones are (docs/method.md).
    """
    if item.statistics is None or item.timing is None or len({len(one.rows) for one in ranks}) != 1:
        return None
    samples = _stacked(ranks)
    if not is_timed(samples).any():
        return None
    stamps = clocks.stamps(samples)
    work = item.case.workload
    common = edges(stamps, work.groups, work.group_stride) if stamps else None
    folded = fold_samples(item.case, samples, extreme_waits(samples), common)
    if folded.fold != item.timing.fold:
        return None
    times_s = folded.times_s[is_timed(samples)]
    profiled_s, measured_s = median(times_s), item.statistics.median_s
    return Overhead(profiled_s, times_s.size, measured_s, item.statistics.n, folded.fold,
                    profiled_s / measured_s)


def _stacked(ranks: Sequence[RankProfile]) -> CaseSamples:
    """Return the profiled samples as those of one pass of a case are."""
    rows = np.array([one.rows for one in ranks], dtype=np.int64)  # (rank, sample, column)
    columns: dict[str, Any] = {name: rows[:, :, at] for at, name in enumerate(SAMPLE_COLUMNS)}
    first = np.zeros(rows.shape[1], dtype=np.int64)
    return CaseSamples(ranks=tuple(one.rank for one in ranks), launch=first, pass_index=first,
                       phases={}, **columns)


PROFILE_FILE = "profile.json"
SCHEMA_VERSION = 1
_LONGEST_NAME = 120
_ENDED_BADLY = ("timeout", "failed")


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
        start_spread_s: how far apart the ranks began a profiled sample at most.
    """

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

    The flight records of cases that hung are written beside it, whether or not cases are profiled.
    What cannot be read or merged is a line and costs that case's profile only. Raises FileError
    where the disk does not take the files.
    """
    path = folder / PROFILE_FOLDER / PROFILE_FILE
    entries = dict(_earlier_entries(path))
    attempts = _attempts(folder)
    for sources in attempts:
        merged = {} if sources is attempts[-1] else entries  # the newest one is merged again
        entries |= {one.case_id: asdict(one) for one in _profiles(folder, results, sources)
                    if one.case_id not in merged}
    flights = _write_flight_records(folder, results)
    lines = summary_lines(entries, flights, str(folder / PROFILE_FOLDER), enabled=bool(
        results.plan.config.get("profiling", {}).get("enabled")))
    if not lines:
        return []
    with whole_file(path, make_folder=True) as part:
        part.write_text(to_json(
            {"schema_version": SCHEMA_VERSION, "lines": lines, "cases": entries}, indent=1) + "\n")
    return lines


def _write_flight_records(folder: Path, results: Results) -> int:
    """Write the flight record of each rank of each case that has any; return how many have."""
    cases = {item.case.case_id: item for item in results.cases
             if item.status in _ENDED_BADLY  # a user who stops a job has seen no hang
             and any(left.get(FLIGHT) for left in item.detail.values())}
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


def _attempts(folder: Path) -> list[Mapping[int, TraceSource]]:
    """Return the traces of each attempt, by rank, the newest last."""
    opened = [sources for sources, _ in open_attempts(folder / "traces") if sources]
    return [{source.header.rank: source for source in sources} for sources in opened]


def _profiles(
    folder: Path, results: Results, sources: Mapping[int, TraceSource],
) -> Iterator[CaseProfile]:
    """Yield what one attempt profiled."""
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
        found = from_json(path.read_bytes())
        return dict(found["cases"]) if found["schema_version"] == SCHEMA_VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _file_names(cases: Sequence[Case]) -> dict[str, str]:
    """Return case id -> the label as a file name; labels that look alike there get the id, too."""
    names = {case.case_id: file_name(case.label.replace(" ", "-"))[:_LONGEST_NAME]
             for case in cases}
    used = list(names.values())
    return {case_id: name if used.count(name) == 1 else f"{name}-{case_id}"
            for case_id, name in names.items()}


@dataclass(frozen=True, slots=True)
class _ProfileFiles:
    """Where a case's files are, and what is known of the ranks' clocks."""

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
        ranks = [_RankData.read(path, files) for path in paths]
        merged = merge([rank.trace for rank in ranks])
    except TraceError as error:
        return CaseProfile(case.case_id, case.label, profiled=True, why=note.why,
                           problem=str(error))
    target = files.folder / PROFILE_FOLDER / f"{files.name}.json.gz"
    _write(target, merged, case, [rank.about for rank in ranks])
    bounds_ns = sorted(rank.clock_bound_ns for rank in ranks)
    return CaseProfile(
        case.case_id, case.label, profiled=True, why=note.why,
        file=str(target.relative_to(files.folder)),
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
    """One rank's file, with its events on the global clock, and what that may be off by."""

    about: RankProfile
    trace: RankTrace
    anchor_bound_ns: float
    clock_bound_ns: float

    @classmethod
    def read(cls, path: Path, files: _ProfileFiles) -> _RankData:
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
        history = files.clocks.known.get(files.clocks.ids.get(about.rank, -1))
        if history is None or files.clocks.n_clocks == 1:
            return cls(about, _rank_trace(about, files, events, base_ns, anchor.to_local),
                       anchor.bound_ns, 0.0)
        models = history.models

        def to_global_ns(profiler_ns: Nanoseconds) -> Nanoseconds:
            return to_global(models, anchor.to_local(profiler_ns))

        bound_ns = float(bound_at(models, np.array([about.rows[-1][1]])).max())
        return cls(about, _rank_trace(about, files, events, base_ns, to_global_ns),
                   anchor.bound_ns, bound_ns)


def _rank_trace(
    about: RankProfile, files: _ProfileFiles, events: Sequence[dict[str, Any]], base_ns: int,
    to_global_ns: Callable[[Nanoseconds], Nanoseconds],
) -> RankTrace:
    host = files.sources[about.rank].header.hostname if about.rank in files.sources else "?"
    return RankTrace(about.rank, host, events, base_ns, to_global_ns)


def _write(path: Path, merged: Merged, case: Case, ranks: Sequence[RankProfile]) -> None:
    """Write a merged trace."""
    content = {
        "schemaVersion": 1, "displayTimeUnit": "ms", "traceName": path.name,
        "traceEvents": merged.events, "hpcbench": {
            "case_id": case.case_id, "label": case.label, "n_ranks": len(ranks),
            "begin_global_ns": merged.begin_ns, "n_dropped": merged.n_dropped}}
    with whole_file(path) as part, gzip.open(part, "wt", compresslevel=6) as out:
        out.write(to_json(content))
