"""Devices: where tensors live, how one call completes, and how their errors are classified.

CUDA graphs follow torch's notes (docs.pytorch.org/docs/stable/notes/cuda.html): warm-up calls on a
side stream, so that NCCL connects and libraries get their workspaces, then one captured call.
Replays use the memory of that call. It has never run on a GPU."""

from __future__ import annotations

import gc
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.measurement.control import Control
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.texts import masked_line
from hpcbench.trace.schema import NO_DEVICE_TIME

_COMMUNICATION = ("connection closed by peer", "connection reset", "broken pipe", "timed out",
                  "timeout", "nccl error", "gloo/transport", "socket", "remote process",
                  "remote server", "connection refused", "unhandled system error",
                  "communicator was aborted")
_OF_OWN_DEVICE = ("cuda error: ", "hip error: ")
"""How errors of this rank's own GPU kernels begin: one that ran too long "timed out", too."""
_OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "not enough memory", "_alloc_failed", "allocation_failed", "statusallocfailed",
    "status_memory_error", "failed to cuda malloc", "failed to cuda calloc",
    "failed to cuda host alloc", "failed to malloc")
"""Texts by which memory is refused, in lower case, of: torch's allocators of CUDA, HIP and MPS,
both runtimes (also through NCCL's "Cuda failure" and "Triton Error"); torch's allocator on the
host; the system; C++; torch on Windows; cuBLAS, cuFFT, cuSOLVER, hipBLAS and older cuDNN; cuDNN 9;
MIOpen; rocBLAS; NCCL and RCCL."""


def classify(error: Exception) -> str:
    """Return ``communication`` for an error that a peer can have caused, else ``exception``."""
    text = str(error).lower()
    if (out_of_memory(error) or isinstance(error, CaseError)
            or text.startswith(_OF_OWN_DEVICE)):
        return "exception"
    is_torch_error = isinstance(error, (RuntimeError, dist.DistError))
    peers = is_torch_error and any(phrase in text for phrase in _COMMUNICATION)
    return "communication" if peers else "exception"


def out_of_memory(error: Exception) -> bool:
    """Return whether host or device memory ran out.

    A kernel that exceeds a multiprocessor (Triton's "out of resource: shared memory") does not
    count: fewer data would not help."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return not isinstance(error, CaseError) and any(phrase in text for phrase in _OUT_OF_MEMORY)


def one_line(error: Exception) -> str:
    """Return the error's type and first line, as `masked_line` has it."""
    name = "out of memory" if out_of_memory(error) else type(error).__name__
    return f"{name}: {masked_line(str(error), os.environ)}"


class CpuDevice:
    """The host: collectives of CPU backends return when they are complete."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        """Return ``run`` itself: CPU backends return when they are complete."""
        return run

    took = repeat((NO_DEVICE_TIME, NO_DEVICE_TIME)).__next__
    """No device clock; no Python code between two samples."""

    synchronize = repeat(None).__next__
    """Nothing is pending; the same without Python code."""

    def give_back(self) -> None:
        """Do nothing: the host's allocator keeps little, and no library is refused for it."""


class _StreamDevice(ABC):
    """A device with a stream: a call is complete when the stream has drained.

    Device time is between two events around the call on the current stream."""

    def __init__(self, torch_device: torch.device, begin: Any, end: Any) -> None:
        self.torch_device = torch_device
        self._begin, self._end = begin, end
        self._enqueue_ns = NO_DEVICE_TIME

    @abstractmethod
    def _drain(self) -> None:
        """Wait until the second event is over."""

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        def call() -> None:
            began_ns = now_ns()
            self._begin.record()
            run()
            self._end.record()
            self._enqueue_ns = now_ns() - began_ns
            self._drain()
        return call

    def took(self) -> tuple[int, int]:
        """Return ns to enqueue the last call, and ns between the two events."""
        return self._enqueue_ns, int(self._begin.elapsed_time(self._end) * 1e6)  # ms to ns


