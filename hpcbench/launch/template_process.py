"""The template process of a rank, started before anything heavy is imported.

Importing torch takes longer than starting MPI and planning, and goes on meanwhile. Its environment
is an allow-list: a child with an MPI library's variables that touches MPI can corrupt its parent's
memory. Ranks of a node that are alike in all that a template inherits import torch once: the first
one's template forks theirs."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import hashlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcbench.import_path import module_command, passed_variables
from hpcbench.launch import launcher
from hpcbench.measurement.process import (
    KernelFiles,
    expected_threads,
    granted_cores,
    memory_policy,
    own_cores,
    unsupervised,
)

READ_LATE = ("NCCL_*", "RCCL_*", "UCC_*", "UCX_*", "GLOO_*", "TORCH_NCCL_*", "FI_*")
"""Variables that libraries read when a communicator is made, so a forked worker can set them;
others need a fresh template."""


def worker_environment(
    environ: Mapping[str, str], pass_env: Iterable[str], defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables a worker starts with; ``defaults`` fill what is not set."""
    return {**defaults, **passed_variables(environ, pass_env)}


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that give a worker so many threads (`measurement.process`)."""
    return {"OMP_NUM_THREADS": str(threads)}


def split_by_load_time(
    env: Sequence[tuple[str, str]],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (needed when torch loads, settable in a forked worker) of a case's variables."""
    late = {name: value for name, value in env
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in READ_LATE)}
    return {name: value for name, value in env if name not in late}, late


_IOLBF = 1
KILLED_FOR_MEMORY = "killed by the kernel for memory"


def print_whole_lines() -> None:
    """Have C's stdout write each line at once: a worker that ends by a signal or ``_exit`` would
    lose NCCL's last lines."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def process_state(pid: int) -> str:
    """Return the kernel's one-letter process state (R, S, D, T, Z), or "" if there is none."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/stat").read_bytes())  # with a name of any bytes
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel killed for memory, None if unknown."""
    for line in os.fsdecode(Path("/proc/self/cgroup").read_bytes()).splitlines():
        _, controllers, path = line.split(":", 2)
        names = {"memory": [f"memory{path}/memory.oom_control"],
                 "": [f"{path}/memory.events", f"unified{path}/memory.events"]}
        for name in names.get(controllers, ()):
            file = Path(f"/sys/fs/cgroup/{name.lstrip('/')}")
            if file.exists():
                counts = dict(line.split() for line in file.read_text().splitlines())
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
    return None


_REPORT_WAIT_S = 60.0


_PEER = struct.Struct("iII")
"""Linux's struct ucred: process, user and group at the other end of a socket."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process, and its user, that connected to a socket or listens at it."""
    process, user, _ = _PEER.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process, user


def _address(pid: int) -> str:
    """Return where the template of this supervisor listens: a name in memory, no file."""
    return f"\0hpcbench-template-{pid}"


