"""Probe this process's MPI for backend ``mpi``, without torch.

``python -m hpcbench.backends.mpi_facts`` prints the facts as JSON; MPI then starts as a world of
one."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
from typing import Any

from hpcbench.errors import how_to_install

_ONE = {"fp16": (0x3C00).to_bytes(2, "little"), "bf16": (0x3F80).to_bytes(2, "little")}
_TWO = {"fp16": (0x4000).to_bytes(2, "little"), "bf16": (0x4000).to_bytes(2, "little")}
_DATATYPES = {"fp16": "FLOAT16_T", "bf16": "BFLOAT16_T"}
_RESULTS = {"SUM": _TWO, "PROD": _ONE, "MIN": _ONE, "MAX": _ONE}


def gather_mpi_facts() -> dict[str, Any]:
    """Return ``reason`` (why there is no MPI, or None), ``lacks`` (dtype -> why it cannot be
    reduced) and ``cuda`` (`cuda_awareness`).

    MPI 4.1 has no datatype for fp16 and bf16; each library adds its own, so 1 and 1 are reduced
    here."""
    if importlib.util.find_spec("mpi4py") is None:
        return no_mpi(f"mpi4py is not installed: {how_to_install('run')}")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return no_mpi(f"mpi4py finds no MPI library: {str(error).splitlines()[0]}")
    library = _library(MPI)
    return {"reason": None, "cuda": cuda_awareness(MPI), "lacks": {
        dtype: f"{library} {reason}" for dtype in _DATATYPES if (reason := _lack(MPI, dtype))}}


def no_mpi(reason: str) -> dict[str, Any]:
    return {"reason": reason, "lacks": {}, "cuda": {"aware": None, "reason": reason}}


def cuda_awareness(mpi: Any) -> dict[str, Any]:
    """Return {"aware": whether ``mpi`` (mpi4py.MPI) accepts GPU memory or None, "reason": the
    source}.

    MPIX_Query_cuda_support is an extension of Open MPI and MPICH 4; the symbol is looked up in
    mpi4py's own module, so it is that of the loaded library."""
    try:
        supported = bool(ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return {"aware": None, "reason": f"{_library(mpi)} has no MPIX_Query_cuda_support to ask"}
    answer = "is CUDA-aware" if supported else "is not CUDA-aware"
    return {"aware": supported, "reason": f"{_library(mpi)} {answer} (MPIX_Query_cuda_support)"}


def library_name(version: str) -> str:
    """Return what an MPI calls itself, ``Intel MPI 2021.18.1``, by its library's version text."""
    line = version.splitlines()[0].strip("\x00").partition(",")[0]
    intel = re.match(r"Intel\(R\) MPI Library (\S+)", line)
    return f"Intel MPI {intel[1]}" if intel else " ".join(line.split())


def _library(mpi: Any) -> str:
    return library_name(mpi.Get_library_version()).replace("Version: ", "")


def _lack(mpi: Any, dtype: str) -> str | None:
    datatype = getattr(mpi, _DATATYPES[dtype], mpi.DATATYPE_NULL)
    if _is_unknown(mpi, datatype):
        return f"has no datatype for {dtype}, so it cannot reduce it"
    for op, expected in _RESULTS.items():
        total = bytearray(_ONE[dtype])
        try:
            getattr(mpi, op).Reduce_local([bytearray(_ONE[dtype]), 1, datatype],
                                          [total, 1, datatype])
        except mpi.Exception as error:
            return f"cannot reduce {dtype}: {str(error).splitlines()[0]}"
        if bytes(total) != expected[dtype]:
            return f"reduces {dtype} wrongly ({op.lower()} of 1 and 1)"
    return None


def _is_unknown(mpi: Any, datatype: Any) -> bool:
    """Return whether the library lacks a datatype of mpi4py: using it can end the process.

    Open MPI 4.1.4 then has a null pointer, MPICH 4.0.2 a datatype without a name."""
    null = datatype == mpi.DATATYPE_NULL or not mpi._handleof(datatype)
    return null or not datatype.Get_name()


if __name__ == "__main__":
    print(json.dumps(gather_mpi_facts()))
