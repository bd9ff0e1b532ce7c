"""The folders of an attempt, found or made before its first case."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from hpcbench.launch.attempt import Attempt
from hpcbench.launch.folders.rank_folders import RankFolders, find_rank_folders
from hpcbench.launch.folders.run_folder import RunFolder, create_run_folder, take_up_folder
from hpcbench.launch.ranks.agreement import from_root

_RUN_FOLDER = TypeAdapter(RunFolder)


def open_folders(attempt: Attempt) -> RankFolders:
    """Return the folder of the run, and where each rank writes; collective."""
    folder = from_root(attempt.comm, _RUN_FOLDER, lambda: _run_folder(attempt))
    return find_rank_folders(attempt.comm, attempt.topology, folder)


def _run_folder(attempt: Attempt) -> RunFolder:
    """Return the folder of the run, made or taken up if there is anything to run (rank 0)."""
    path, history = attempt.planned.folder, attempt.history
    if path is None or not history.attempt:
        parent = Path(attempt.config.output.folder).absolute()
        return create_run_folder(attempt.plan, parent, path)
    if attempt.is_done():
        print(f"{path}: nothing is left to run", flush=True)
        return RunFolder(path, history.run_id, history.attempt - 1)
    return take_up_folder(path, attempt.plan, history)
