"""The one file of a session to send back: verdicts, versions, logs, results; no secrets, no names.

Secrets are masked as `hpcbench.texts` does; what `hpcbench.interop.pseudonyms` replaces has
other names.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from gpu.running import ROOT
from hpcbench.errors import TraceError
from hpcbench.interop.anonymize import copy_sealed, names_in
from hpcbench.interop.pseudonyms import Pseudonyms
from hpcbench.measurement.environment import recorded_variables
from hpcbench.reduce.results import SCHEMA_VERSION
from hpcbench.reduce.results_file import FORMAT, open_results
from hpcbench.trace.container import verify

_TOP = "gpu-session"
_LOG_HEAD, _LOG_TAIL = 2**16, 3 * 2**16
_RESULTS_BYTES, _ALL_BYTES = 16 * 2**20, 64 * 2**20
_SESSION_FILES = ("verdicts.md", "verdicts.json")
_STEP_FILES = ("step.json", "verdicts.json", "output.log", "results/summary.json",
               "results/results.h5")
"""What is taken of each step, all of the first before any of the next: what is cut comes last."""
_ABOUT = f"""What `bash benchmarks/gpu.sh` of hpcbench found on one machine, to send back.

verdicts.md       a verdict for each goal; verdicts.json holds the same for programs
environment.json  versions, cores, and the variables that explain results
steps/*/          of each step what it came to, its log, and its results (hpcbench show FOLDER)

Secrets, names of hosts, users and accounts, addresses, paths and UUIDs are masked. Traces, plots
and pages are left out. Of each log the first {_LOG_HEAD // 1024} KiB and the last
{_LOG_TAIL // 1024} KiB are here.
Left out and named below: results.h5 over {_RESULTS_BYTES // 2**20} MiB, and what is beyond
{_ALL_BYTES // 2**20} MiB in all before packing.

Left out:
"""


class Masks(Pseudonyms):
    """Names for what names machines and users; of a path its place in a package or its file stays.
    """

    def text(self, text: str) -> str:
        return super().text(text.replace(f"{ROOT}/", "<HPCBENCH>/"))

    def path(self, text: str) -> str:
        folders, package, rest = text.rpartition("/site-packages/")
        if package:
            return f"<path>/site-packages/{rest}"
        folders, _, name = text.rpartition("/")
        if folders.endswith("/bin"):
            return f"<path>/bin/{self.text(name)}"
        return f"<path>/{self.text(name)}" if "." in name.strip(".") else "<path>"


def masks_of(files: Iterable[Path]) -> Masks:
    """Return the names in a session's files, and of this machine and its user."""
    readable = []
    for path in files:
        with suppress(OSError, TraceError):
            if path.suffix == ".h5":
                verify(path, FORMAT, SCHEMA_VERSION)
            readable.append(path)
    return Masks(*names_in(readable))


def pack(folder: Path, path: Path, steps: Sequence[str]) -> int:
    """Write the archive of a session's folder; it is absent, as it was, or whole. Return its bytes.

    Raises OSError where it cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        with (beside.open("wb") as stream, gzip.GzipFile("", "wb", fileobj=stream) as packed,
              tarfile.open(fileobj=packed, mode="w") as archive):  # gzip would name the file
            _fill(archive, folder, steps)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def _fill(archive: tarfile.TarFile, folder: Path, steps: Sequence[str]) -> None:
    files = dict(_files_of(folder, steps))
    masks = masks_of(path for path in files.values() if path.is_file())
    left_out: list[str] = []
    taken = 0
    parts: dict[str, Callable[[], bytes | str]] = {
        "environment.json": lambda: _environment(masks),
        **{name: partial(_read, path, masks) for name, path in files.items()}}
    for name, read in parts.items():
        try:
            data = read()
        except Exception as error:  # one file that cannot be read costs no other
            left_out.append(f"{name}: {masks.text(f'{type(error).__name__}: {error}')}")
            continue
        if isinstance(data, str) or taken + len(data) > _ALL_BYTES:
            left_out.append(f"{name}: {data if isinstance(data, str) else f'{len(data)} bytes'}")
            continue
        taken += len(data)
        _add(archive, name, data)
    _add(archive, "CONTENTS.txt", (_ABOUT + "\n".join(left_out or ["nothing"]) + "\n").encode())


def _files_of(folder: Path, steps: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield names in the archive, and the file of each."""
    for name in _SESSION_FILES:
        yield name, folder / name
    for name in _STEP_FILES:
        for step in steps:
            path = folder / "steps" / step / name
            if path.is_file():
                yield f"steps/{step}/{name}", path


def _read(path: Path, masks: Masks) -> bytes | str:
    """Return a file masked, in the way of its kind."""
    if path.suffix == ".h5":
        size = path.stat().st_size
        return f"{size} bytes" if size > _RESULTS_BYTES else _results(path, masks)
    if path.suffix == ".json":
        return _json(masks.json(json.loads(path.read_text("utf-8"))))
    return masks.text(_cut(path)).encode()


def _cut(path: Path) -> str:
    """Return the beginning and the end of a log, cut between lines."""
    data = path.read_bytes()
    if len(data) > _LOG_HEAD + _LOG_TAIL:
        head = data[:_LOG_HEAD].rpartition(b"\n")[0]
        tail = data[-_LOG_TAIL:].partition(b"\n")[2]
        gap = len(data) - len(head) - len(tail)
        data = head + f"\n[{gap} bytes are left out here]\n".encode() + tail
    return data.decode("utf-8", "replace")


def _environment(masks: Masks) -> bytes:
    variables = recorded_variables(os.environ)
    return _json(masks.json({
        "packed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "system": platform.platform(),
        "machine": platform.machine(), "python": sys.version, "cores": os.cpu_count(),
        "own_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total, "variables": variables}))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _results(path: Path, masks: Masks) -> bytes:
    """Return a results file whose texts are masked; hpcbench reads it as it reads any other."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / path.name
        copy_sealed(path, copy, FORMAT, masks)
        with open_results(copy):  # a host with the name of a dtype would have made it unreadable
            return copy.read_bytes()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file whose head names no user and no group."""
    head = tarfile.TarInfo(f"{_TOP}/{name}")
    head.size, head.mtime, head.mode = len(data), int(time.time()), 0o644
    archive.addfile(head, io.BytesIO(data))
