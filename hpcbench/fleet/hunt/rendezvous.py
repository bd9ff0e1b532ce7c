"""How the ranks of a hunt meet: by the launcher's variables and a folder, without MPI.

MPI_Init waits for every rank, so one dead node would block all. Here the first living rank is the
host: it listens, and leaves in the folder of the results where. Who does not sign in by the
deadline is missing, and is named. The file holds a counter that grows while its host lives, so a
rank that is cut off is no reason for a second host, and a host that died before all had come is
replaced. Clocks of nodes are not compared."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from hpcbench import __version__
from hpcbench.errors import FileError, LaunchError, RankLostError
from hpcbench.launch.address import own_addresses
from hpcbench.launch.launcher import announced_rank, announced_size, by_torchrun
from hpcbench.records import dataclass

_BEAT_S = 1.0
_PATIENCE_S = 10.0
"""A host whose counter stands still for so long has ended; none at all is waited for as long."""
_TURN_S, _MOST_TURNS = 0.5, 60
"""Ranks take a missing host's place one after another."""
_PAUSE_S, _CONNECT_S, _STILL_S = 0.1, 2.0, 5
_MOST_BYTES = 1 << 28
"""Of one message; more is no rank's."""
Message = dict[str, Any]


class CutOffError(LaunchError):
    """This rank takes no part in the hunt of the others, if there is one."""


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """A process of the launch: its rank, the number of ranks, its node as the scheduler names it.

    ``job`` identifies the launch, alike on its ranks only; "" where the launcher has no name.
    ``switch``: that the node hangs on, as Slurm's topology names it; "" if unknown."""

    rank: int
    size: int
    node: str
    job: str
    switch: str = ""


def own_place(environ: Mapping[str, str]) -> OwnPlace:
    """Return this process's place by the launcher's variables. Raises LaunchError for a rank that
    the launch cannot have."""
    size, launcher = announced_size(environ) or (1, "")
    rank = announced_rank(environ) if launcher else 0
    if not 0 <= rank < size:
        raise LaunchError(f"{launcher} gives rank {rank} of {size}: start each rank once, as "
                          "srun or mpirun do")
    node = environ.get("SLURMD_NODENAME", "") if launcher == "srun" else ""
    return OwnPlace(rank, size, node or socket.gethostname(), _job(environ), _switch(environ))


def _switch(environ: Mapping[str, str]) -> str:
    """Return all but the node of Slurm's ``s0.s2.n7``, whose pattern is ``switch.switch.node``."""
    levels = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    return ".".join(level for level, kind in zip(levels, kinds, strict=False) if kind != "node")


_NAMES = (("PMIX_NAMESPACE",), ("I_MPI_HYDRA_UUID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"))
"""What names a launch on all its ranks: of Open MPI's mpirun and srun --mpi=pmix, of Intel MPI's
mpirun, of srun."""
_HYDRA = re.compile(r"--control-port[ =](\S+)")


def _job(environ: Mapping[str, str]) -> str:
    if by_torchrun(environ):
        return f"torchrun {environ['TORCHELASTIC_RUN_ID']}"
    for names in _NAMES:
        if all(environ.get(name) for name in names):
            return " ".join(f"{name}={environ[name]}" for name in names)
    return _control_port()  # of MPICH's mpirun, which sets no name


def _control_port() -> str:
    """Return where the daemon of MPICH's mpirun that started this rank reaches mpirun, or ""."""
    with contextlib.suppress(psutil.Error, OSError):
        for parent in psutil.Process().parents():
            if found := _HYDRA.search(" ".join(parent.cmdline())):
                return found[1]
    return ""


