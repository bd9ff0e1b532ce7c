"""The template process of a rank, started before anything heavy is imported.

Importing torch takes longer than starting MPI and planning, and goes on meanwhile. Its environment
is an allow-list: a child with an MPI library's variables that touches MPI can corrupt its parent's
memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcbench.config.axes import passed_variables
from hpcbench.import_path import module_command
from hpcbench.launch.launcher import announced_local_size, stop_signals_blocked
from hpcbench.measurement.process import (
    KernelFiles,
    expected_threads,
    granted_cores,
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


class TemplateProcess:
    """A process that imports torch and waits for `messages.LOAD_REQUESTS` on ``control``.

    ``env`` are its variables. Its output goes to the file ``output_fd``.
    """

    def __init__(self, env: Mapping[str, str], wrapper: Sequence[str] = ()) -> None:
        """Start it. Words of a ``wrapper`` stand before its command: a program that watches it."""
        self.env = dict(env)
        self._is_wrapped = bool(wrapper)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output_fd = os.memfd_create("hpcbench-template-stderr")
        with theirs, stop_signals_blocked():
            self.process = subprocess.Popen(
                [*wrapper, *module_command("hpcbench.template", str(theirs.fileno()),
                                           str(0 if wrapper else os.getpid()))],
                env=self.env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=self.output_fd, stderr=self.output_fd, start_new_session=True)

    def is_alive(self) -> bool:
        return self.control.fileno() >= 0 and self.process.poll() is None

    def close(self) -> None:
        """End the template and its workers; closing twice does nothing."""
        if self.control.fileno() >= 0:
            self.control.close()
            if self._is_wrapped:  # the template ends with its socket, the wrapper then reports
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_REPORT_WAIT_S)
            self.process.kill()
            self.process.wait()
            os.close(self.output_fd)


@contextlib.contextmanager
def early_template(environ: Mapping[str, str]) -> Iterator[TemplateProcess | None]:
    """Give a template with the variables of a run without ``launch.pass_env``.

    None where those are not known before MPI is, or where no process can be supervised.
    """
    local_size = announced_local_size(environ)
    if local_size is None or unsupervised():
        yield None
        return
    own, launchers = own_cores(), own_cores(os.getppid())  # a launcher that binds has more cores
    threads = expected_threads(len(own), local_size, len({*own, *launchers}),
                               granted_cores(KernelFiles()))
    template = TemplateProcess(worker_environment(environ, (), thread_variables(threads)))
    try:
        yield template
    finally:
        template.close()
