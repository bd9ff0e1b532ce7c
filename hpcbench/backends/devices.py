"""Devices: where tensors live, and how one call is run to completion."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hpcbench.errors import CaseError
from hpcbench.trace.schema import NO_DEVICE_TIME


class CpuDevice:
    """The host: collectives of CPU backends return when they are complete."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def timed(self, run: Callable[[], None], now_ns: Callable[[], int]) -> tuple[int, int]:
        """Run; there is no device clock, and nothing is left to wait for."""
        run()
        return NO_DEVICE_TIME, NO_DEVICE_TIME

    def synchronize(self) -> None:
        """Do nothing: nothing is pending."""


class CudaDevice:
    """One GPU; a call is complete when the current stream has drained.

    Device time is between two CUDA events around the call on the current stream, so it also
    covers what the call enqueues there.
    """

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        add_in_fp32()
        self.torch_device = torch.device("cuda", index)
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def timed(self, run: Callable[[], None], now_ns: Callable[[], int]) -> tuple[int, int]:
        """Run, wait for the stream; return ns to enqueue it, and ns between the two events."""
        began_ns = now_ns()
        self._begin.record()
        run()
        self._end.record()
        enqueued_ns = now_ns()
        self._end.synchronize()
        return enqueued_ns - began_ns, int(self._begin.elapsed_time(self._end) * 1e6)  # ms to ns

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        torch.cuda.synchronize(self.torch_device)


class MpsDevice:
    """Apple's GPU; a call is complete when torch's one stream there has drained.

    Written after torch's documentation, and never run by us. Device time is between two events
    around the call, as on a `CudaDevice`.
    """

    def __init__(self) -> None:
        self.torch_device = torch.device("mps")
        self._begin = torch.mps.Event(enable_timing=True)
        self._end = torch.mps.Event(enable_timing=True)

    def timed(self, run: Callable[[], None], now_ns: Callable[[], int]) -> tuple[int, int]:
        """Run, wait for the stream; return ns to enqueue it, and ns between the two events."""
        began_ns = now_ns()
        self._begin.record()
        run()
        self._end.record()
        enqueued_ns = now_ns()
        torch.mps.synchronize()
        return enqueued_ns - began_ns, int(self._begin.elapsed_time(self._end) * 1e6)  # ms to ns

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