class Wire:
    """Messages of one JSON object each, over a connected socket.

    ``address`` is this end's, by which other nodes reach this one; ``peer`` is the other's."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        for what in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # who stands still so long is gone
            connection.setsockopt(socket.SOL_SOCKET, what, struct.pack("ll", _STILL_S, 0))
        self.address, self.peer = (str(where[0]) for where in (
            connection.getsockname(), connection.getpeername()))
        self._connection = Connection(connection.detach())

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message. Raises RankLostError if the other end is gone, or takes nothing."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise RankLostError(f"the other end is gone: {error.strerror or error}") from error

    def receive(self, timeout_s: float = 0.0) -> Message | None:
        """Return the next message, None if there is none in time. Raises RankLostError if the other
        end is gone or sends what is no message."""
        try:
            if not self._connection.poll(max(timeout_s, 0.0)):
                return None
            message = json.loads(self._connection.recv_bytes(_MOST_BYTES))
        except EOFError as error:
            raise RankLostError("the other end has closed the connection") from error
        except OSError as error:
            raise RankLostError(f"the other end is gone: {error.strerror or error}") from error
        except ValueError as error:
            raise RankLostError("the other end sends what is no message") from error
        if not isinstance(message, dict):
            raise RankLostError("the other end sends what is no message")
        return message

    def await_one(self, timeout_s: float) -> Message:
        """Return the next message. Raises RankLostError if there is none in time."""
        message = self.receive(timeout_s)
        if message is None:
            raise RankLostError(f"the other end has not answered in {timeout_s:g} s")
        return message

    def close(self) -> None:
        self._connection.close()


class MeetingHost:
    """Where ranks sign in: a listening socket, and the file that says where."""

    def __init__(self, file: Path, place: OwnPlace) -> None:
        self._file, self.place = file, place
        self._listener = socket.create_server(("", 0), backlog=1024)
        self._secret = secrets.token_hex(16)
        self._over = threading.Event()
        self._is_open = True
        self._beats = 0

    @contextlib.contextmanager
    def beating(self) -> Iterator[MeetingHost]:
        """Keep the file's counter growing while the block lasts; then remove the file."""
        thread = threading.Thread(target=self._beat, name="hunt", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._listener.close()
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)

    def publish(self) -> None:
        """Write the file, whole or not at all. Raises FileError."""
        self._beats += 1
        beside = self._file.with_name(f"{self._file.name}.{self._secret[:8]}")
        text = json.dumps({
            "addresses": [*own_addresses(), "127.0.0.1"], "port": self._listener.getsockname()[1],
            "secret": self._secret, "host": self.place.rank, "beats": self._beats,
            "is_open": self._is_open})
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                           "w") as stream:
                stream.write(text)
            beside.replace(self._file)
        except OSError as error:
            raise FileError(f"{self._file.parent}: cannot be written: {error.strerror}; choose a "
                            "folder that all nodes see with -o DIR") from error
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)

    def close_door(self) -> None:
        """Tell ranks that come later that they are too late."""
        self._is_open = False

    def guests(self, timeout_s: float) -> Iterator[tuple[Wire, Message]]:
        """Yield the ranks that connect in ``timeout_s``, with what they say of themselves."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([self._listener], [], [], left_s)[0]:
                return
            with contextlib.suppress(OSError, RankLostError, KeyError):
                line = Wire(self._listener.accept()[0])
                hello = line.await_one(_CONNECT_S)
                if secrets.compare_digest(str(hello.pop("secret")), self._secret):
                    yield line, hello
                else:
                    line.close()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            with contextlib.suppress(FileError):  # of a disk that is full, too
                self.publish()


def meeting_file(folder: Path, place: OwnPlace) -> Path:
    """Return the file by which the ranks of this launch meet, the same on all of them."""
    name = place.job or f"{place.size} ranks of user {os.getuid()}"
    return folder / f".hunt-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def meet(file: Path, place: OwnPlace, limit_s: float) -> Wire | MeetingHost:
    """Return the line to the host, or the host if this rank is the one.

    Raises CutOffError if ``limit_s`` pass without either, for a rank that comes too late, and for
    one that the host refuses."""
    deadline = time.monotonic() + limit_s
    watch, why = _Watch(place), "no rank has left its address there"
    while time.monotonic() < deadline:
        invitation = _read(file)
        if invitation is not None and not invitation["is_open"] and watch.lives(invitation):
            raise CutOffError(f"{_who(place)} comes too late: the hunt goes on without it")
        if invitation is not None and invitation["is_open"]:
            line, why = _joined(invitation, place)
            if line is not None:
                return line
        if watch.may_take_over(invitation):
            host = MeetingHost(file, place)
            host.publish()
            time.sleep(2 * _PAUSE_S)  # of two that do so at once, the last one stays
            if (now := _read(file)) is not None and now["host"] == place.rank:
                return host
        time.sleep(_PAUSE_S)
    raise CutOffError(f"{_who(place)} has not reached the hunt in {limit_s:g} s by {file}: {why}; "
                      "choose a folder that all nodes see with -o DIR")


def _who(place: OwnPlace) -> str:
    return f"rank {place.rank} on {place.node}"


def outlived(file: Path, place: OwnPlace) -> bool:
    """Wait while another rank is the host; return whether one was seen to live.

    A rank that is cut off stays until then: Open MPI's mpirun ends all at the first that fails."""
    watch, has_lived = _Watch(place), False
    while (invitation := _read(file)) is not None and not watch.may_take_over(invitation):
        has_lived |= watch.lives(invitation)
        time.sleep(_BEAT_S)
    return has_lived


