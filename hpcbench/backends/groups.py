"""The store and control groups of a job's workers, groups under test, and UCC.

Control groups: gloo between workers, shared memory where ranks of a node have cores enough, MPI
between inline processes; never the group under test. UCC is built into torch or registered by
torch_ucc when imported: only in workers and in a child of the probe, which tries each collective on
one rank."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.backends.child import Answers, ChildTask
from hpcbench.backends.counting_backend import COUNTING_BACKEND, open_counting_group
from hpcbench.config.axes import TORCH, library_of
from hpcbench.errors import CaseError
from hpcbench.measurement.control import Control, Integers, control_in_memory
from hpcbench.measurement.environment import loaded_libraries, mapped_files
from hpcbench.operations.data import all_gather_tensor, reduce_scatter_tensor
from hpcbench.texts import cut, first_line


def open_store(listener: socket.socket, timeout_s: float) -> dist.TCPStore:
    """Start the store on a listening socket, which it takes over. Raises CaseError."""
    host, port, *_ = listener.getsockname()
    inode, fd = os.fstat(listener.fileno()).st_ino, listener.detach()
    try:
        return _served(host, port, fd, timeout_s)
    except RuntimeError as error:
        # whether torch has closed the descriptor depends on how far it came
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        raise CaseError(f"the store on {host} does not start: {error}") from error


def _served(host: str, port: int, fd: int, timeout_s: float) -> dist.TCPStore:
    """Return the store on a descriptor. Torch before 2.8 takes one without libuv only."""
    how: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": fd,
                           "timeout": timedelta(seconds=timeout_s)}
    try:
        return dist.TCPStore(host, port, **how)
    except NotImplementedError:
        return dist.TCPStore(host, port, use_libuv=False, **how)


def host_barrier(group: Any = None) -> None:
    """Wait for every rank of a gloo group (None: the default group).

    torch's own function first queries the driver for devices, which may crash the worker."""
    options = dist.BarrierOptions()
    options.device = torch.device("cpu")
    (group or dist.group.WORLD).barrier(opts=options).wait()


class GlooControl:
    """The default group of the workers, which is always gloo and never under test."""

    def barrier(self) -> None:
        host_barrier()

    def maximum(self, values: Integers) -> Integers:
        agreed: Integers = values.copy()
        dist.all_reduce(torch.from_numpy(agreed), dist.ReduceOp.MAX)
        return agreed


def control_of_node(rank: int, ranks: int, timeout_s: float) -> Control:
    """Return the barrier of the default group, within one node; collective.

    Shared memory where that serves (`control_in_memory`), else gloo."""
    def gathered(value: Any) -> list[Any]:
        values: list[Any] = [None] * ranks
        dist.all_gather_object(values, value)
        return values

    return control_in_memory(rank, ranks, timeout_s, gathered) or GlooControl()


