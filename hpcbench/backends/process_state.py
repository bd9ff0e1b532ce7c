"""What a case can leave changed in its worker's process, and so in the measurement of the next."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.measurement.process import own_cores

_STANDARD = range(3)
_COMPILER = "TORCHINDUCTOR"
"""What torch.compile sets has this in its name."""
_OF_LIBRARIES = ("torch.", "concurrent.", "tqdm.", "hpcbench.")
"""Modules whose threads are no case's: torch.compile's wait for work, ours watch the process."""
_TASKS = Path("/proc/self/task")
_FILES, _MANY = Path("/proc/self/fd"), 256
"""Fewer open files more are a library's own: DTensor keeps meshes whose groups were closed,
with a few files each (findings/dtensor_keeps_closed_groups.sh). A new worker begins without."""
_SIGNALS = sorted({*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP})
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
_MODULES = (torch, dist)
_TORCH = os.path.join(*torch.__path__, "")  # noqa: PTH118  (as code names its file)


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
        "the open files, hundreds with those of cases before": (
            len([*_FILES.iterdir()]) // _MANY if _FILES.is_dir() else 0),
        "the handlers of signals": [signal.getsignal(number) for number in _SIGNALS],
        "limits of the process": [resource.getrlimit(number) for number in _LIMITS],
        "the environment's variables": sorted(
            item for item in os.environ.items() if _COMPILER not in item[0]),
        "Python's threads": _threads(),
        "child processes": _children(),
        "the mask of new files": _umask(),
        **{module.__name__: dict(vars(module)) for module in _MODULES},
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return in words what is not as it was, "" if all is; a library may add functions."""
    names = []
    for name, value in before.items():
        if not isinstance(value, dict):
            names += [name] if after[name] != value else []
            continue
        names += [f"{name}.{key}" for key, function in value.items()
                  if (now := after[name].get(key)) is not function and callable(function)
                  and not _is_torchs_own(now)]
    return ", ".join(names)


def _is_torchs_own(function: object) -> bool:
    """Return whether torch's own code stands there: torch.compile wraps torch.manual_seed."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH)


def _children() -> list[str]:
    with suppress(OSError):  # not on macOS; a thread ends meanwhile
        return [pid for task in _TASKS.iterdir() for pid in (task / "children").read_text().split()]
    return []


def _threads() -> set[int | None]:
    """Return the threads that a case may have left; one that is ending has no target any more."""
    return {thread.ident for thread in threading.enumerate()
            if hasattr(thread, "_target") and not str(getattr(
                thread._target or type(thread), "__module__", "")).startswith(_OF_LIBRARIES)}


def _umask() -> int:
    mask = os.umask(0o77)  # there is no call that only reads it
    os.umask(mask)
    return mask


def _working_folder() -> str:
    with suppress(OSError):  # it was removed
        return os.getcwd()  # noqa: PTH109  (a text is enough)
    return ""


def _identity(fd: int) -> tuple[int, int] | None:
    with suppress(OSError):
        about = os.fstat(fd)
        return about.st_dev, about.st_ino
    return None