class CudaDevice(_StreamDevice):
    """One GPU, and CUDA's events."""

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        super().__init__(torch.device("cuda", index), torch.cuda.Event(enable_timing=True),
                         torch.cuda.Event(enable_timing=True))

    def _drain(self) -> None:
        self._end.synchronize()

    def give_back(self) -> None:
        """Free cycles of the case before, and torch's cache: NCCL, cuBLAS and symmetric memory
        allocate outside of it."""
        gc.collect()  # next to nothing: what the template has loaded is frozen
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)


class MpsDevice(_StreamDevice):
    """Apple's GPU, where torch has one stream. Written after torch's documentation; never run."""

    def __init__(self) -> None:
        super().__init__(torch.device("mps"), torch.mps.Event(enable_timing=True),
                         torch.mps.Event(enable_timing=True))

    def _drain(self) -> None:
        self.synchronize()

    def give_back(self) -> None:
        gc.collect()
        torch.mps.empty_cache()

    def synchronize(self) -> None:
        torch.mps.synchronize()


_WITH_INFINITY_CACHE = ("gfx94", "gfx95")
_INFINITY_CACHE_BYTES = 256 * 10**6
"""An MI300's and its successors' (AMD's CDNA 3 white paper); HIP reports the 4 MB of one die."""
AnyDevice = CpuDevice | CudaDevice | MpsDevice


def cache_bytes(device: torch.device) -> int | None:
    """Return a GPU's last-level cache in bytes, None where torch does not report it; 0 without a
    GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    properties = torch.cuda.get_device_properties(device)
    if str(getattr(properties, "gcnArchName", "")).startswith(_WITH_INFINITY_CACHE):
        return _INFINITY_CACHE_BYTES
    size: int | None = getattr(properties, "L2_cache_size", None)  # since torch 2.5
    return size or None


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a GPU: free memory and torch's cache."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


def add_in_fp32() -> None:
    """Have cuBLAS add partial sums of fp16 and bf16 products in fp32.

    Otherwise the bounds of checked results (`kinds.primitive.run.operands`) would be too small."""
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def multiply_in_fp32() -> None:
    """Turn TF32 off for products and convolutions of fp32.

    torch allows cuDNN TF32, and NGC's images allow it to cuBLAS; rates and bounds are those of
    fp32. torch 2.9 has two APIs, and reading one raises where the other differs; so both are set,
    the older first, which resets some of the newer."""
    with warnings.catch_warnings():  # torch 2.9 warns of its older API, once
        warnings.filterwarnings("ignore", "Please use the new API settings to control TF32")
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    newer: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None),
                        getattr(torch.backends.cudnn, "rnn", None)]
    for operators in newer:
        if hasattr(operators, "fp32_precision"):
            operators.fp32_precision = "ieee"


def open_device(name: str, gpu: int | None) -> AnyDevice:
    """Return this rank's device: ``cpu``, ``mps``, or GPU ``gpu`` of those it sees; fp32 is
    computed in fp32.

    Raises CaseError for a rank without a GPU of its own."""
    multiply_in_fp32()
    if name == "mps":
        return MpsDevice()
    if name != "cuda":
        return CpuDevice()
    if gpu is None:
        raise CaseError("this rank has no GPU of its own")
    add_in_fp32()
    return CudaDevice(gpu)


WARM_UP_CALLS = 3
"""As torch's examples have it."""


class Replayed:
    """The operation as it is, but for ``run``, which replays the graph."""

    def __init__(self, operation: AnyOperation, graph: Any) -> None:
        self._operation = operation
        self._graph = graph
        self.name = operation.name
        self.place: Place = operation.place

    def prepare(self) -> None:
        self._operation.prepare()

    def run(self) -> None:
        self._graph.replay()

    def corrupt_output(self) -> None:
        self._operation.corrupt_output()

    def check(self) -> object | None:
        return self._operation.check()


def captured(operation: AnyOperation, control: Control) -> Replayed:
    """Capture one call; collective. CUDA's errors are raised as they are.

    Errors of other threads do not end the capture: NCCL's watchdog queries events meanwhile."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            operation.prepare()
            operation.run()
    current.wait_stream(side)
    operation.prepare()
    torch.cuda.synchronize()
    control.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        operation.run()
    torch.cuda.synchronize()
    control.barrier()
    return Replayed(operation, graph)
