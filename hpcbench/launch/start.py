"""The start of MPI, which waits for every rank in native code: its limit, and who is missing.

mpi4py would hold the interpreter's lock meanwhile, so that no thread and no signal handler of ours
could run: MPI_Init is called without it here."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from hpcbench.errors import ExitCode
from hpcbench.launch import launcher
from hpcbench.measurement.process import KernelFiles, granted_cores
from hpcbench.texts import masked, say, say_all
from hpcbench.units import by_value, plural, rank_list, shortened

_UNHURRIED_S = 5.0
"""Few starts take longer: only then a limit that is a function is asked, which reads files."""


class Watchdog:
    """Calls ``act`` on a thread of its own if the block takes longer than ``timeout_s``.

    ``act`` gets the seconds by which it is late (many if the process was stopped) and must end the
    process. Once it is called the block cannot be left: one journal, one writer. A ``timeout_s``
    that is a function is called on that thread, after 5 s."""

    def __init__(
        self, timeout_s: float | Callable[[], float], act: Callable[[float], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._act = act
        self._left = threading.Event()
        self._one = threading.Lock()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._one:
            self._left.set()

    def _watch(self) -> None:
        began, timeout_s = time.monotonic(), self._timeout_s
        if callable(timeout_s):
            if self._left.wait(_UNHURRIED_S):
                return
            timeout_s = timeout_s()
        deadline = began + timeout_s
        if self._left.wait(max(0.0, deadline - time.monotonic())):
            return
        with self._one:
            if not self._left.is_set():
                self._act(time.monotonic() - deadline)


_PROVIDERS = "FI_PROVIDER_PATH"


def started_mpi() -> Any:
    """Return mpi4py.MPI with MPI started, as mpi4py would; leave the environment as it was.

    mpi4py sets where Intel MPI has its libfabric's providers. Workers would inherit it, and NCCL's
    plug-ins have another libfabric. Raises ImportError and RuntimeError."""
    providers = os.environ.get(_PROVIDERS)
    try:
        return _started_mpi()
    finally:
        if providers is None:
            os.environ.pop(_PROVIDERS, None)


def _started_mpi() -> Any:
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    if MPI.Is_initialized():
        return MPI
    level = getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}")
    try:
        start = ctypes.CDLL(MPI.__file__).MPI_Init_thread
    except (AttributeError, OSError):  # linked in another way: with the lock, then
        MPI.Init_thread(level)
    else:
        if code := start(None, None, level, ctypes.byref(ctypes.c_int())):
            raise RuntimeError(f"MPI_Init_thread returned {code}")
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI


LATER_S = 2.0
"""So much longer other ranks wait: rank 0 looks for who is missing, and speaks, before they end."""


class LateStart(NamedTuple):
    """A start that took too long: what is wrong, and how to see more."""

    problem: str
    remedy: str


def late_start(limit_s: float, environ: Mapping[str, str]) -> LateStart:
    missing = missing_ranks(environ)
    return LateStart(
        masked(f"MPI did not start within {limit_s:g} s: "
               f"{missing or 'some rank never came, or the nodes do not reach one another'}",
               environ),
        "start `python -m hpcbench --version` with the same launcher: does every rank print a "
        "line? Is the mpirun of this Python's environment?")


def _complain(late: LateStart) -> ExitCode:
    say(f"hpcbench: {late.problem}; {late.remedy} launch.init_timeout_s sets the limit",
        sys.__stderr__ or sys.stderr)
    return ExitCode.USAGE


@contextmanager
def limited_start(
    limit_s: Callable[[], float], environ: Mapping[str, str], refusal: str = "",
    tell: Callable[[LateStart], ExitCode] = _complain,
) -> Iterator[None]:
    """End this process if the ranks do not meet in the block within ``limit_s``, times the ranks a
    core of this node. ``refusal``: the lines that this rank wants to tell rank 0. ``tell`` prints
    who is missing and returns the exit code.

    It is called on rank 0 and, later, on the first rank of each node that runs this command: rank 0
    may be another program, another command, or gone."""
    speaks = launcher.announced_rank(environ) == 0
    waits_s = 0.0 if speaks else LATER_S

    def limit() -> float:
        nonlocal speaks, waits_s
        with suppress(Exception):
            if not speaks and not refusal and _is_first_of_command(environ):
                speaks = True
                waits_s = 0.0 if _is_only_node(environ) else LATER_S
        ranks_a_core = (launcher.announced_local_size(environ) or 1) / granted_cores(KernelFiles())
        return limit_s() * max(1.0, ranks_a_core) + waits_s

    def end(_late_s: float) -> None:
        code = ExitCode.USAGE
        with suppress(Exception):  # this process ends, whatever cannot be read or printed
            if speaks:
                code = tell(late_start(limit() - waits_s, environ))
            elif refusal:
                rank = launcher.announced_rank(environ)
                say_all(masked(f"hpcbench: rank {rank}: {refusal}", environ), sys.stderr)
        end_at_once(code)

    with Watchdog(limit, end):
        yield


def end_at_once(code: int) -> None:
    """End this process, whatever its main thread waits in."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def missing_ranks(environ: Mapping[str, str]) -> str:
    """Return which ranks of this node have ended or run another program, "" if none is known to."""
    variable, announced = launcher.rank_variable(environ), launcher.announced_size(environ)
    if not variable or announced is None:
        return ""
    running = _programs_of_ranks(variable)
    if not running:
        return ""
    n_local = launcher.announced_local_size(environ) or len(running)
    lines = []
    if n_local == announced[0]:
        if ended := {*range(n_local)} - {*running}:
            lines.append(f"rank {rank_list(ended)} has ended or was not started")
    elif len(running) < n_local:
        lines.append(f"{n_local - len(running)} of {plural(n_local, 'rank')} of this node have "
                     "ended or were not started")
    others = by_value({rank: shortened(texts[0]) for rank, texts in sorted(running.items())
                       if not _runs_this_command(texts)})
    return ", ".join([*lines, *(
        f"rank {rank_list(ranks)} runs {text}" for text, ranks in others.items())])


