"""What an error of torch says: who may have caused it, and its first line."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.masking import masked

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
