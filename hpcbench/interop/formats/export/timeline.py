"""A timeline of ranks in Chrome's trace format, for ui.perfetto.dev; and a file of events for
TensorBoard: each counted sample of a case as a step of its curves."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.errors import UsageError, how_to_install
from hpcbench.interop.formats.export import cases as exported
from hpcbench.reduce.fold import durations, extreme_durations
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import counts
from hpcbench.texts import to_json
from hpcbench.trace.clock import to_global
from hpcbench.trace.schema import ARRIVAL, Flag

_CALLS, _PHASES = 0, 1
"""Numbers of the two tracks of a rank."""


def as_perfetto(runs: Sequence[exported.ExportedRun],
                request: exported.ExportRequest) -> exported.Exported:
    """Return the middle sample and the longest ones of each case, ranks one below another.

    Times are in us from the first of them, on the global clock."""
    run = runs[0]
    left_out = [*exported.not_measured(run)]
    shown: list[tuple[exported.ExportedCase, CaseSamples, list[int]]] = []
    for case in run.measured:
        samples = run.source.samples(case.item.case.case_id)
        aligned = samples and aligned_samples(run, samples)
        if aligned is None:
            left_out.append(exported.LeftOut("no samples" if samples is None else
                                             "clocks of its ranks were not compared", case.name))
        else:
            shown.append((case, aligned, _chosen(aligned, request.samples)))
    begins = [int(samples.start_ns[:, chosen].min()) for _, samples, chosen in shown if chosen]
    if not begins:
        return exported.Exported(b"", tuple(left_out))
    events = [event for case, samples, chosen in shown
              for event in _events(case, samples, chosen, min(begins))]
    document = {"displayTimeUnit": "ns", "traceEvents": [
        *_tracks(run, {(event["pid"], event["tid"]) for event in events}), *events], "otherData": {
            "program": "hpcbench", "run_id": run.results.run.run_id,
            "faults": [*run.results.run.faults], "begin_global_ns": str(min(begins))}}
    return exported.Exported((to_json(document, allow_nan=False) + "\n").encode(), tuple(left_out))


def aligned_samples(run: exported.ExportedRun, samples: CaseSamples) -> CaseSamples | None:
    """Return stamps on the global clock, or None where a rank's clock is not known."""
    if run.results.clocks is None or run.results.clocks.n_clocks == 1:
        return samples if run.results.clocks or len(samples.ranks) == 1 else None
    if not set(samples.ranks) <= run.clocks.keys():
        return None
    start_ns, end_ns = np.empty_like(samples.start_ns), np.empty_like(samples.end_ns)
    for row, rank in enumerate(samples.ranks):
        to_global(run.clocks[rank], samples.start_ns[row], start_ns[row])
        to_global(run.clocks[rank], samples.end_ns[row], end_ns[row])
    return replace(samples, start_ns=start_ns, end_ns=end_ns)