def _runs_this_command(texts: Sequence[str]) -> bool:
    """Return whether a rank, by the command lines of its processes, runs what this one runs."""
    return any("hpcbench" in text and text.endswith(" ".join(sys.argv[1:])) for text in texts)


def _is_only_node(environ: Mapping[str, str]) -> bool:
    announced = launcher.announced_size(environ)
    return announced is not None and launcher.announced_local_size(environ) in (None, announced[0])


def _is_first_of_command(environ: Mapping[str, str]) -> bool:
    """Return whether no rank before this one, of this node, runs the same command."""
    running = _programs_of_ranks(launcher.rank_variable(environ))
    ours = [rank for rank, texts in running.items() if _runs_this_command(texts)]
    return launcher.announced_rank(environ) == min(ours, default=0)


def _programs_of_ranks(variable: str) -> dict[int, list[str]]:
    """Return the command lines of each rank's processes here, the first one first.

    A rank's processes have its variable; the launcher's process above them has not."""
    running: dict[int, list[str]] = {}
    top = psutil.Process()
    while (parent := top.parent()) is not None and _rank_of(parent, variable) is not None:
        top = parent
    for process in [] if parent is None else parent.children(recursive=True):
        rank = _rank_of(process, variable)
        with suppress(psutil.Error, ValueError):  # gone, or without a command line
            if rank is not None and process.status() != psutil.STATUS_ZOMBIE:
                program, *words = process.cmdline()
                running.setdefault(rank, []).append(" ".join([Path(program).name, *words]))
    return running


def _rank_of(process: psutil.Process, variable: str) -> int | None:
    try:
        text = process.environ().get(variable, "")
    except (psutil.Error, OSError):
        return None
    return int(text) if text.isdigit() else None
