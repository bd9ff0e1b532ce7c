"""A file of events for TensorBoard: each counted sample of a case as a step of its curves."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.errors import UsageError, how_to_install
from hpcbench.interop.formats.export.cases import (
    TIME,
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    LeftOut,
    chosen_metrics,
    not_measured,
)
from hpcbench.interop.formats.export.timeline import aligned_samples
from hpcbench.reduce.fold import durations, extreme_durations
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import counts

Curves = Mapping[str, npt.NDArray[np.float64]]
_VERSION = "brain.Event:2"
"""What the first event of a file states, for its readers."""
_NAMED = "TensorBoard reads files whose names hold tfevents"


def as_tensorboard(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return the curves ``CASE/time_s``, of rates, and of phases unless ``request`` has metrics.

    Raises UsageError without the package tensorboard.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(f"tensorboard needs the package of that name, which cannot be imported: "
                         f"{error}; {how_to_install('tensorboard')}, or export csv") from error
    run, out = runs[0], io.BytesIO()
    writer, left_out = RecordWriter(out), [*not_measured(run)]
    begin_s = _seconds_of(run.results.run.started_at)
    writer.write(Event(wall_time=begin_s, file_version=_VERSION).SerializeToString())
    n_curves = 0
    for case in run.measured:
        samples = run.source.samples(case.item.case.case_id)
        timed = samples and aligned_samples(run, samples)
        if timed is None or timed.use is None:
            left_out.append(LeftOut("no samples on one clock", case.name))
            continue
        curves = dict(_curves(case, timed, request))
        n_curves += len(curves)
        for step, at in enumerate(np.flatnonzero(counts(timed.use)).tolist()):
            writer.write(Event(
                wall_time=begin_s + _since_start_s(timed, at), step=step, summary=Summary(value=[
                    Summary.Value(tag=f"{case.slug}/{name}", simple_value=values[at])
                    for name, values in curves.items()])).SerializeToString())
    return Exported(out.getvalue() if n_curves else b"", tuple(left_out), (_NAMED,))


def _seconds_of(started_at: str) -> float:
    try:
        return datetime.strptime(started_at, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0


def _since_start_s(samples: CaseSamples, at: int) -> float:
    """Return the seconds from the start of the case's first sample to the end of this one."""
    return float(samples.end_ns[:, at].max() - samples.start_ns.min()) / 1e9


def _curves(
    case: ExportedCase, samples: CaseSamples, request: ExportRequest,
) -> Iterator[tuple[str, Any]]:
    """Yield the values (sample,) of each curve; a phase is the mean over ranks, in seconds."""
    time_s, median_s = _times_s(case, samples), case.metrics[0].value / 1e6
    for one in chosen_metrics(case, request):
        yield ("time_s", time_s) if one.name == TIME else (
            one.name, one.value * median_s / time_s)
    if not request.metrics:
        yield from ((f"{name}_s", values.mean(axis=0) / 1e9)
                    for name, values in durations(samples).items())


def _times_s(case: ExportedCase, samples: CaseSamples) -> npt.NDArray[np.float64]:
    """Return the time of each sample by the fold of the case, as its median is made of."""
    timing = case.item.timing
    if timing and timing.fold == "global":
        return np.asarray((samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)) / 1e9)
    calls = case.item.case.batch if timing and timing.fold == "per_call" else 1
    return np.asarray(extreme_durations(samples).longest_ns / (1e9 * calls))
