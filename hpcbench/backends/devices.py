"""Devices: where tensors live, how one call is run to completion, and what their errors say.

CUDA graphs follow torch's notes (docs.pytorch.org/docs/stable/notes/cuda.html): a few calls on a
side stream first, so that NCCL has connected and libraries have their workspaces; then one captured
call. Replays read and write the memory of that call, which inputs and outputs keep. It has never
run on a GPU.
"""

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
from hpcbench.measure.control import Control
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.texts import masked
from hpcbench.trace.schema import NO_DEVICE_TIME

_COMMUNICATION = ("connection closed by peer", "connection reset", "broken pipe", "timed out",
                  "timeout", "nccl error", "gloo/transport", "socket", "remote process",
                  "remote server", "connection refused", "unhandled system error",
                  "communicator was aborted")
_OF_OWN_DEVICE = ("cuda error: ", "hip error: ")
"""The beginnings of what the runtime of a GPU says of this rank's own kernels: one that ran for too
long "timed out", too."""
_OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "not enough memory", "_alloc_failed", "allocation_failed", "statusallocfailed",
    "status_memory_error", "failed to cuda malloc", "failed to cuda calloc",
    "failed to cuda host alloc", "failed to malloc")
"""What is said where memory is refused, in lower case, by: torch's allocators of CUDA, HIP and MPS,
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
    peers = is_torch_error and any(words in text for words in _COMMUNICATION)
    return "communication" if peers else "exception"


def out_of_memory(error: Exception) -> bool:
    """Return whether the host or the device had no memory left.

    What a kernel lacks of a multiprocessor (Triton's "out of resource: shared memory") is none of
    it: fewer data would not help.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return not isinstance(error, CaseError) and any(words in text for words in _OUT_OF_MEMORY)


def one_line(error: Exception) -> str:
    """Return the error's type and first line, memory errors by their plain name.

    Secrets are masked before the line is cut: of a part of one it is not known what it is.
    """
    lines = masked(str(error), os.environ).splitlines()
    text = next((line.strip() for line in lines if line.strip()), "")
    name = "out of memory" if out_of_memory(error) else type(error).__name__
    return f"{name}: {text}"[:300]


class CpuDevice:
    """The host: collectives of CPU backends return when they are complete."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        """Return ``run`` itself: nothing is left to wait for, and nothing stands around it."""
        return run

    took = repeat((NO_DEVICE_TIME, NO_DEVICE_TIME)).__next__
    """That there is no device clock, without code of Python between two samples."""

    synchronize = repeat(None).__next__
    """Nothing is pending; the same without code of Python."""

    def give_back(self) -> None:
        """Do nothing: the host's allocator keeps little, and no library is refused for it."""


class _StreamDevice(ABC):
    """A device with a stream: calls are enqueued there, and are complete when it has drained.

    Device time is between two events around the call on the current stream, so it also covers
    what the call enqueues there.
    """

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
        add_in_fp32()
        super().__init__(torch.device("cuda", index), torch.cuda.Event(enable_timing=True),
                         torch.cuda.Event(enable_timing=True))

    def _drain(self) -> None:
        self._end.synchronize()

    def give_back(self) -> None:
        """Free what a case before left in cycles, and what torch's cache keeps of it.

        NCCL, cuBLAS and symmetric memory take theirs outside of this cache.
        """
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
"""Of an MI300 and its successors, by AMD's CDNA 3 white paper; HIP tells the 4 MB of one die."""
AnyDevice = CpuDevice | CudaDevice | MpsDevice


def cache_bytes(device: torch.device) -> int | None:
    """Return the bytes of a GPU's last cache, None where torch does not tell them; 0 of others.

    It is also 0 where a case is rehearsed, and there is no GPU.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    properties = torch.cuda.get_device_properties(device)
    if str(getattr(properties, "gcnArchName", "")).startswith(_WITH_INFINITY_CACHE):
        return _INFINITY_CACHE_BYTES
    found: int | None = getattr(properties, "L2_cache_size", None)  # since torch 2.5
    return found or None


def free_bytes(device: torch.device) -> int:
    """Return what this process can still take of a GPU: free memory, and what torch's cache keeps.
    """
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


def add_in_fp32() -> None:
    """Have cuBLAS add partial sums of fp16 and bf16 products in fp32, in this process.

    torch allows it by default to round them to the short dtype where it splits the inner extent;
    the bounds of checked results (`kinds.primitive.run.expected`) would then be too small.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def multiply_in_fp32() -> None:
    """Have products and convolutions of fp32 take fp32's operands, never TF32's, in this process.

    torch allows cuDNN TF32 by default, and NGC's images allow it to cuBLAS by
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1. Rates would be compared with the peak of fp32, and results
    with bounds of it. Since torch 2.9 there are two APIs, and reading one raises where the other
    says something else; so both are set, the older one first: it resets some of the newer. On the
    CPU it is oneDNN that multiplies in fp32 then.
    """
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
    """Return the device of this rank: ``cpu``, ``mps``, or ``cuda``, GPU ``gpu`` of those it sees.

    Raises CaseError for a rank that has none, whose cases on GPUs the probe makes skips. This
    process then computes fp32 in fp32.
    """
    multiply_in_fp32()
    if name == "mps":
        return MpsDevice()
    if name != "cuda":
        return CpuDevice()
    if gpu is None:
        raise CaseError("this rank has no GPU of its own")
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
    """Capture one call; all ranks do at the same time. What CUDA refuses is raised as it is.

    Errors of other threads do not end the capture: NCCL's watchdog asks for events meanwhile.
    """
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
