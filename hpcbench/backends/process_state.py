"""What a case can leave changed in its worker's process, and so in the measurement of the next."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.measurement.process import own_cores

_STANDARD = range(3)
_FILES, _MANY = Path("/proc/self/fd"), 256
"""Fewer open files more are a library's own."""
_SIGNALS = sorted({*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP})
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
_MODULES = (torch, dist)


def process_state() -> dict[str, Any]:
    """Return, by names in plain words, what is to be as it was after a case."""
    return {
        "the working folder": _working_folder(),
        "the default dtype": torch.get_default_dtype(),
        "the number of torch's threads": torch.get_num_threads(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the cores of the process": own_cores(),
        "standard input or output": [_identity(fd) for fd in _STANDARD],
        "hundreds of open files": len([*_FILES.iterdir()]) // _MANY if _FILES.is_dir() else 0,
        "the handlers of signals": [signal.getsignal(number) for number in _SIGNALS],
        "limits of the process": [resource.getrlimit(number) for number in _LIMITS],
        **{module.__name__: dict(vars(module)) for module in _MODULES},
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return in words what is not as it was, "" if all is; a library may add functions."""
    found = []
    for name, value in before.items():
        if not isinstance(value, dict):
            found += [name] if after[name] != value else []
            continue
        found += [f"{name}.{key}" for key, function in value.items()
                  if after[name].get(key) is not function and callable(function)]
    return ", ".join(found)


def _working_folder() -> str:
    with suppress(OSError):  # it was removed
        return os.getcwd()  # noqa: PTH109  (a text is enough)
    return ""


def _identity(fd: int) -> tuple[int, int] | None:
    with suppress(OSError):
        about = os.fstat(fd)
        return about.st_dev, about.st_ino
    return None
