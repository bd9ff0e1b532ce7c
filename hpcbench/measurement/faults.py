"""Faults that the ``fault`` section of a config asks for, to test what survives them."""

from __future__ import annotations

import os
import resource
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError, HpcbenchError
from hpcbench.measurement.loop import TimedOperation
from hpcbench.measurement.process import KernelFiles

if TYPE_CHECKING:
    from hpcbench.config.section import Fault

_OOM_HEADROOM_BYTES = 64 * 2**20
_FOR_EVER_CYCLES = 2**62
"""A GPU of 2 GHz counts them in 70 years."""


class InjectedFault(HpcbenchError):
    """The error of a ``raise`` fault."""


def before_call(
    faults: Sequence[Fault], slow_down: Callable[[float], None],
) -> dict[int, Callable[[], None]]:
    """Return the faults to cause before the timed call, by iteration. ``slow_down`` has each
    sample of a training's batch take longer."""
    at_once: dict[str, Callable[[], None]] = {
        "kill": _signal(signal.SIGKILL), "segv": _signal(signal.SIGSEGV),
        "stop": _signal(signal.SIGSTOP), "abort": os.abort, "raise": _raise,
        "oom": _run_out_of_memory, "exit": partial(os._exit, 7), "teardown": _crash_when_leaving,
        "device_error": _fail_on_device, "device_oom": _fill_device,
        "device_hang": _hang_on_device}
    for_seconds = {"slow": time.sleep, "slow_samples": slow_down}
    return {fault.iteration or 0: at_once.get(fault.kind) or partial(
                for_seconds[fault.kind], fault.seconds)
            for fault in faults if fault.kind in (*at_once, *for_seconds)
            and not _is_of_each(fault)}


def before_timed_calls(faults: Sequence[Fault]) -> float:
    return sum(fault.seconds for fault in faults if _is_of_each(fault))


def _is_of_each(fault: Fault) -> bool:
    return fault.kind == "slow" and fault.iteration is None


def after_call(
    faults: Sequence[Fault], corrupt_output: Callable[[], None],
) -> dict[int, Callable[[], None]]:
    return {fault.iteration or 0: corrupt_output for fault in faults if fault.kind == "wrong"}


def wrong_operations(
    faults: Sequence[Fault], other: Callable[[], TimedOperation],
) -> dict[int, TimedOperation]:
    """Return the operations in place of the workload, by iteration; ``other`` is called if any."""
    when = [fault.iteration or 0 for fault in faults if fault.kind == "desync"]
    return dict.fromkeys(when, other()) if when else {}


def _signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _crash_when_leaving() -> None:
    weakref.finalize(dist.group.WORLD, os.abort)  # when the group is destroyed


def _fail_on_device() -> None:
    """An index beyond a tensor leaves this process's CUDA context unusable (a sticky error)."""
    _needs_gpu("device_error")
    torch.zeros(1, device="cuda")[torch.ones(1, dtype=torch.int64, device="cuda")]
    torch.cuda.synchronize()


def _fill_device() -> None:
    _needs_gpu("device_oom")
    _, total = torch.cuda.mem_get_info()
    torch.empty(2 * total, dtype=torch.uint8, device="cuda")


def _hang_on_device() -> None:
    _needs_gpu("device_hang")
    torch.cuda._sleep(_FOR_EVER_CYCLES)


def _needs_gpu(fault: str) -> None:
    if not torch.cuda.is_available():
        raise CaseError(f"fault {fault} needs a GPU of CUDA")


def _raise() -> None:
    raise InjectedFault("injected exception")


def _run_out_of_memory() -> None:
    used = KernelFiles().process_bytes("VmData") or 0
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + _OOM_HEADROOM_BYTES, hard))
    torch.ones(8 * _OOM_HEADROOM_BYTES, dtype=torch.uint8)
