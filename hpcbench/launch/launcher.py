"""What the launcher's variables say, and the signals that ask a rank to stop.

SIGUSR1 asks for a stop after the running case, SIGINT and SIGTERM at once. They are the
supervisor's to judge; its template and workers ignore them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

_ANNOUNCED = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", ""),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH2's mpirun"),
)
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def by_torchrun(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process, be it inside a job step of Slurm."""
    return "TORCHELASTIC_RUN_ID" in environ and environ.get("RANK", "").isdigit()


def announced_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return (number of ranks, launcher) as the innermost launcher says it, or None.

    Slurm's number counts only in a job step that no mpirun started. The daemons of mpirun are a
    job step of their own, and their SLURM_* variables reach the ranks. Nor does it count for what
    somebody starts in a shell of ``srun --pty``: that is one process, however many tasks.
    """
    if by_torchrun(environ):
        return int(environ["WORLD_SIZE"]), "torchrun"
    for name, launcher in _ANNOUNCED:
        if environ.get(name, "").isdigit():
            return int(environ[name]), launcher or _of_pmi(environ)
    if ("SLURM_STEP_ID" in environ and environ.get("SLURM_STEP_NUM_TASKS", "").isdigit()
            and not in_shell_of_srun(environ, os.getpid(), has_terminal())):
        return int(environ["SLURM_STEP_NUM_TASKS"]), "srun"
    return None


def in_shell_of_srun(environ: Mapping[str, str], pid: int, terminal: bool) -> bool:
    """Return whether process ``pid`` was started in an interactive shell, which is the task.

    ``srun --pty`` gives its first task a ``terminal`` and leaves SLURM_PTY_PORT, which a srun that
    is started in that shell passes on, but its tasks have no terminal. SLURM_TASK_PID is what
    Slurm itself started: a rank of ``srun --pty python ...`` is no shell.
    """
    return (terminal and "SLURM_PTY_PORT" in environ
            and environ.get("SLURM_TASK_PID", str(pid)) != str(pid))


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal, wherever its input comes from."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _of_pmi(environ: Mapping[str, str]) -> str:
    """Tell MPICH's mpirun, which numbers the ranks of a node, from Slurm's plug-in pmi2."""
    inside_step = "SLURM_STEP_ID" in environ and "MPI_LOCALRANKID" not in environ
    return "srun --mpi=pmi2" if inside_step else "MPICH's mpirun"


def announced_rank(environ: Mapping[str, str]) -> int:
    """Return the rank as the launcher says it, 0 if none does: who speaks before MPI does."""
    for name in (("RANK",) if by_torchrun(environ) else _RANKS):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0


def announced_local_size(environ: Mapping[str, str]) -> int | None:
    """Return how many ranks of this node the launcher says it started; 1 if there is no launcher.

    It is None where the launcher does not tell: srun, and torchrun, which needs no early answer.
    """
    announced = announced_size(environ)
    if announced is None:
        return 1
    told = [] if by_torchrun(environ) else [environ.get(name, "") for name in _LOCAL_SIZES]
    return next((int(text) for text in told if text.isdigit() and int(text)), None)


def lonely_fix(launcher: str, library: str) -> str:
    """Return what to do where each of many ranks is alone in its MPI, which is ``library``."""
    mpirun = f"{Path(sys.executable).parent}/mpirun"
    if not launcher.startswith("srun"):
        return (f"they belong to different MPIs. Start with the mpirun of the environment that "
                f"python is in ({mpirun}), or set MPI4PY_LIBMPI to the library of that launcher")
    plugin = {"Open MPI": "pmix", "MPICH": "pmi2"}.get(family(library))
    if plugin is None:
        return ("that MPI does not know this srun. See `srun --mpi=list`, or use its own mpirun "
                "inside sbatch")
    return (f"{family(library)} needs srun --mpi={plugin} (`srun --mpi=list` shows whether this "
            f"Slurm has it), or mpirun inside sbatch ({mpirun})")


def family(library: str) -> str:
    """Return ``Open MPI`` or ``MPICH`` for what an MPI library says of itself, else its words."""
    for name in ("Open MPI", "MPICH"):
        if name.lower() in library.lower():
            return name
    return library


_AFTER_CASE = signal.SIGUSR1
_REQUESTS = (_AFTER_CASE, signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """The signals that request this rank to stop; read between waits."""

    def __init__(self) -> None:
        self.now = ""
        self.after_case = ""

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: remember the first request of each kind."""
        name = signal.Signals(number).name
        if number == _AFTER_CASE:
            self.after_case = self.after_case or name
        else:
            self.now = self.now or name

    @property
    def any(self) -> str:
        return self.now or self.after_case


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Give a `StopRequests` fed by this process's signals; afterwards they are ignored.

    What follows the block is the end of the process, and a late request must not cut it short.
    """
    requests = StopRequests()
    for number in _REQUESTS:
        signal.signal(number, requests.take)
    try:
        yield requests
    finally:
        for number in _REQUESTS:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def requests_held() -> Iterator[None]:
    """Hold back requests to stop, also in a process that is started meanwhile.

    It has to call `leave_requests_to_supervisor`; here they arrive at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_requests_to_supervisor() -> None:
    """Ignore requests to stop, here and in forks of this process.

    They are the supervisor's to judge. Slurm sends them to every process of a job step: without
    this, a request to finish the running case would end it.
    """
    for number in _REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
