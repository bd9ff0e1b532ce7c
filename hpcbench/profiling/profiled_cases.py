"""Which cases are profiled and why, and the files in which ranks keep their traces.

A rank's file is torch.profiler's export (Chrome's trace event format, compressed) with a key
``hpcbench``: a `RankProfile`. nsys options are those of its user guide; no test has run the real
program."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.errors import FileError, TraceError, UsageError
from hpcbench.limits import Unpacked
from hpcbench.records import dataclass
from hpcbench.texts import to_json
from hpcbench.trace.schema import ARRIVAL, SAMPLE_COLUMNS, UNTIMED, Phases, Samples, from_values
from hpcbench.units import rank_list

PROFILE_FOLDER = "profile"
RANK_FILES = "ranks"
SAMPLE_MARK = "hpcbench sample"
"""Begin of the name of the marker around each profiled sample; its number follows, from 0."""
CLOCK_MARK = "hpcbench clock"
"""Name of the markers that begin between two stamps of our clock."""
_KEY = "hpcbench"


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's data of its profiled samples beside their trace.

    Attributes:
        rows: list of [start_ns, end_ns, enqueue_ns, device_ns, flags], as in a trace.
        anchors: list of [before_ns, after_ns]: the n-th marker CLOCK_MARK began between the two."""

    case_id: str
    attempt: int
    rank: int
    device: str
    rows: Sequence[Sequence[int]]
    anchors: Sequence[Sequence[int]]


def rank_file(folder: Path, case_id: str, rank: int) -> Path:
    return folder / PROFILE_FOLDER / RANK_FILES / f"{case_id}.rank{rank:05d}.json.gz"


def write_rank_file(path: Path, trace: Mapping[str, Any], about: RankProfile) -> None:
    """Write a profiler's trace and the rank's own data. Raises FileError."""
    from hpcbench.trace.container import whole_file  # h5py, which workers do not need

    with whole_file(path, make_folder=True) as part, gzip.open(part, "wt", compresslevel=3) as out:
        out.write(to_json({**trace, _KEY: asdict(about)}))


def read_rank_file(path: Path) -> tuple[RankProfile, dict[str, Any]]:
    """Return both parts of a file. Raises TraceError if it is not such a file."""
    try:
        with Unpacked(path) as stream:
            trace: dict[str, Any] = json.loads(stream.whole())
        return from_values(RankProfile, trace.pop(_KEY)), trace
    except (FileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: no profile of a rank can be read from it: {error}") from error


@dataclass(frozen=True, slots=True)
class ProfileNote:
    """Whether a case was profiled and ``why``; the ``problem`` is "" if its profile is there."""

    case_id: str
    is_wanted: bool
    why: str
    problem: str = ""


NSYS = "nsys"
INSTEAD_OF_NSYS = "take torch's profiler with --set profiling.tool=torch"


def nsys_is_installed() -> bool:
    return shutil.which(NSYS) is not None


def nsys_missing(ranks: list[int]) -> str:
    return f"nsys is not on the PATH of rank {rank_list(ranks)}; {INSTEAD_OF_NSYS}"


def require_nsys() -> None:
    """Raise UsageError if this machine lacks nsys, for commands that were asked for it."""
    if not nsys_is_installed():
        raise UsageError(
            f"profiling.tool: nsys is not on the PATH; install it, or {INSTEAD_OF_NSYS}")


def nsys_command(folder: Path, rank: int, *, cuda: bool) -> tuple[str, ...]:
    """Return the command that a rank puts before its workers' template.

    Workers are forks without exec. On GPUs each case is a range and a report of its own, else one
    report covers all. ``%p`` is the process that nsys starts."""
    report = folder / PROFILE_FOLDER / RANK_FILES / f"nsys-rank{rank:05d}-%p"
    ranges = ("--capture-range=cudaProfilerApi", "--capture-range-end=repeat") if cuda else ()
    return (NSYS, "profile", f"--output={report}", "--trace-fork-before-exec=true",
            f"--trace={'cuda,nvtx,osrt' if cuda else 'osrt'}", "--sample=none", "--cpuctxsw=none",
            *ranges)


def nsys_reports(folder: Path, rank: int) -> list[Path]:
    return sorted((folder / PROFILE_FOLDER / RANK_FILES).glob(f"nsys-rank{rank:05d}-*"))


STALL_SHARE = 0.1
"""With trigger ``stall`` a case is profiled if its ranks' medians, of the sample or of a phase,
differ by this share of the sample's time (docs/method.md): twice the 5 % from which a change of a
median counts. A rank that waits is longer in it than the rank it waits for: no common clock is
needed."""
WHOLE = "sample"
_START, _END, _FLAGS = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns", "flags"))


def medians_ns(rows: Samples, phases: Phases) -> dict[str, float]:
    """Return one rank's medians over its timed samples in ns: of the sample, and of each phase."""
    timed = (rows[:, _FLAGS] & UNTIMED) == 0
    if not timed.any():
        return {}
    lasting = {name: values for name, values in phases.items()
               if not name.startswith(ARRIVAL) and len(values) == len(rows)}
    return {WHOLE: float(np.median((rows[:, _END] - rows[:, _START])[timed])),
            **{name: float(np.median(values[timed])) for name, values in lasting.items()}}


def stall(of_ranks: Sequence[Mapping[str, float]]) -> tuple[float, str]:
    """Return the largest difference between ranks over the longest sample, and its phase; (0, "")
    if unknown."""
    if not all(WHOLE in medians for medians in of_ranks):
        return 0.0, ""
    longest_ns = max(medians[WHOLE] for medians in of_ranks)
    common = [name for name in of_ranks[0] if all(name in medians for medians in of_ranks)]
    shares = {name: (max(medians[name] for medians in of_ranks)
                     - min(medians[name] for medians in of_ranks)) / longest_ns
              for name in common} if longest_ns > 0 else {WHOLE: 0.0}
    name = max(shares, key=lambda name: shares[name])
    return shares[name], name


def profile_reason(share: float, name: str) -> str:
    where = "in the sample" if name == WHOLE else f"in phase {name}"
    return (f"the ranks' medians {where} differ by {share:.0%} of the sample; "
            f"cases from {STALL_SHARE:.0%} are profiled")
