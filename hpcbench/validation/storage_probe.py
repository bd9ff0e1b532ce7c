"""Try a results folder in a process of its own, which a dead file system can hold as it likes.

``python -m hpcbench.validation.storage_probe FOLDER MARKER RANK`` prints what `probe` returns.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcbench.errors import FileError
from hpcbench.import_path import module_command
from hpcbench.launch.run_folder import RunFolder, leave, sees, separate_folder
from hpcbench.trace.container import whole_file

_NOTHING: Mapping[str, Any] = {
    "error": None, "seen": False, "kind": None, "free_bytes": None, "free_files": None,
    "sync_s": None, "own": None, "made": []}
_OCTAL = re.compile(rb"\\([0-7]{3})")
_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 1.0


def ask(
    folder: str, marker: str, rank: int, timeout_s: float, env: Mapping[str, str],
) -> dict[str, Any]:
    """Return `probe` of a child process, or in ``error`` that it gave no answer in time."""
    limit_s = min(_TIMEOUT_S, timeout_s)
    command = module_command("hpcbench.validation.storage_probe", folder, marker, str(rank))
    child = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        printed, _ = child.communicate(timeout=limit_s)
        answer: dict[str, Any] = json.loads(printed)
        return answer
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # in a hanging file system it cannot even die
            child.wait(_KILL_TIMEOUT_S)
        why = f"does not answer within {limit_s:g} s: the file system hangs"
    except ValueError:
        why = f"could not be tried: the probe ended with {child.wait()}"
    finally:
        if child.stdout:
            child.stdout.close()
    return {**_NOTHING, "folder": folder, "marker": marker, "error": f"{folder}: {why}"}


def probe(folder: Path, marker: str, rank: int) -> dict[str, Any]:
    """Write, sync and rename a file, on rank 0 in a new folder ``marker``, elsewhere beside it.

    A rank that does not see that folder tries the places that a run would have it write to.

    Keys: ``folder``, ``marker``; ``error``, None if all went well; ``seen``, whether rank 0's
    marker is there; ``kind`` of file system; ``free_bytes`` and ``free_files``, None if unknown;
    ``sync_s``; ``own``, where the rank writes if it does not see that folder; ``made``, the folders
    made on the way, the innermost first: to be removed once all ranks have ended their probes.
    """
    answer = {**_NOTHING, "folder": str(folder), "marker": marker}
    place = folder / marker
    try:
        if rank == 0:
            missing = _missing(folder)
            folder.mkdir(parents=True, exist_ok=True)
            answer["made"] = missing
            place.mkdir()
        answer["seen"] = sees(place)
        if not answer["seen"]:
            return {**answer, **_apart(place, rank)}
        answer["sync_s"] = _written_s(place / f"rank{rank}")
        answer |= _room(place)
        answer["kind"] = _kind(place)
    except FileError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = f"{folder}: {error.strerror}"
    return answer


def _room(place: Path) -> dict[str, int | None]:
    room = os.statvfs(place)
    return {"free_bytes": room.f_bavail * room.f_frsize,
            "free_files": room.f_favail if room.f_files else None}


def _written_s(path: Path) -> float:
    began = time.perf_counter()
    with whole_file(path) as part:
        part.write_bytes(b"hpcbench validate\n" * 256)
    return time.perf_counter() - began


def _apart(place: Path, rank: int) -> dict[str, Any]:
    """Try where a run would have this rank write; in folders of its own, as others may be at it."""
    host, name = socket.gethostname(), f"{place.name}-{rank}"
    made = _missing(place.parent)
    own, tried = separate_folder(RunFolder(place.with_name(name), name), host, rank)
    if own is None:
        why = "; ".join(tried).replace(name, "RUN")
        return {"made": made, "error": f"{host} does not see {place.parent} of rank 0, and has no "
                                       f"place of its own ({why})"}
    folder = RunFolder(own, name)
    file = folder.traces / f"rank{rank}"
    try:
        return {"made": made, "sync_s": _written_s(file), "own": str(own.parent),
                **_room(folder.traces)}
    finally:
        with suppress(OSError):
            file.unlink()
        leave(folder)


def remove(probed: Mapping[str, Any]) -> None:
    """Take away what rank 0's probe left; what others put there meanwhile stays."""
    shutil.rmtree(Path(probed["folder"]) / probed["marker"], ignore_errors=True)
    remove_empty(probed["made"])


def remove_empty(made: list[str]) -> None:
    """Take away the folders that a probe made on the way, the innermost first."""
    for name in made:
        with suppress(OSError):
            Path(name).rmdir()


def _missing(folder: Path) -> list[str]:
    """Return the folder and its parents as far as they are not there, the innermost first."""
    missing = []
    for path in (folder, *folder.parents):
        with suppress(OSError):  # what lies in a folder that is closed to this rank
            if not path.exists():
                missing.append(str(path))
    return missing


def _kind(place: Path) -> str | None:
    """Return the type of file system: proc(5), mountinfo; its mount point is the longest."""
    path, kinds = place.resolve(), {}
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
            mount, _, behind = line.partition(b" - ")
            point = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), mount.split()[4])
            kinds[os.fsdecode(point)] = os.fsdecode(behind.split()[0])
    around = [point for point in kinds if path.is_relative_to(point)]
    return kinds[max(around, key=len)] if around else None


if __name__ == "__main__":
    print(json.dumps(probe(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
