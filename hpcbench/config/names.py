"""The names a sweep file may use, other tools' spellings of them, and the nearest valid one.

Spellings: torch (``float32``, ``half``) and nccl-tests (``float``, ``bfloat16``).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hpcbench.operations.sizes import DTYPE_BYTES as DTYPE_BYTES
from hpcbench.units import shortened

BACKENDS = ("gloo", "nccl", "ucc", "ucc/tl/ucp", "ucc/tl/cuda", "ucc/tl/nccl", "mpi",
            "mpi/direct")
DEVICES = ("auto", "cpu", "cuda", "mps")
GPU_DEVICES = ("cuda", "mps")
REQUIRABLE = (*BACKENDS, *GPU_DEVICES)
"""What `require` may name."""
DEVICE_TYPES = ("cpu", "cuda", "mps")

DTYPES = tuple(DTYPE_BYTES)
DTYPE_ALIASES: Mapping[str, str] = MappingProxyType({
    "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "int": "int32", "long": "int64",
})
PEAK_TYPES = (*DTYPES, "tf32", "fp8", "int8")
"""Element types that have a peak: those of products alone, too."""
FLOATING_DTYPES = ("fp32", "fp64", "fp16", "bf16")
SPLITS = ("even", "linear", "one_heavy", "zero")
"""How the data are divided among the ranks (docs/method.md)."""
BUFFERS = ("warm", "cold")
"""Whether a call finds its buffers as they were just restored, or in memory (docs/method.md)."""
OPS = ("sum", "prod", "min", "max", "avg")
MODES = ("isolated", "pipelined", "barrier_start")
RETRIED = ("failed", "wrong", "timeout", "skipped")
"""Statuses of cases that are run again on request (`run --resume --retry`)."""
ORDERS = ("shuffled", "planned")
FAULTS = ("kill", "segv", "stop", "raise", "abort", "oom", "exit", "slow", "slow_samples", "wrong",
          "desync", "teardown", "device_error", "device_oom", "device_hang")
PROFILERS = ("torch", "nsys", "none")
"""Who records profiled samples; none: only the stamps that every sample has are analysed."""
TRIGGERS = ("always", "sync_stalls")
"""Which cases are profiled: all, or those whose ranks wait for each other."""
TARGETS = ("sync_stalls", "compute", "communication")
"""What a profile is to show: ranks that wait for each other, computing, or communication."""
TELEMETRY = ("process", "cpu", "frequency", "energy", "network", "gpu")
"""What supervisors read of the machine beside what they measure (docs/telemetry.md)."""
TELEMETRY_OFF = (*TELEMETRY, "all")
PASSED_ENV = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME",
    "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "XDG_*",
    "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "THP_*",
    "CUDA_*", "CUBLAS_*", "CUBLASLT_*", "CUDNN_*", "NVSHMEM_*", "NVTE_*", "BNB_CUDA_VERSION",
    "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_*", "HSA_*",
    "ROCM_*", "ROCBLAS_*", "HIPBLASLT_*", "MIOPEN_*",
    "NCCL_*", "RCCL_*", "OFI_NCCL_*", "SHARP_*", "UCC_*", "UCX_*", "GLOO_*", "FI_*",
    "TORCH_*", "PYTORCH_*", "TRITON_*", "TORCHINDUCTOR_*",
    "HF_HOME", "HF_ENDPOINT", "HF_HUB_*", "HF_DATASETS_*", "TRANSFORMERS_*",
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "HPCBENCH_*",
)
"""Shell patterns of the variables that workers inherit; ``launch.pass_env`` adds to them.

HF_TOKEN is not among them: models are made here, not loaded, so a secret would serve nothing.
"""

YAML_SWITCHES = "YAML reads on and yes as true, off and no as false: put such a text in quotes"
_NOTHING: Mapping[str, str] = MappingProxyType({})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to a misspelt one, or None if none is close."""
    matches = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_name(
    name: object, allowed: Iterable[str], aliases: Iterable[str] = (),
    of_others: Mapping[str, str] = _NOTHING,
) -> str:
    """Return the message for a name that is not allowed, with the nearest one that is.

    ``aliases`` are allowed, too, but not listed. ``of_others`` are names that other tools give to
    what is allowed.
    """
    names = list(allowed)
    guess = (of_others.get(name.lower()) or nearest(name, [*names, *aliases])
             if isinstance(name, str) else None)
    hint = f' did you mean "{guess}"?' if guess else ""
    read = f"; {YAML_SWITCHES}" if isinstance(name, bool) else ""
    return f"{quote(name)} is not known;{hint} allowed: {', '.join(names)}{read}"


SCALING = "scaling"
"""In place of a kind: all blocks that scale, on 1, 2, 4 ... and all ranks."""


def unknown_kind(name: object, kinds: Iterable[str], aliases: Mapping[str, str]) -> str:
    """Return the message for a kind that is not installed: which there are, with other names."""
    known = list(kinds)
    guess = nearest(name, [*known, *aliases]) if isinstance(name, str) else None
    hint = f' did you mean "{guess}"?' if guess else ""
    there_are = ", ".join(
        kind + "".join(f" ({alias})" for alias, of in aliases.items() if of == kind)
        for kind in known)
    return f"kind {quote(name)} is not installed;{hint} there are {there_are}"


def quote(value: object) -> str:
    """Return a value as it would be written in JSON, shortened."""
    return shortened(json.dumps(value, default=str))
