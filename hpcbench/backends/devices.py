"""Devices: where tensors live, and how one call is run to completion."""

from __future__ import annotations

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch

from hpcbench.errors import CaseError
from hpcbench.trace.schema import NO_DEVICE_TIME


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
        """Return what runs and waits for the stream."""
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
        """Wait for everything on the device."""
        torch.cuda.synchronize(self.torch_device)


class MpsDevice(_StreamDevice):
    """Apple's GPU, where torch has one stream. Written after torch's documentation; never run."""

    def __init__(self) -> None:
        super().__init__(torch.device("mps"), torch.mps.Event(enable_timing=True),
                         torch.mps.Event(enable_timing=True))

    def _drain(self) -> None:
        self.synchronize()

    def give_back(self) -> None:
        """Free what a case before left, as on CUDA."""
        gc.collect()
        torch.mps.empty_cache()

    def synchronize(self) -> None:
        """Wait for everything on the device."""
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

