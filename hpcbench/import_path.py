"""Where modules come from, never the folder that hpcbench happens to be started in, and processes
of their own that run them.

``python -m`` and ``-c`` put the current folder before all others. A torch.py or a folder numpy/
there would be imported in place of the library, in the job and in all processes that it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = str(Path(__file__).resolve().parents[1])
_PR_SET_PDEATHSIG = 1
_START = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; import hpcbench, runpy; "
    "sys.path.append(sys.path.pop(0)); del sys.argv[1]; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)")
"""Program of ``python -c``: hpcbench is imported from the given folder, all else as usual."""


def leave_out_current_folder() -> None:
    """Have imports leave out the current folder; where hpcbench lies there, it comes last."""
    here = None
    if not getattr(sys.flags, "safe_path", False) and sys.path:
        here = sys.path[0] or os.curdir
    if here is not None and Path(here).resolve() == Path.cwd():
        del sys.path[0]
        if str(Path.cwd()) == ROOT:
            sys.path.append(ROOT)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this very hpcbench in a process of its own."""
    return [sys.executable, "-c", _START, ROOT, module, *arguments]


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel (of Linux) kill this process when its parent thread ends; end at once if it
    has. A ``parent_pid`` of 0 is unknown."""
    import ctypes  # here, as this module decides where all others come from
    import signal

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent_pid and os.getppid() != parent_pid:
        os._exit(1)


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
"""Patterns of the variables that workers, and children that import a user's file, start with.
HF_TOKEN is not among them: models are made here, not loaded, so a secret would serve nothing."""


def passed_variables(environ: Mapping[str, str], pass_env: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that match `PASSED_ENV` or a pattern of ``launch.pass_env``."""
    from fnmatch import fnmatchcase  # as in `die_with_parent`

    patterns = (*PASSED_ENV, *pass_env)
    return {name: value for name, value in environ.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)}
