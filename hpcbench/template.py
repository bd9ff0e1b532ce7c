"""The template process of one rank: torch imported, MPI never touched, forks workers.

Started by a supervisor as ``python -m hpcbench.template SOCKET_FD PARENT_PID``. It
runs one thread and touches no device, so a fork of it is a sound worker within milliseconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import selectors
import signal
import socket
import sys
import traceback

from hpcbench.launch.launcher import leave_requests_to_supervisor
from hpcbench.launch.messages import (
    FORK_REQUESTS,
    LOAD_REQUESTS,
    TEMPLATE_EVENTS,
    ForkRequest,
    TemplateEvent,
    decoded,
    encoded,
    worker_channel,
)
from hpcbench.launch.template_process import print_whole_lines
from hpcbench.measurement.process import die_with_parent, no_collection_of_modules

_MESSAGE_BYTES = 256 * 1024


def main() -> None:
    """Import torch and what the kinds of cases need, fork workers until the socket closes."""
    control_fd, parent_pid = (int(text) for text in sys.argv[1:])
    die_with_parent(parent_pid)
    leave_requests_to_supervisor()
    control = socket.socket(fileno=control_fd)
    with no_collection_of_modules():
        import torch  # noqa: F401  (this process exists to have it imported)

        import hpcbench.profiling.flight
        import hpcbench.worker  # noqa: F401
        from hpcbench.errors import PluginError
        from hpcbench.kinds.registry import kinds
        from hpcbench.measurement.runner import runner_of
        from hpcbench.plan.case import planner_of

        data = control.recv(_MESSAGE_BYTES)
        if not data:
            return
        for kind in decoded(LOAD_REQUESTS, data):  # only these: DTensor is half a torch more
            if kind in kinds():
                with contextlib.suppress(PluginError):  # its cases are skips
                    runner_of(kind)
                planner_of(kind)  # it rebuilds the workloads of cases
    control.send(encoded(TEMPLATE_EVENTS, TemplateEvent("ready", 0, 0)))
    _Forker(control).serve()


class _Forker:
    """Forks a worker per request and reports how each one ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Wait for requests and for ends of workers; return when the supervisor is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._report_end(key.fd, key.data)
                elif not self._fork_one():
                    return

    def _report_end(self, pidfd: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._report(TemplateEvent("ended", pid, os.waitstatus_to_exitcode(status)))

    def _fork_one(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 8)
        if not data:
            return False
        request = decoded(FORK_REQUESTS, data)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(parent, request, fds)
        for fd in fds:
            os.close(fd)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        self._report(TemplateEvent("forked", pid, 0))
        return True

    def _report(self, event: TemplateEvent) -> None:
        with contextlib.suppress(OSError):
            self._control.send(encoded(TEMPLATE_EVENTS, event))

    def _become_worker(self, parent: int, request: ForkRequest, fds: list[int]) -> None:
        """Turn this fresh fork into a worker; never returns."""
        code = 1
        try:
            die_with_parent(parent)
            self._selector.close()
            self._control.close()
            _run_worker(request, *fds)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _run_worker(
    request: ForkRequest, channel_fd: int, progress_fd: int, stderr_fd: int, flight_fd: int,
) -> None:
    """Set the worker's environment, output and limits, then serve its supervisor."""
    from hpcbench.measurement.control import SharedProgress
    from hpcbench.profiling.flight import answer_flight_requests
    from hpcbench.worker import serve

    os.dup2(stderr_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stderr_fd)
    print_whole_lines()
    os.environ.update(request.env)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answer_flight_requests(flight_fd)
    if limit := request.memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    serve(worker_channel(channel_fd), SharedProgress(progress_fd, request.capacity))


if __name__ == "__main__":
    main()
