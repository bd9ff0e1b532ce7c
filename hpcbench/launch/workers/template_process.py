"""The template process of a rank, started and ended: nothing heavy is imported for it.

So a run can start it at once. Importing torch takes longer than to start MPI and to plan, and goes
on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.import_path import module_command
from hpcbench.launch.ranks.launcher_variables import announced_local_size
from hpcbench.launch.ranks.stop_requests import requests_held
from hpcbench.launch.workers.environment import thread_variables, worker_environment
from hpcbench.measure.allocation import expected_threads, granted_cores
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.portable import own_cores, unsupervised

_REPORT_WAIT_S = 60.0


class TemplateProcess:
    """A process that imports torch and waits for a `messages.LoadRequest` on ``control``.

    ``env`` are its variables. What it prints goes to the file ``output_fd``.
    """

    def __init__(self, env: Mapping[str, str], wrapper: Sequence[str] = ()) -> None:
        """Start it. Words of a ``wrapper`` stand before its command: a program that watches it."""
        self.env = dict(env)
        self._is_wrapped = bool(wrapper)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output_fd = os.memfd_create("hpcbench-template-stderr")
        with theirs, requests_held():
            self.process = subprocess.Popen(
                [*wrapper, *module_command("hpcbench.template", str(theirs.fileno()),
                                           str(0 if wrapper else os.getpid()))],
                env=self.env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=self.output_fd, stderr=self.output_fd, start_new_session=True)

    def is_alive(self) -> bool:
        """Return whether the process still runs, and has not been told to end."""
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
    """Give a template with the variables that a run without ``launch.pass_env`` gives it.

    It is None where those are not known before MPI is, or where no process can be supervised.
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