class TemplateProcess:
    """A process that imports torch and waits for `messages.LOAD_REQUESTS` on ``control``.

    ``env`` are its variables. Its output goes to the file ``output_fd``."""

    def __init__(
        self, env: Mapping[str, str], wrapper: Sequence[str] = (), *, is_shared: bool = False,
    ) -> None:
        """Start it. Words of a ``wrapper`` stand before its command: a program that watches it.

        One that ``is_shared`` forks templates for `JoinedTemplate` objects, too, and lives on
        after `close` until `end`."""
        self.env = dict(env)
        self._is_wrapped = bool(wrapper)
        self._is_shared = is_shared
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output_fd = os.memfd_create("hpcbench-template-stderr")
        with contextlib.ExitStack() as passed, launcher.stop_signals_blocked():
            fds = [passed.enter_context(theirs).fileno()]
            if is_shared:
                listener = passed.enter_context(
                    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                with contextlib.suppress(OSError):  # another program's name: nobody can join
                    listener.bind(_address(os.getpid()))
                    listener.listen(socket.SOMAXCONN)
                    fds.append(listener.fileno())
            parent = 0 if wrapper else os.getpid()
            control_fd, *listener_fd = map(str, fds)
            self.process = subprocess.Popen(
                [*wrapper, *module_command("hpcbench.template", control_fd, str(parent),
                                           *listener_fd)],
                env=self.env, pass_fds=fds, stdin=subprocess.DEVNULL,
                stdout=self.output_fd, stderr=self.output_fd, start_new_session=True)

    def is_alive(self) -> bool:
        return self.control.fileno() >= 0 and self.process.poll() is None

    def exit_code(self, timeout_s: float) -> int | None:
        """Return its exit code (negative: signal), None if it does not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return None

    def close(self) -> None:
        """End the template and its workers; closing twice does nothing."""
        if self.control.fileno() >= 0:
            self.control.close()
            if self._is_wrapped:  # the template ends with its socket, the wrapper then reports
                self.exit_code(_REPORT_WAIT_S)
            if not self._is_shared:
                self.end()
            os.close(self.output_fd)

    def end(self) -> None:
        """End the process, and with it all that it has forked."""
        self.process.kill()
        self.process.wait()


class JoinedTemplate:
    """A `TemplateProcess` for this rank that the template of another one forks once it is joined.

    It ends with that one, with this process, or when it is closed."""

    def __init__(self, env: Mapping[str, str], first: int) -> None:
        """``first`` is the supervisor of the template to join; nothing waits for it here."""
        self.env = dict(env)
        self._first = first
        self._wanted = state_of_template(env)
        self._pidfd = -1
        self._is_joined = False
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output_fd = os.memfd_create("hpcbench-template-stderr")

    def is_alive(self) -> bool:
        """Return whether it is there; first join it. Without that other template it is not."""
        if self.control.fileno() < 0:
            return False
        if not self._is_joined:
            try:
                self.control.connect(_address(self._first))
                if peer_of(self.control) != (self._first, os.getuid()):
                    return False  # another program has the name
                socket.send_fds(self.control, [self._wanted], [self.output_fd])
            except OSError:
                return False
            self._is_joined = True
        return self._pidfd < 0 or not _is_readable(self._pidfd, 0.0)

    def is_ready(self, pid: int) -> None:
        """Note the process that has said that it is ready."""
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def exit_code(self, timeout_s: float) -> int | None:
        """Return None: only its parent learns it."""
        return None

    def close(self) -> None:
        """End the template and its workers; closing twice does nothing."""
        if self.control.fileno() >= 0:
            self.control.close()
            if self._pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                _is_readable(self._pidfd, None)
                os.close(self._pidfd)
            os.close(self.output_fd)


AnyTemplate = TemplateProcess | JoinedTemplate


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


@contextlib.contextmanager
def early_template(environ: Mapping[str, str]) -> Iterator[AnyTemplate | None]:
    """Give a template with the variables of a run without ``launch.pass_env``.

    None where those are not known before MPI is, or where no process can be supervised."""
    local_size = launcher.announced_local_size(environ)
    if local_size is None or unsupervised():
        yield None
        return
    own, launchers = own_cores(), own_cores(os.getppid())  # a launcher that binds has more cores
    threads = expected_threads(len(own), local_size, len({*own, *launchers}),
                               granted_cores(KernelFiles()))
    env = worker_environment(environ, (), thread_variables(threads))
    if first := first_alike(environ):
        with contextlib.closing(JoinedTemplate(env, first)) as joined:
            yield joined
        return
    template = TemplateProcess(env, is_shared=local_size > 1)
    try:
        yield template
    finally:
        template.close()
        template.end()


def first_alike(environ: Mapping[str, str]) -> int | None:
    """Return the process of the first rank before this one that is alike, None if none is.

    Alike are ranks of one launcher process with the same command whose templates would inherit the
    same: variables, cores, memory policy, limits, cgroup, namespaces. The template compares once
    more what it has in fact (`state_of_template`): a program around hpcbench may set a rank's."""
    variable, files = launcher.rank_variable(environ), KernelFiles()
    before: dict[int, int] = {}
    for pid in _children(files, os.getppid()) if variable else ():
        rank = environment(files, pid).get(variable, "")
        if rank.isdigit() and int(rank) < launcher.announced_rank(environ):
            before[int(rank)] = pid
    own = _command(files, os.getpid()) if before else None
    return next((pid for _, pid in sorted(before.items()) if own and _command(files, pid) == own),
                None)


def state_of_template(env: Mapping[str, str]) -> bytes:
    """Return a digest of variables and of what this process passes on to forks and programs."""
    state = repr((sorted(env.items()), _inherited(KernelFiles(), os.getpid())))
    return hashlib.sha256(os.fsencode(state)).digest()


def _children(files: KernelFiles, pid: int) -> list[int]:
    folder = f"proc/{pid}/task"
    return [int(child) for task in files.names(folder)
            for child in (files.text(f"{folder}/{task}/children") or "").split()]


def environment(files: KernelFiles, pid: int) -> dict[str, str]:
    """Return the variables that a process began with, none of one that is gone."""
    text = files.text(f"proc/{pid}/environ", _ENVIRONMENT_BYTES) or ""
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


_ENVIRONMENT_BYTES = 8 << 20
_OF_JOB = ("PMI_JOBID", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that tell apart jobs of one launcher process."""
_INHERITED = re.compile(
    r"Uid|Gid|Groups|NoNewPrivs|Seccomp|Speculation.*|THP_enabled|Cap\w+|\w+_allowed|Umask")
"""Fields of /proc/PID/status that a fork inherits."""


def _command(files: KernelFiles, pid: int) -> list[object] | None:
    """Return what a supervisor runs, and with what; None if it is gone."""
    environ = environment(files, pid)
    try:
        return [Path(f"/proc/{pid}/exe").readlink(), files.text(f"proc/{pid}/cmdline"),
                worker_environment(environ, (), {}), [environ.get(name) for name in _OF_JOB],
                _inherited(files, pid)]
    except OSError:
        return None


def _inherited(files: KernelFiles, pid: int) -> list[object]:
    """Return what a process passes on to forks and programs. Raises OSError if it is gone."""
    folder = f"proc/{pid}"
    spaces = [f"ns/{name}" for name in files.names(f"{folder}/ns")]
    return [
        [Path("/", folder, name).readlink() for name in ("cwd", "root", *spaces)],
        [files.text(f"{folder}/{name}") for name in ("cgroup", "limits", "oom_score_adj",
                                                     "personality")],
        {name: text for name, text in files.fields(f"{folder}/status").items()
         if _INHERITED.fullmatch(name)},
        memory_policy(files, pid), os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority]
