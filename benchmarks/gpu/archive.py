"""The one file of a session to send back: verdicts, versions, logs, results; no secrets, no names.

Masked are what `hpcbench.texts` knows as a secret, passwords inside the values of variables, and
what names this machine or its user: hosts, users, accounts, addresses, paths, GPUs' UUIDs. Of a job
its hosts, account and user, and ids that hold a host; its name stays: it may be any word, as `gpu`.
"""

from __future__ import annotations

import io
import json
import os
import platform
import pwd
import re
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from gpu.running import ROOT
from hpcbench.anonymize import ORDINARY, PATH, copy_sealed
from hpcbench.measurement.environment import recorded_variables
from hpcbench.reduce.results_file import FORMAT, open_results
from hpcbench.texts import holds_secret, masked
from hpcbench.trace.schema import bare_uuid

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
_OF_THE_JOB = re.compile(
    r"USER|LOGNAME|USERNAME|SUDO_USER|HOST|HOSTNAME|SLURM\w*_(NODELIST|NODENAME|ACCOUNT|USER"
    r"|SUBMIT_HOST)|SLURMD_NODENAME|PBS_(O_HOST|JOBID|O_LOGNAME)|LSB_(HOSTS|SUB_HOST)"
    r"|KUBERNETES_SERVICE_HOST|POD_NAME|RUNPOD_(POD_ID|PUBLIC_IP|POD_HOSTNAME)")
_LOGIN = re.compile(r"://([^\s/@:]+):([^\s/@]+)@")
_INSIDE = re.compile(r"(?i)(?:token|secret|passw(?:or)?d|passphrase|credential|key)[\w.-]*[\"']?"
                     r"\s*[=:]\s*[\"']?([^\s&;,'\"]+)")


@dataclass(frozen=True)
class Masks:
    """What is masked on this machine: the environment's secrets, and words by what stands for them.
    """

    environ: Mapping[str, str]
    words: Mapping[str, str]

    def text(self, text: str) -> str:
        """Return a text without what is masked."""
        text = masked(text, self.environ)
        for place, name in ((str(ROOT), "HPCBENCH"), (str(Path.home()), "HOME")):
            text = text.replace(f"{place}/", f"<{name}>/") if len(place) > 1 else text
        text = PATH.sub(_without_folders, text)
        return self._any_word.sub(lambda found: self.words[found[0]], text) if self.words else text

    @cached_property
    def _any_word(self) -> re.Pattern[str]:
        longest_first = sorted(map(re.escape, self.words), key=len, reverse=True)
        return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest_first)})(?![A-Za-z0-9])")

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with every text in it masked, keys excepted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.json(part) for key, part in value.items()}
        return [self.json(part) for part in value] if isinstance(value, list) else value


def _without_folders(found: re.Match[str]) -> str:
    """Return what is left of a path: its place in a package, else the name of a file."""
    _, package, rest = found[0].rpartition("/site-packages/")
    if package:
        return f"<path>/site-packages/{rest}"
    folders, _, name = found[0].rpartition("/")
    if folders.endswith("/bin"):
        return f"<path>/bin/{name}"
    return f"<path>/{name}" if "." in name.strip(".") else "<path>"


def masks_here(environ: Mapping[str, str], uuids: Sequence[str]) -> Masks:
    """Return what is to be masked on this machine, in this environment, with these GPUs."""
    inside = {word for value in environ.values() for pattern in (_LOGIN, _INSIDE)
              for found in pattern.finditer(value) for word in found.groups()}
    secrets = {f"SECRET_{number}": word for number, word in enumerate(sorted(inside))}
    hosts = {platform.node(), socket.gethostname()}
    hosts |= {name.partition(".")[0] for name in hosts}
    users = {name for name in (_user(),) if name}
    job = {environ[name] for name in environ if _OF_THE_JOB.fullmatch(name)}
    addresses = {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values()
                 for entry in entries if not _is_everywhere(entry.address)}
    words = {**dict.fromkeys(job, "<job>"), **dict.fromkeys(addresses, "<address>"),
             **dict.fromkeys(users, "<user>"), **dict.fromkeys(hosts, "<host>"),
             **{bare_uuid(uuid): f"<uuid{place}>" for place, uuid in enumerate(uuids)}}
    known = {name: value for name, value in environ.items() if holds_secret(name, value)}
    return Masks({**known, **secrets}, {
        word: stands for word, stands in words.items()
        if len(word) > 1 and word.lower() not in ORDINARY and not word.isdigit()})


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return ""


def _is_everywhere(address: str) -> bool:
    return address.startswith(("127.", "::1", "fe80::1%", "00:00:00:00")) or not address


def pack(folder: Path, path: Path, steps: Sequence[str]) -> int:
    """Write the archive of a session's folder; it is absent, as it was, or whole. Return its bytes.

    Raises OSError where it cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        with tarfile.open(beside, "w:gz") as archive:
            _fill(archive, folder, steps)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def _fill(archive: tarfile.TarFile, folder: Path, steps: Sequence[str]) -> None:
    masks = masks_here(os.environ, _uuids(folder))
    left_out: list[str] = []
    taken = 0
    for name, read in _parts(folder, steps, masks):
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


def _parts(
    folder: Path, steps: Sequence[str], masks: Masks,
) -> Iterator[tuple[str, Callable[[], bytes | str]]]:
    """Yield names in the archive, and what reads each: its bytes, or a text why it is left out."""
    yield "environment.json", lambda: _environment(masks)
    for name in _SESSION_FILES:
        yield name, lambda path=folder / name: _read(path, masks)  # type: ignore[misc]
    for name in _STEP_FILES:
        for step in steps:
            path = folder / "steps" / step / name
            if path.is_file():
                yield f"steps/{step}/{name}", lambda path=path: _read(path, masks)  # type: ignore[misc]


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


def _uuids(folder: Path) -> list[str]:
    """Return the UUIDs of GPUs and MIG devices of the session."""
    try:
        machine = json.loads((folder / "verdicts.json").read_text("utf-8"))["machine"]
        return [*machine["uuids"], *machine["mig"]]
    except (OSError, ValueError, KeyError):
        return []


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file whose head names no user and no group."""
    head = tarfile.TarInfo(f"{_TOP}/{name}")
    head.size, head.mtime, head.mode = len(data), int(time.time()), 0o644
    archive.addfile(head, io.BytesIO(data))
