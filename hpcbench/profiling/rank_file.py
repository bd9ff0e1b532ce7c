"""The file in which one rank keeps the trace of one case's profiled samples.

It is what torch.profiler exports (JSON in Chrome's trace event format, compressed), with one key
more, ``hpcbench``: a `RankProfile`. Viewers of such traces ignore keys that they do not know.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcbench.errors import TraceError
from hpcbench.texts import to_json
from hpcbench.trace.files import whole_file
from hpcbench.trace.typed import from_values

FOLDER = "profile"
RANKS = "ranks"
SAMPLE_MARK = "hpcbench sample"
"""Begin of the name of the marker around each profiled sample; its number follows, from 0."""
CLOCK_MARK = "hpcbench clock"
"""Name of the markers that begin between two stamps of our clock."""
_KEY = "hpcbench"


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What one rank knows of its profiled samples beside their trace.

    Attributes:
        rows: list of [start_ns, end_ns, enqueue_ns, device_ns, flags], as in a trace.
        anchors: list of [before_ns, after_ns]: the n-th marker CLOCK_MARK began between the two.
    """

    case_id: str
    attempt: int
    rank: int
    device: str
    rows: Sequence[Sequence[int]]
    anchors: Sequence[Sequence[int]]


def rank_file(folder: Path, case_id: str, rank: int) -> Path:
    """Return where a rank that writes to ``folder`` keeps the trace of a case."""
    return folder / FOLDER / RANKS / f"{case_id}.rank{rank:05d}.json.gz"


def write_rank_file(path: Path, trace: Mapping[str, Any], about: RankProfile) -> None:
    """Write a profiler's trace and what the rank knows of it. Raises FileError."""
    with whole_file(path, make_folder=True) as part, gzip.open(part, "wt", compresslevel=3) as out:
        out.write(to_json({**trace, _KEY: asdict(about)}))


def read_rank_file(path: Path) -> tuple[RankProfile, dict[str, Any]]:
    """Return both parts of a file. Raises TraceError if it is not such a file."""
    try:
        with gzip.open(path, "rt") as stream:
            trace: dict[str, Any] = json.load(stream)
        return from_values(RankProfile, trace.pop(_KEY)), trace
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: no profile of a rank can be read from it: {error}") from error
