"""By which texts errors are recognised: a table of what libraries say, typed from their sources.

torch 2.13 (c10/core/CPUAllocator.cpp, c10/cuda: CUDACachingAllocator.cpp, CUDAException.cpp;
ATen/cuda/Exceptions.h, torch/csrc/distributed/c10d: NCCLUtils.cpp, ProcessGroupNCCL.cpp,
TCPStoreLibUvBackend.cpp, socket.cpp), NCCL 2.29.7 (strings of its library; debug.cc, alloc.h),
gloo (transport/tcp/pair.cc), Triton 3.7 (backends/nvidia/driver.c, runtime/errors.py).
"""

from __future__ import annotations

import errno
import os

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.devices import classify, one_line, out_of_memory
from hpcbench.errors import CaseError
from hpcbench.kinds.memory.run import refused_memory

NCCL = ("NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {}, NCCL version "
        "2.29.7\n{}\nLast error:\n{}")
CUDA_FAILED = ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
               "ncclUnhandledCudaError: Call to CUDA function failed.")
SYSTEM_FAILED = ("unhandled system error (run with NCCL_DEBUG=INFO for details)",
                 "ncclSystemError: System call (e.g. socket, malloc) or external library call "
                 "failed or device error.")
ADVICE = ("\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
          "stacktrace below might be incorrect.\nFor debugging consider passing "
          "CUDA_LAUNCH_BLOCKING=1")
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
                           "capacity of 79.11 GiB of which 1.00 GiB is free."),
    torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB)"),
    RuntimeError("CUDA error: out of memory" + ADVICE),
    RuntimeError("HIP error: out of memory\nCompile with `TORCH_USE_HIP_DSA`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("miopenStatusAllocFailed"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    dist.DistBackendError(NCCL.format(*CUDA_FAILED, "Cuda failure 2 'out of memory'")),
    dist.DistBackendError(NCCL.format(*CUDA_FAILED, "Cuda failure 'out of memory'")),
    dist.DistBackendError(NCCL.format(*CUDA_FAILED, "Failed to CUDA calloc async 4194304 bytes")),
    dist.DistBackendError(NCCL.format(*CUDA_FAILED, "Failed to CUDA host alloc 4096 bytes")),
    dist.DistBackendError(NCCL.format(*SYSTEM_FAILED, "Failed to malloc 4096 bytes")),
    RuntimeError("[enforce fail at alloc_cpu.cpp:129] err == 0. DefaultCPUAllocator: can't "
                 "allocate memory: you tried to allocate 8 bytes. Error code 12 (Cannot allocate "
                 "memory)"),
    RuntimeError("std::bad_alloc"),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    MemoryError(),
]
OF_A_PEER = [
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
                 "peer [10.0.0.2]:4711"),
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
                 "waiting 1800000ms for recv operation to complete"),
    RuntimeError("Application timeout caused pair closure"),
    dist.DistBackendError(NCCL.format(
        "remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
        " prematurely.", "socketProgress: Connection closed by remote peer host<4711>")),
    dist.DistBackendError(NCCL.format(*SYSTEM_FAILED, "socketStartConnect: Connect to host<4711> "
                                      "failed : Software caused connection abort")),
    dist.DistBackendError("NCCL communicator was aborted on rank 3."),
    dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
                          "SeqNum=5, OpType=ALLREDUCE) ran for 600000 milliseconds before timing "
                          "out."),
    dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed. Did the "
                          "remote server shutdown or crash?"),
    dist.DistNetworkError("The client socket has timed out after 60000ms while trying to connect "
                          "to (host, 29500)."),
    dist.DistStoreError("wait timeout after 100ms, keys: /0"),
    RuntimeError("Broken pipe"),
]
OF_THE_RANK_ALONE = [
    RuntimeError("CUDA error: the launch timed out and was terminated" + ADVICE),
    RuntimeError("CUDA error: device-side assert triggered" + ADVICE),
    RuntimeError("CUDA error: an illegal memory access was encountered" + ADVICE),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    Exception("out of resource: shared memory, Required: 163840, Hardware limit: 101376. Reducing "
              "block sizes or `num_stages` may help."),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    CaseError("the group timed out; with a smaller size it does not run out of memory"),
    ValueError("invalid socket"),
]


def names(errors: list[Exception]) -> list[str]:
    return [str(error).rpartition("\n")[2][:50] or type(error).__name__ for error in errors]


@pytest.mark.parametrize("error", NO_MEMORY, ids=names(NO_MEMORY))
def test_refused_memory_is_stated_plainly_and_no_peer_is_suspected(error: Exception) -> None:
    assert out_of_memory(error) and refused_memory(error)
    assert classify(error) == "exception"
    assert one_line(error).startswith("out of memory: ")


@pytest.mark.parametrize("error", OF_A_PEER, ids=names(OF_A_PEER))
def test_what_a_peer_can_have_caused(error: Exception) -> None:
    assert classify(error) == "communication"
    assert not out_of_memory(error)


@pytest.mark.parametrize("error", OF_THE_RANK_ALONE, ids=names(OF_THE_RANK_ALONE))
def test_what_no_peer_can_have_caused(error: Exception) -> None:
    assert classify(error) == "exception"
    assert not out_of_memory(error)


def test_only_within_a_limit_is_a_thread_that_cannot_start_a_lack_of_memory() -> None:
    for text in ("can't start new thread", "could not create a primitive"):
        assert refused_memory(RuntimeError(text)) and not out_of_memory(RuntimeError(text))
