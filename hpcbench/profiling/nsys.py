"""NVIDIA's Nsight Systems around the workers: where it is, and how it is called.

The options are those of its user guide. No test has run the real program: see docs/profile.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcbench.errors import UsageError
from hpcbench.profiling.rank_file import FOLDER, RANKS
from hpcbench.units import rank_list

TOOL = "nsys"
INSTEAD = "take torch's profiler with --set profiling.tool=torch"


def is_installed() -> bool:
    """Return whether this rank's PATH has it."""
    return shutil.which(TOOL) is not None


def missing(ranks: list[int]) -> str:
    """Say that these ranks lack it, and what to do."""
    return f"nsys is not on the PATH of rank {rank_list(ranks)}; {INSTEAD}"


def require_nsys() -> None:
    """Raise UsageError if this machine lacks it, for commands that were asked for it."""
    if not is_installed():
        raise UsageError(f"profiling.tool: nsys is not on the PATH; install it, or {INSTEAD}")


def nsys_words(folder: Path, rank: int, *, cuda: bool) -> tuple[str, ...]:
    """Return what a rank puts in front of its workers' template.

    Workers are forks without exec. On GPUs each case is a range of its own, and a report of its
    own; without any, one report covers the whole turn. ``%p`` is the process that nsys starts.
    """
    report = folder / FOLDER / RANKS / f"nsys-rank{rank:05d}-%p"
    ranges = ("--capture-range=cudaProfilerApi", "--capture-range-end=repeat") if cuda else ()
    return (TOOL, "profile", f"--output={report}", "--trace-fork-before-exec=true",
            f"--trace={'cuda,nvtx,osrt' if cuda else 'osrt'}", "--sample=none", "--cpuctxsw=none",
            *ranges)


def nsys_reports(folder: Path, rank: int) -> list[Path]:
    """Return the reports of a rank that writes to ``folder``."""
    return sorted((folder / FOLDER / RANKS).glob(f"nsys-rank{rank:05d}-*"))