def _chosen(samples: CaseSamples, most: int) -> list[int]:
    """Return the indices of the middle sample and the longest ones, ``most`` in all, in order."""
    if samples.use is None:
        return []
    places = np.flatnonzero(counts(samples.use))
    time_ns = samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)
    ordered = places[np.argsort(time_ns[places], kind="stable")].tolist()
    if len(ordered) <= most:
        return sorted(ordered)
    return sorted({ordered[(len(ordered) - 1) // 2], *ordered[len(ordered) - most + 1:]})


def _tracks(run: exported.ExportedRun, tracks: set[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield the names of (rank, track) and the order of ranks."""
    hosts = {place.rank: place.hostname for place in run.results.topology.ranks}
    for rank, track in sorted(tracks):
        if track == _CALLS:
            host = f" ({hosts[rank]})" if rank in hosts else ""
            yield _named("process_name", rank, {"name": f"rank {rank}{host}"})
            yield _named("process_sort_index", rank, {"sort_index": rank})
        name = "samples" if track == _CALLS else "phases"
        yield {**_named("thread_name", rank, {"name": name}), "tid": track}


def _named(name: str, rank: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "args": args}


def _events(
    case: exported.ExportedCase, samples: CaseSamples, chosen: Sequence[int], begin_ns: int,
) -> Iterator[dict[str, Any]]:
    """Yield an event for each rank and sample, and below it those of its phases."""
    for at in chosen:
        for row, rank in enumerate(samples.ranks):
            start_ns, end_ns = int(samples.start_ns[row, at]), int(samples.end_ns[row, at])
            args = {"case_id": case.item.case.case_id, "sample": at,
                    "launch": int(samples.launch[at]), "pass": int(samples.pass_index[at]),
                    "late_start": bool(samples.flags[row, at] & Flag.LATE_START)}
            yield _event(case.name, (rank, _CALLS), (start_ns - begin_ns, end_ns - start_ns), args)
            for name, values in samples.phases.items():
                if name.startswith(ARRIVAL):
                    continue
                lasted_ns = int(values[row, at])
                yield _event(name, (rank, _PHASES), (start_ns - begin_ns, lasted_ns), {})
                start_ns += lasted_ns


def _event(
    name: str, track: tuple[int, int], span_ns: tuple[int, int], args: dict[str, Any],
) -> dict[str, Any]:
    """Return a complete event on (rank, track); ``span_ns`` is (begin, duration)."""
    return {"ph": "X", "cat": "hpcbench", "name": name, "pid": track[0], "tid": track[1],
            "ts": span_ns[0] / 1e3, "dur": span_ns[1] / 1e3, "args": args}


_VERSION = "brain.Event:2"
"""What the first event of a file states, for its readers."""
_NAMED = "TensorBoard reads files whose names hold tfevents"


def as_tensorboard(runs: Sequence[exported.ExportedRun],
                   request: exported.ExportRequest) -> exported.Exported:
    """Return the curves ``CASE/time_s``, of rates, and of phases unless ``request`` has metrics.

    Raises UsageError without the package tensorboard."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(f"tensorboard needs the package of that name, which cannot be imported: "
                         f"{error}; {how_to_install('tensorboard')}, or export csv") from error
    run, out = runs[0], io.BytesIO()
    writer, left_out = RecordWriter(out), [*exported.not_measured(run)]
    begin_s = _seconds_of(run.results.run.started_at)
    writer.write(Event(wall_time=begin_s, file_version=_VERSION).SerializeToString())
    n_curves = 0
    for case in run.measured:
        samples = run.source.samples(case.item.case.case_id)
        timed = samples and aligned_samples(run, samples)
        if timed is None or timed.use is None:
            left_out.append(exported.LeftOut("no samples on one clock", case.name))
            continue
        curves = dict(_curves(case, timed, request))
        n_curves += len(curves)
        ends_s = (timed.end_ns.max(axis=0) - timed.start_ns.min()) / 1e9
        for step, at in enumerate(np.flatnonzero(counts(timed.use)).tolist()):
            writer.write(Event(
                wall_time=begin_s + float(ends_s[at]), step=step, summary=Summary(value=[
                    Summary.Value(tag=f"{case.slug}/{name}", simple_value=values[at])
                    for name, values in curves.items()])).SerializeToString())
    return exported.Exported(out.getvalue() if n_curves else b"", tuple(left_out), (_NAMED,))


def _seconds_of(started_at: str) -> float:
    try:
        return datetime.strptime(started_at, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0


def _curves(
    case: exported.ExportedCase, samples: CaseSamples, request: exported.ExportRequest,
) -> Iterator[tuple[str, Any]]:
    """Yield the values (sample,) of each curve; a phase is the mean over ranks, in seconds."""
    time_s, median_s = _times_s(case, samples), case.metrics[0].value / 1e6
    for metric in exported.chosen_metrics(case, request):
        yield ("time_s", time_s) if metric.name == exported.TIME else (
            metric.name, metric.value * median_s / time_s)
    if not request.metrics:
        yield from ((f"{name}_s", values.mean(axis=0) / 1e9)
                    for name, values in durations(samples).items())


def _times_s(case: exported.ExportedCase, samples: CaseSamples) -> npt.NDArray[np.float64]:
    """Return the time of each sample by the fold of the case, as its median is made of."""
    timing = case.item.timing
    if timing and timing.fold == "global":
        return np.asarray((samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)) / 1e9)
    calls = case.item.case.batch if timing and timing.fold == "per_call" else 1
    return np.asarray(extreme_durations(samples).longest_ns / (1e9 * calls))
