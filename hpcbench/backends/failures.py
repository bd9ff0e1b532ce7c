"""What an error of torch says: who may have caused it, and its first line."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.masking import masked

_COMMUNICATION = ("connection closed by peer", "connection reset", "broken pipe", "timed out",
                  "timeout", "nccl error", "gloo/transport", "socket", "remote process",
                  "connection refused", "unhandled system error")


def classify(error: Exception) -> str:
    """Return ``communication`` for an error that a peer can have caused, else ``exception``."""
    text = str(error).lower()
    if out_of_memory(error) or isinstance(error, CaseError):
        return "exception"
    is_torch_error = isinstance(error, (RuntimeError, dist.DistError))
    peers = is_torch_error and any(words in text for words in _COMMUNICATION)
    return "communication" if peers else "exception"


def out_of_memory(error: Exception) -> bool:
    """Return whether the host or the device had no memory left."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error) or "MPS backend out of memory" in str(error))


def one_line(error: Exception) -> str:
    """Return the error's type and first line, memory errors by their plain name.

    Secrets are masked before the line is cut: of a part of one it is not known what it is.
    """
    lines = masked(str(error), os.environ).splitlines()
    text = next((line.strip() for line in lines if line.strip()), "")
    name = "out of memory" if out_of_memory(error) else type(error).__name__
    return f"{name}: {text}"[:300]
