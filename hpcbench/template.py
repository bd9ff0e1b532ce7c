"""The template process of one rank: torch imported, MPI never touched, forks workers.

Started by a supervisor as ``python -m hpcbench.template SOCKET_FD PARENT_PID [LISTENER_FD]``. It
runs one thread and touches no device, so a fork of it is a sound worker within milliseconds, or a
sound template of another rank, which joins at the listener."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from hpcbench.import_path import die_with_parent
from hpcbench.launch import messages, template_process
from hpcbench.launch.launcher import leave_requests_to_supervisor
from hpcbench.measurement.process import KernelFiles, no_collection_of_modules
from hpcbench.texts import error_line, say

_MESSAGE_BYTES = 256 * 1024


def main() -> None:
    """Import torch and what the kinds of cases need, fork workers until the socket closes."""
    control_fd, parent_pid, *listener_fd = (int(text) for text in sys.argv[1:])
    die_with_parent(parent_pid)
    leave_requests_to_supervisor()
    control = socket.socket(fileno=control_fd)
    with no_collection_of_modules():
        import torch  # noqa: F401  (this process exists to have it imported)

        import hpcbench.profiling.flight
        import hpcbench.worker  # noqa: F401

    _serve(control, socket.socket(fileno=listener_fd[0]) if listener_fd else None)
    if parent_pid:  # a profiler around it, if there is one, writes its report as Python ends
        os._exit(0)  # to take torch apart takes 0.2 s


def _serve(control: socket.socket, listener: socket.socket | None = None) -> None:
    """Import what the kinds need that the supervisor names, and serve it until it is gone."""
    from hpcbench.errors import PluginError
    from hpcbench.kinds.registry import kinds
    from hpcbench.measurement.runner import runner_of
    from hpcbench.plan.case import planner_of

    data = control.recv(_MESSAGE_BYTES)
    if not data:
        return
    with no_collection_of_modules():
        # only these: DTensor is half a torch more
        for kind in messages.decoded(messages.LOAD_REQUESTS, data):
            if kind in kinds():
                with contextlib.suppress(PluginError):  # its cases are skips
                    runner_of(kind)
                planner_of(kind)  # it rebuilds the workloads of cases
    ready = messages.TemplateEvent("ready", os.getpid(), 0)
    control.send(messages.encoded(messages.TEMPLATE_EVENTS, ready))
    _Forker(control, listener).serve()


class _Forker:
    """Forks a worker per request and reports how each one ended; forks templates that join."""

    def __init__(self, control: socket.socket, listener: socket.socket | None) -> None:
        self._control = control
        self._listener = listener
        self._templates: set[int] = set()
        self._selector = selectors.DefaultSelector()
        for source in (control, *([] if listener is None else [listener])):
            self._selector.register(source, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Wait for requests and for ends of forks; return when the supervisor is gone, and with it
        those of the templates that joined."""
        is_served = True
        while is_served or self._templates:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._report_end(key.fd, key.data)
                elif key.fileobj is self._listener:
                    self._fork_template(self._listener)
                elif not self._fork_one():
                    is_served = False
                    self._end_own()

    def _end_own(self) -> None:
        """End the workers, as no one is left who wants them; templates of other ranks stay."""
        for source in (self._control, *([] if self._listener is None else [self._listener])):
            self._selector.unregister(source)
            source.close()
        for key in self._selector.get_map().values():
            if key.data not in self._templates:
                os.kill(key.data, signal.SIGKILL)

    def _fork_template(self, listener: socket.socket) -> None:
        """Fork the template of a rank of the same user that has joined; if that fails, the rank
        starts one itself."""
        parent = os.getpid()
        try:
            control, _ = listener.accept()
            with control:
                if template_process.peer_of(control)[1] != os.getuid():
                    return
                pid = os.fork()
                if pid == 0:
                    self._become(lambda: _serve_another(control), parent)
        except OSError:  # no process or file is left, or its own rank has just ended
            return
        self._templates.add(pid)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)

    def _report_end(self, pidfd: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        if pid in self._templates:
            self._templates.remove(pid)
        else:
            self._report(messages.TemplateEvent("ended", pid, os.waitstatus_to_exitcode(status)))

    def _fork_one(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 8)
        if not data:
            return False
        request = messages.decoded(messages.FORK_REQUESTS, data)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(lambda: _run_worker(request, *fds), parent)
        for fd in fds:
            os.close(fd)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        self._report(messages.TemplateEvent("forked", pid, 0))
        return True

    def _report(self, event: messages.TemplateEvent) -> None:
        with contextlib.suppress(OSError):
            self._control.send(messages.encoded(messages.TEMPLATE_EVENTS, event))

    def _become(self, work: Callable[[], None], parent: int) -> NoReturn:
        """Turn this fresh fork into a worker, or another's template."""
        code = 1
        try:
            die_with_parent(parent)
            self._selector.close()
            self._control.close()
            if self._listener is not None:
                self._listener.close()
            work()
            code = 0
        except BaseException as error:
            say(f"hpcbench: this worker ended by {error_line(error, os.environ)}", sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)


def _serve_another(control: socket.socket) -> None:
    """Serve the supervisor that has joined, in a session of its own as any template; its first
    message brings the state that it would have passed on, and the file for the output."""
    wanted, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
    environ = template_process.environment(KernelFiles(), os.getpid())
    if wanted != template_process.state_of_template(environ):
        return  # it starts one itself
    os.setsid()
    for fd in fds:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
    _serve(control)


def _run_worker(
    request: messages.ForkRequest, channel_fd: int, progress_fd: int, stderr_fd: int,
    flight_fd: int,
) -> None:
    """Set the worker's environment, output and limits, then serve its supervisor."""
    from hpcbench.measurement.control import SharedProgress
    from hpcbench.profiling.flight import answer_flight_requests
    from hpcbench.worker import serve

    os.dup2(stderr_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stderr_fd)
    template_process.print_whole_lines()
    os.environ.update(request.env)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answer_flight_requests(flight_fd)
    if limit := request.memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    serve(messages.worker_channel(channel_fd), SharedProgress(progress_fd, request.capacity))


if __name__ == "__main__":
    main()