class MpiControl:
    """A communicator of its own, apart from the one under test. Waiting in it spins."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._max = MPI.MAX
        self.barrier = comm.Barrier

    def maximum(self, values: Integers) -> Integers:
        agreed: Integers = np.empty_like(values)
        self._comm.Allreduce(values, agreed, self._max)
        return agreed


_PLUGIN = "torch_ucc"
_ONLY_THE_DEFAULT = ("UCC_CLS", "UCC_CL_BASIC_TLS", "UCC_TLS")
# torch asserts that it knows a backend; ProcessGroupUCC::reduce looks ops up with map::at
_REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError)


def load_ucc() -> str | None:
    """Make backend ``ucc`` known to torch.distributed; return why that cannot be, or None."""
    if dist.is_ucc_available() or not dist.is_available():
        return None if dist.is_available() else "torch was built without torch.distributed"
    if importlib.util.find_spec(_PLUGIN) is None:
        return f"torch {torch.__version__} was built without it, and {_PLUGIN} is not installed"
    try:
        with warnings.catch_warnings():  # it registers itself without naming its devices
            warnings.filterwarnings("ignore", "Device capability of ucc unspecified")
            importlib.import_module(_PLUGIN)
    except (ImportError, OSError) as error:
        return f"{_PLUGIN} cannot be imported: {cut(first_line(str(error)))}"
    return None


def ucc_task() -> ChildTask | None:
    """Return the task of the child for `ucc_facts`; None where there is no UCC."""
    found = dist.is_ucc_available() or importlib.util.find_spec(_PLUGIN) is not None
    return _try_everything if found else None


def cuda_task() -> Iterator[tuple[str, Any]]:
    """Reduce a tensor of this rank on the first GPU; yield why UCC takes no GPU memory, or None."""
    _use_default_layers()
    load_ucc()
    yield "without_cuda", _refusal_of_one_rank("cuda")


def ucc_facts(answers: Answers | None) -> dict[str, Any]:
    """Return plain JSON values from a child's answers to `ucc_task`.

    Keys: ``reason`` (why ucc cannot be used, or None); ``source`` (``torch`` or ``torch_ucc``);
    ``layers`` (transport layers, None if unknown); ``lacks`` (of `one_rank_calls`);
    ``without_cuda`` (why it takes no GPU memory, or None); ``versions``; ``libraries``."""
    facts: dict[str, Any] = {
        "source": "torch" if dist.is_ucc_available() else _PLUGIN, "layers": None, "lacks": {},
        "versions": {}, "libraries": {}, "without_cuda": None}
    if answers is None:
        return {**facts, "reason": load_ucc()}
    if answers.lost:
        return {**facts, "reason": ucc_loss_reason(answers.lost)}
    return {**facts, **answers.values}


def ucc_loss_reason(lost: str) -> str:
    """Return the reason against UCC of a child that ended before its answer."""
    return f"a group of one rank could not be tried: the process {lost}"


def _try_everything() -> Iterator[tuple[str, Any]]:
    """Open a group of this one rank on the host and call each collective once."""
    _use_default_layers()
    if reason := load_ucc():
        yield "reason", reason
        return
    yield "layers", _layers()
    yield "versions", _versions()
    yield "libraries", loaded_libraries()
    error = _refusal_of_one_rank("cpu")
    if error is None:
        yield "lacks", refused_by_ucc(one_rank_calls())
    yield "reason", None if error is None else f"a group of one rank does not work: {error}"


def _use_default_layers() -> None:
    """Have UCC take its default layers, whatever the user chose for the cases."""
    for name in _ONLY_THE_DEFAULT:
        os.environ.pop(name, None)


def _refusal_of_one_rank(device: str) -> str | None:
    """Open a group of this one rank and reduce a tensor; return why that fails, or None."""
    try:
        dist.init_process_group("ucc", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1, device=device))
        if device == "cuda":
            torch.cuda.synchronize()
    except _REFUSALS as error:
        return cut(first_line(str(error)))
    return None


def one_rank_calls() -> dict[str, Callable[[], object]]:
    """Return by collective or op the calls that one rank can make for the workloads of a plan.

    Without all_reduce, which every ucc has, and send_recv, which torch refuses to oneself."""
    ones, two = torch.ones(1), torch.empty(1)
    return {
        "all_gather": lambda: all_gather_tensor(two, ones),
        "reduce_scatter": lambda: reduce_scatter_tensor(two, ones),
        "all_to_all": lambda: dist.all_to_all_single(two, ones),
        "uneven all_to_all": lambda: dist.all_to_all_single(two, ones, [1], [1]),
        "broadcast": lambda: dist.broadcast(ones, 0),
        "reduce": lambda: dist.reduce(ones, 0),
        "gather": lambda: dist.gather(ones, [two], 0),
        "scatter": lambda: dist.scatter(two, [ones], 0),
        "barrier": dist.barrier,
        "avg": lambda: dist.all_reduce(ones, dist.ReduceOp.AVG),
    }


def refused_by_ucc(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    refusals = {}
    for name, call in calls.items():
        try:
            call()
        except _REFUSALS as error:
            refusals[name] = cut(first_line(str(error)))
    return refusals


def _versions() -> dict[str, str]:
    versions = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions[_PLUGIN] = importlib.metadata.version(_PLUGIN)
    for name, library, function in (("ucc", "libucc.so", "ucc_get_version"),
                                    ("ucx", "libucp.so", "ucp_get_version")):
        if path := _loaded(library):
            numbers = [ctypes.c_uint() for _ in range(3)]
            getattr(ctypes.CDLL(str(path)), function)(*map(ctypes.byref, numbers))
            versions[name] = ".".join(str(number.value) for number in numbers)
    return versions


def _layers() -> list[str] | None:
    """Return the transport layers that lie beside the loaded libucc, None if it is linked in."""
    library = _loaded("libucc.so")
    named = os.environ.get("UCC_COMPONENT_PATH")
    folder = Path(named) if named else library.parent / "ucc" if library else None
    if folder is None or not folder.is_dir():
        return None
    return sorted({path.name.removeprefix("libucc_tl_").partition(".")[0]
                   for path in folder.glob("libucc_tl_*.so*")})


def _loaded(name: str) -> Path | None:
    """Return the path of a shared library of this process whose file name begins so."""
    return next((path for path in mapped_files() if path.name.startswith(name)), None)


def open_groups(
    backend: str, timeout: timedelta, lines: Sequence[Sequence[int]], rank: int,
    device: torch.device | None = None, mpi_comm: Any = None,
) -> Any:
    """Return the group on ``backend`` (``ucc/tl/ucp`` is ucc) of the line that has ``rank``.

    Collective with the same ``lines``, which divide the world. ``mpi_comm`` is the workers'
    communicator for backend mpi. Raises CaseError if the backend cannot be loaded."""
    name = backend.removeprefix(TORCH) if backend.startswith(TORCH) else library_of(backend)
    own = next(number for number, ranks in enumerate(lines) if rank in ranks)
    if backend == "mpi/direct":
        from hpcbench.backends.mpi_buffers import DirectGroup

        return DirectGroup(mpi_comm.Split(own))
    if library_of(backend) == "mpi" and not backend.startswith(TORCH):
        return _open_mpi(timeout, lines[own], mpi_comm.Split(own))
    if name == "ucc" and (reason := load_ucc()):
        raise CaseError(f"ucc: {reason}")
    bound = _bound(name, device)
    return [dist.new_group(list(ranks), backend=name, timeout=timeout, **bound)
            for ranks in lines][own]


def open_lines(group: Any, lines: Sequence[Sequence[int]], own: int) -> Any:
    """Return the group, on the backend of ``group``, of the line that has rank ``own``. Collective.
    """
    mine = next(number for number, ranks in enumerate(lines) if own in ranks)
    backend = dist.get_backend(group)
    if backend == "mpi4py":
        return _open_mpi(None, lines[mine], group.comm.Split(mine))
    if backend == COUNTING_BACKEND:
        group.call_log.opened.append(lines)
        return [open_counting_group(ranks, group.call_log, lines) for ranks in lines][mine]
    bound = _bound(backend, group.bound_device_id)
    return [dist.new_group(list(ranks), backend=backend, **bound) for ranks in lines][mine]


def _bound(backend: str, device: torch.device | None) -> dict[str, Any]:
    """Return the argument that has NCCL (RCCL) connect its ranks now, on this rank's device.

    Otherwise it connects at the first call, and a barrier before that takes GPU number (global rank
    modulo GPUs), which may be another rank's. torch 2.7.0 and older then connect in the background,
    where NCCL 2.26 can hang (pytorch/pytorch#153960), unless the variable forbids it."""
    if backend.lower() != "nccl" or device is None or (
            "device_id" not in signature(dist.new_group).parameters):
        return {}
    os.environ.setdefault("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
    return {"device_id": device}


def _open_mpi(timeout: timedelta | None, ranks: Sequence[int], comm: Any) -> Any:
    """Return the group of these ranks on their own communicator."""
    from hpcbench.backends.mpi_group import MPI4PY, register_mpi

    register_mpi()
    return dist.new_group(list(ranks), backend=MPI4PY, timeout=timeout, pg_options=comm,
                          use_local_synchronization=True)
