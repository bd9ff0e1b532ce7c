"""What rank 0 prints before the first case."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hpcbench import __version__
from hpcbench.launch.attempt import Attempt
from hpcbench.launch.folders.rank_folders import RankFolders, separate_folder_lines
from hpcbench.launch.ranks.launcher_variables import by_torchrun
from hpcbench.plan.case import Case
from hpcbench.plan.order import INLINE_BACKENDS

_STARTED_BY_TORCHRUN = " (torchrun; with mpirun or srun they are isolated)"


def opening_lines(attempt: Attempt, todo: Sequence[Case], folders: RankFolders) -> Iterator[str]:
    """Yield how much is run on what, where the results go, and what the user should know."""
    history, config = attempt.history, attempt.config
    yield (f"hpcbench {__version__}: {attempt.comm.size} rank(s) on "
           f"{len(attempt.topology.nodes)} node(s), {len(todo)} cases to run, "
           f"{len(attempt.resolution.skips)} cannot run here")
    yield f"results in {folders.folder.path}"
    yield from separate_folder_lines(folders)
    if history.attempt:
        yield (f"attempt {history.attempt} at this run: {len(history.finished)} runs of cases "
               "were done before and are not repeated")
    for case in attempt.plan.cases:
        if reason := history.quarantine(case):
            yield f"{case.label}: {reason}"
    for note in config.notes:
        yield f"note: {note}"
    if config.launch.inline:
        yield ("workers run inline, in the ranks' own processes, and are not isolated: a crash "
               "ends the job, a hang is not survived"
               + _STARTED_BY_TORCHRUN * by_torchrun(os.environ))
    elif inline := sum(case.backend in INLINE_BACKENDS for case in todo):
        yield (f"{inline} of them run last and in the MPI processes (backend mpi): a crash or a "
               "hang there ends the job")