class _Watch:
    """Tells a host that lives from one that has ended, by its counter."""

    def __init__(self, place: OwnPlace) -> None:
        self._turn_s = _TURN_S * min(place.rank, _MOST_TURNS)
        self._is_first = place.rank == 0
        self._seen: tuple[object, ...] | None = None
        self._since = time.monotonic()
        self._changed = False

    def lives(self, invitation: Mapping[str, Any]) -> bool:
        """Return whether the counter has been seen to grow."""
        self._look(invitation)
        return self._changed

    def may_take_over(self, invitation: Mapping[str, Any] | None) -> bool:
        self._look(invitation)
        if invitation is None and self._is_first:
            return True
        return time.monotonic() - self._since > _PATIENCE_S + self._turn_s

    def _look(self, invitation: Mapping[str, Any] | None) -> None:
        seen = None if invitation is None else (invitation["secret"], invitation["beats"])
        if seen != self._seen:
            self._changed = None not in (seen, self._seen)
            self._seen, self._since = seen, time.monotonic()


def _read(file: Path) -> Mapping[str, Any] | None:
    """Return what a host has left; None if nothing whole is there.

    Opening the folder makes an NFS client ask the server."""
    with contextlib.suppress(OSError, ValueError):
        os.close(os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        found = json.loads(file.read_bytes())
        if isinstance(found, dict) and {"addresses", "port", "secret", "host", "beats",
                                        "is_open"} <= found.keys():
            return found
    return None


def _joined(invitation: Mapping[str, Any], place: OwnPlace) -> tuple[Wire | None, str]:
    """Return the line to a host that has taken this rank, or None and why there is none."""
    why = "it names no address"
    for address in invitation["addresses"]:
        try:
            line = Wire(socket.create_connection((address, invitation["port"]), _CONNECT_S))
        except OSError as error:
            why = (f"rank {invitation['host']} is not reached at {address} port "
                   f"{invitation['port']}: {error.strerror or error}")
            continue
        try:
            line.send({"secret": invitation["secret"], "rank": place.rank, "size": place.size,
                       "node": place.node, "switch": place.switch, "version": __version__})
            answer = line.await_one(_PATIENCE_S)
        except RankLostError as error:
            line.close()
            why = f"{address} port {invitation['port']}: {error}"
            continue
        if refusal := answer.get("refused"):
            raise CutOffError(str(refusal))
        return line, ""
    return None, why
