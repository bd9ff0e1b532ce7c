"""Devices: where tensors live, and how one call is run to completion."""

from __future__ import annotations

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

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        torch.mps.synchronize()


AnyDevice = CpuDevice | CudaDevice | MpsDevice


def add_in_fp32() -> None:
    """Have cuBLAS add partial sums of fp16 and bf16 products in fp32, in this process.

    torch allows it by default to round them to the short dtype where it splits the inner extent;
    the bounds of checked results (`kinds.primitive.run.expected`) would then be too small.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def open_device(name: str, gpu: int | None) -> AnyDevice:
    """Return the device of this rank: ``cpu``, ``mps``, or ``cuda``, GPU ``gpu`` of those it sees.

    Raises CaseError for a rank that has none, whose cases on GPUs the probe makes skips.
    """
    if name == "mps":
        return MpsDevice()
    if name != "cuda":
        return CpuDevice()
    if gpu is None:
        raise CaseError("this rank has no GPU of its own")
    return CudaDevice(gpu)

